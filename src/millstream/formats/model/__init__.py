"""Identifiers, offsets, epochs and error codes that all packages share. Imports only the standard library."""
