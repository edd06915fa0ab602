"""Connections: bytes in, frames to the broker, responses out in order, files by `sendfile`. Knows no Kafka API."""
