"""Millstream: a Kafka-compatible commit log in Python."""

from typing import TYPE_CHECKING, Any

from millstream import compilation
from millstream.version import VERSION as __version__

if TYPE_CHECKING:
    from millstream.client import connect, connect_async

# Before any module that may be compiled is imported.
compilation.choose()

__all__ = ["__version__", "connect", "connect_async"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the broker process never needs the client library, and starts faster without it.
    if name in {"connect", "connect_async"}:
        from millstream import client

        return getattr(client, name)
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
