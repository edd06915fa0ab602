"""How a query reaches its cluster, and the connection that each process keeps for all its tasks.

Workers of Spark are used again for the next task, so connections and metadata are made once per process.
"""

import os
import threading
from dataclasses import dataclass, field

from millstream.raw_client import Cluster, ErrorCode, RefusedError, UnreachableError, WireError
from millstream.raw_client.errors import UNREADABLE

GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Refusals that mean: this topic or partition is not there (any more)."""
LASTING = GONE | UNREADABLE
"""Kafka calls most of these retriable; asking again does not help here."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses and settings; can be pickled, and is the same for the same options. Secrets are not shown."""

    bootstrap: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def may_pass(error: WireError) -> bool:
    """Whether a cluster that answered so may answer otherwise later: brokers are down, a partition has no leader."""
    if isinstance(error, RefusedError):
        return error.code not in LASTING and bool(error.code.retriable)
    return isinstance(error, UnreachableError)


_kept: dict[tuple[int, Connection], Cluster] = {}
_lock = threading.Lock()


def cluster_of(connection: Connection) -> Cluster:
    """The cluster of this connection in this process. A forked child makes its own: sockets cannot be shared."""
    key = (os.getpid(), connection)
    with _lock:
        if (found := _kept.get(key)) is None:
            found = _kept[key] = Cluster(connection.bootstrap, dict(connection.settings), client_id="millstream-spark")
        return found
