"""net room."""
