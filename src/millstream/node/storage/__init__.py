"""Logs on disk: segments, indexes, the cleaner, and the disk interface that they use."""
