"""Offsets that groups have committed: where each group is in each partition, and for how long that is remembered."""
