"""Produce, Fetch, ListOffsets and related APIs: clients' access to the partitions that this node leads."""
