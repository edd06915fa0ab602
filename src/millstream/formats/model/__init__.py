"""The nouns every room shares: identifiers, offsets, epochs, error values. Imports only the standard library."""
