"""broker room."""
