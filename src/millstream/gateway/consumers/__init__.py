"""Consumers over HTTP."""
