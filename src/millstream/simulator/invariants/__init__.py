"""TODO: invariants."""
