"""Topics in Spark: the `millstream` source and sink, sessions, and progress in consumer groups.

Its functions are imported on use, because every Python process of Spark imports this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.session.session import start_query, start_session, tune
    from millstream.spark.sink.sink import write_batch

__all__ = ["start_query", "start_session", "tune", "write_batch"]

_SESSION = "millstream.spark.session.session"
_HOMES = {
    "start_query": _SESSION,
    "start_session": _SESSION,
    "tune": _SESSION,
    "write_batch": "millstream.spark.sink.sink",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
