"""Logs on disk: segments, indexes, cleaning, and what all of them use."""
