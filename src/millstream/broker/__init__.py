"""The broker: joins log, metadata and wire. One handler module per family of APIs; no sockets, no threads."""
