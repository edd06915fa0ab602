"""TODO: clients."""
