"""Connections, frames and the table of APIs: from the bytes of a client to a handler, and back."""
