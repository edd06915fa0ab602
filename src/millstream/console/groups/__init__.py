"""The Groups page, and moving the offsets of a group."""
