"""Handlers of the APIs of groups and offsets."""
