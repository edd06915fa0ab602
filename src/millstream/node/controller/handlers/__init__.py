"""Handlers of the APIs that only the active controller answers."""
