"""State machines of groups and offsets, pure."""
