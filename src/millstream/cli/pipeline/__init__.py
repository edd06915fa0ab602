"""TODO: pipeline."""
