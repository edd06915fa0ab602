"""Topics as server-sent events."""
