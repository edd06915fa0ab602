"""TODO: log."""
