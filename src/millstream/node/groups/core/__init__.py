"""State machines of groups and committed offsets; pure."""
