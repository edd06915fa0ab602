"""What the schemas page computes: differences between versions."""
