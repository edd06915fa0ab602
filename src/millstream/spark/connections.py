"""The connection of a query, and the `Cluster` that each process keeps for all its tasks.

Spark reuses its worker processes, so each process makes its connections and fetches metadata once.
"""

import os
import threading
from dataclasses import dataclass, field

from millstream.common.secret_references import SecretError, resolve_all
from millstream.raw_client import Cluster, ErrorCode, RefusedError, SetupError, UnreachableError, WireError
from millstream.raw_client.errors import UNREADABLE

UNKNOWN_TOPIC_CODES = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Error codes for a topic or partition that does not exist, or not any more."""
_NOT_RETRIED = UNKNOWN_TOPIC_CODES | UNREADABLE
"""Kafka calls most of these retriable; here a retry does not help."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Bootstrap servers and settings. Picklable; equal for equal options. `repr` leaves secrets out."""

    bootstrap: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def is_retriable(error: WireError) -> bool:
    """Whether a retry may succeed: a broker is down, or a partition has no leader."""
    if isinstance(error, RefusedError):
        return error.code not in _NOT_RETRIED and bool(error.code.retriable)
    return isinstance(error, UnreachableError)


_kept: dict[tuple[int, Connection], Cluster] = {}
_lock = threading.Lock()


def cluster_of(connection: Connection) -> Cluster:
    """The cluster of this connection in this process. A forked process makes its own, because sockets cannot be
    shared."""
    key = (os.getpid(), connection)
    with _lock:
        if (found := _kept.get(key)) is None:
            found = _kept[key] = Cluster(connection.bootstrap, _resolved(connection), client_id="millstream-spark")
        return found


def _resolved(connection: Connection) -> dict[str, str]:
    """The settings with references such as `${file:/path:key}` replaced, in the process that connects: so the secret is
    in no plan, log or event of Spark."""
    try:
        return resolve_all(dict(connection.settings))
    except SecretError as error:
        raise SetupError(f"kafka.{error}") from error
