"""Millstream: a Kafka-compatible commit log in Python."""

from typing import TYPE_CHECKING, Any

from millstream.version import VERSION as __version__

if TYPE_CHECKING:
    from millstream.client import connect

__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the broker process never needs the client library, and starts faster without it.
    if name == "connect":
        from millstream.client import connect

        return connect
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
