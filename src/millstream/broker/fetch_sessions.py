"""Fetch sessions (KIP-227): the broker remembers what a client follows, and both sides speak only of what changed."""

import random
from collections import OrderedDict
from collections.abc import Iterable

from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.fetch import FIRST_WITH_TOPIC_ID, FetchPartition, FetchRequest

NO_SESSION = 0
FIRST_EPOCH = 0
FINAL_EPOCH = -1
_LARGEST_EPOCH = (1 << 31) - 1
_EVICTABLE_AFTER_SECONDS = 120.0
MAX_PARTITIONS_IN_SESSIONS = 250_000
"""What all sessions together may follow; a client that finds no room fetches without a session."""

Key = tuple[bytes, int]
"""Topic (name or id, as the wire spells it) and partition."""


class SessionPartition:
    """One partition of a session: what to fetch, and what the client was last told about it."""

    __slots__ = ("fetch", "high_watermark", "key", "log_start_offset")

    def __init__(self, key: Key, fetch: FetchPartition) -> None:
        self.key = key
        self.fetch = fetch
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    __slots__ = ("by_id", "epoch", "id", "is_replica", "last_used", "partitions")

    def __init__(self, session_id: int, by_id: bool, now: float, is_replica: bool = False) -> None:
        self.id = session_id
        self.is_replica = is_replica
        self.by_id = by_id
        self.epoch = 1
        self.last_used = now
        self.partitions: OrderedDict[Key, SessionPartition] = OrderedDict()

    def update(self, request: FetchRequest) -> None:
        for topic, fetches in request.topics:
            for fetch in fetches:
                key = (topic, fetch.partition)
                known = self.partitions.get(key)
                if known is None:
                    self.partitions[key] = SessionPartition(key, fetch)
                else:
                    known.fetch = fetch
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def move_to_end(self, keys: Iterable[Key]) -> None:
        """Who got data goes behind those who did not, so that no partition starves."""
        for key in keys:
            if key in self.partitions:
                self.partitions.move_to_end(key)


class FetchSessions:
    """All sessions of a broker, at most `slots` of them."""

    def __init__(self, slots: int, randomness: random.Random) -> None:
        self._slots = slots
        self._randomness = randomness
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, version: int, now: float) -> FetchSession | None:
        """The session this request belongs to, brought up to date; None for a fetch outside any session."""
        by_id = version >= FIRST_WITH_TOPIC_ID
        if request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return None
        if request.session_epoch == FIRST_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._create(request, by_id, now)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"epoch {request.session_epoch}, expected {session.epoch}"
            )
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "the session was begun with the other kind of key")
        session.update(request)
        if not session.partitions:
            self._sessions.pop(session.id)
            return session
        session.epoch = 1 if session.epoch == _LARGEST_EPOCH else session.epoch + 1
        session.last_used = now
        self._sessions.move_to_end(session.id)
        return session

    def _create(self, request: FetchRequest, by_id: bool, now: float) -> FetchSession | None:
        size = sum(len(fetches) for _, fetches in request.topics)
        is_replica = request.replica_id >= 0
        if not size or self._partition_count() + size > MAX_PARTITIONS_IN_SESSIONS:
            return None
        if not self._has_room(now, is_replica):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._randomness.randrange(1, 1 << 31)
        session = FetchSession(session_id, by_id, now, is_replica)
        session.update(request)
        self._sessions[session_id] = session
        return session

    def _partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def _has_room(self, now: float, is_replica: bool) -> bool:
        """A session that was not used for long gives way to any other, a consumer's always to a follower's."""
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now - oldest.last_used < _EVICTABLE_AFTER_SECONDS:
            consumers = (session for session in self._sessions.values() if not session.is_replica)
            oldest = next(consumers, None) if is_replica else None
        if oldest is None:
            return False
        del self._sessions[oldest.id]
        return True
