"""Backups: the repository, and references to objects of the tier."""
