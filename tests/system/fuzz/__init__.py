"""Malformed, absurd and hostile frames against a real broker."""
