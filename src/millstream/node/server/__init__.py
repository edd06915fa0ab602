"""Connections, frames and the table of APIs: from bytes of a client to a handler and back."""
