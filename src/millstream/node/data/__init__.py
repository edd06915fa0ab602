"""Produce, fetch and list offsets: what clients do with the partitions that this node leads."""
