"""The nouns every room shares: identifiers, offsets, epochs and error values. Imports nothing but the standard library."""
