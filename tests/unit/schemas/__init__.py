"""Schemas of keys and values: the registry's client and the formats."""
