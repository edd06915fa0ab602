"""Topics as lake tables (Delta, Iceberg), and tables as topics."""
