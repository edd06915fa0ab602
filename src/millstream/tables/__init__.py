"""Topics as tables: `millstream table serve` and `millstream table verify` (docs/tables.md)."""
