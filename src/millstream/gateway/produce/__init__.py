"""Producing over HTTP."""
