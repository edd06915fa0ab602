"""Which topics can be written to, and how many partitions they have: asked once in a while, not for every request."""

import threading
import time
from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http.errors import BadRequestError
from millstream.raw_client import Cluster
from millstream.raw_client.errors import error_code, refusal

_BELIEVED_S = 30.0
"""Partitions that were added meanwhile are used after this time."""
_APPEARS_S = 5.0
"""How long a topic that the cluster creates at the asking may take to have a leader."""
_PAUSE_S = 0.05
_KEPT = 10_000


class _Known(NamedTuple):
    partitions: int
    until: float


class WritableTopics:
    """Thread safe. A topic that does not exist is created where the brokers do so (auto.create.topics.enable)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def known_partitions(self, topic: str) -> int | None:
        """How many partitions it has, if that was heard lately; asks nobody."""
        found = self._known.get(topic)
        return found.partitions if found is not None and found.until > time.monotonic() else None

    def partitions(self, topic: str) -> int:
        """Asks the cluster; 404 if there is no such topic."""
        deadline = time.monotonic() + _APPEARS_S
        while True:
            count, code = self._ask(topic)
            if count:
                with self._lock:
                    if len(self._known) >= _KEPT:
                        self._known.clear()
                    self._known[topic] = _Known(count, time.monotonic() + _BELIEVED_S)
                return count
            if not code.retriable:
                raise refusal(f"topic {topic!r}", code)
            if time.monotonic() > deadline:
                hint = 'create it: POST /topics with {"name": …}'
                raise BadRequestError(404, f"there is no topic {topic!r}", hint, code=40403)
            time.sleep(_PAUSE_S)

    def forget(self, topic: str) -> None:
        with self._lock:
            self._known.pop(topic, None)

    def _ask(self, topic: str) -> tuple[int, ErrorCode]:
        answer = self._cluster.call("metadata", topics=[{"name": topic}], allow_auto_topic_creation=True)
        (row,) = answer.topics
        code = error_code(row.error_code)
        if row.is_internal:
            raise BadRequestError(403, f"topic {topic!r} is the cluster's own", "write to another", code=40301)
        return (0 if code is not ErrorCode.NONE else len(row.partitions)), code
