"""TODO: groups."""
