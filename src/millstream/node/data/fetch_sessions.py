"""Fetch sessions (KIP-227): the broker stores the partitions of a client, and both sides send only changes.

The partitions of a follower's session notify it when they change, and it keeps them in `changed`. So a fetch of a
follower reads only the partitions that have changed. Of the others, the follower had all records at each fetch since.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.fetch import FIRST_WITH_TOPIC_ID, FetchPartition, FetchRequest
from millstream.node.replicas.partition import Partition

NO_SESSION = 0
NO_REPLICA = -1
FIRST_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = (1 << 31) - 1
_EVICTABLE_AFTER_SECONDS = 120.0
MAX_PARTITIONS_IN_SESSIONS = 250_000
"""Limit of the partitions in all sessions; above it, a client fetches without a session."""

Key = tuple[bytes, int]
"""Topic (name or id, as in the request) and partition."""


class SessionWaiter(Protocol):
    """A fetch that waits for changes of the session's partitions."""

    def partition_changed(self, key: Key) -> None: ...


class SessionPartition:
    """One partition of a session: the fetch, and the values that were last sent to the client."""

    __slots__ = ("_session", "_watched", "fetch", "high_watermark", "key", "log_start_offset")

    def __init__(self, key: Key, fetch: FetchPartition, session: "FetchSession") -> None:
        self.key = key
        self.fetch = fetch
        self.high_watermark = -1
        self.log_start_offset = -1
        self._session = session
        self._watched: Partition | None = None

    def watch(self, partition: Partition | None) -> None:
        """Subscribes to changes of this partition. It may be another one than before, under the same name."""
        if self._watched is not partition:
            self.unwatch()
            self._watched = partition
            if partition is not None:
                partition.replica_waiters.add(self)

    def unwatch(self) -> None:
        partition, self._watched = self._watched, None
        if partition is not None:
            partition.replica_waiters.discard(self)
            if self.key not in self._session.changed:
                partition.was_at_end(self._session.replica_id, self._session.last_used)

    # Called by the partition

    def log_grew(self, partition: Partition) -> None:
        session = self._session
        if self.key not in session.changed:
            session.changed[self.key] = None
            partition.was_at_end(session.replica_id, session.last_used)
        session.wake(self.key)

    def state_changed(self, partition: Partition) -> None:
        session = self._session
        if self.key not in session.changed:
            session.changed[self.key] = None
            partition.was_at_end(session.replica_id, session.last_used)
        if session.wakes_on_state_changes:
            session.wake(self.key)

    def wake(self) -> None:
        self._session.changed[self.key] = None
        self._session.wake(self.key)


class FetchSession:
    """The partitions of one client, a consumer or a follower, between its fetches."""

    __slots__ = (
        "by_id",
        "changed",
        "epoch",
        "id",
        "last_scan",
        "last_used",
        "partitions",
        "replica_epoch",
        "replica_id",
        "waiting",
        "wakes_on_state_changes",
    )

    def __init__(
        self, session_id: int, by_id: bool, now: float, replica_id: int = NO_REPLICA, replica_epoch: int = -1
    ) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.by_id = by_id
        self.epoch = 1
        self.last_used = now
        self.partitions: OrderedDict[Key, SessionPartition] = OrderedDict()
        self.changed: dict[Key, None] = {}
        """For a follower: the partitions to read at its next fetch."""
        self.last_scan = now
        """The time when all partitions were last read."""
        self.waiting: dict[SessionWaiter, None] = {}
        self.wakes_on_state_changes = False
        """Whether a change of the high watermark, log start offset or in-sync replicas wakes waiting fetches, too."""

    @property
    def is_replica(self) -> bool:
        return self.replica_id >= 0

    def update(self, request: FetchRequest) -> None:
        is_replica = self.is_replica
        for topic, fetches in request.topics:
            for fetch in fetches:
                key = (topic, fetch.partition)
                known = self.partitions.get(key)
                if known is None:
                    self.partitions[key] = SessionPartition(key, fetch, self)
                else:
                    known.fetch = fetch
                if is_replica:
                    self.changed[key] = None
        for topic, indexes in request.forgotten:
            for index in indexes:
                known = self.partitions.pop((topic, index), None)
                if known is not None:
                    known.unwatch()
                    self.changed.pop(known.key, None)

    def move_to_end(self, keys: Iterable[Key]) -> None:
        """Moves partitions with data behind the others, so that each partition is read first at times."""
        for key in keys:
            if key in self.partitions:
                self.partitions.move_to_end(key)
                if self.changed.pop(key, key) is None:
                    self.changed[key] = None

    def wake(self, key: Key) -> None:
        for waiting in self.waiting:
            waiting.partition_changed(key)

    def close(self) -> None:
        """Ends the subscriptions to its partitions."""
        if self.is_replica:
            for partition in self.partitions.values():
                partition.unwatch()


class FetchSessions:
    """All sessions of a broker, at most `slots` of them."""

    def __init__(self, slots: int, randomness: random.Random) -> None:
        self._slots = slots
        self._randomness = randomness
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, version: int, now: float) -> FetchSession | None:
        """The session of this request, updated; None for a fetch without a session."""
        by_id = version >= FIRST_WITH_TOPIC_ID
        if request.session_epoch == FINAL_EPOCH:
            self.drop(request.session_id)
            return None
        if request.session_epoch == FIRST_EPOCH:
            self.drop(request.session_id)
            return self._create(request, by_id, now)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"epoch {request.session_epoch}, expected {session.epoch}"
            )
        if session.by_id != by_id:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "the session was created with topic names, and the request has topic ids, or the reverse",
            )
        session.last_used = now
        session.update(request)
        if not session.partitions:
            self.drop(session.id)
            return session
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        self._sessions.move_to_end(session.id)
        return session

    def _create(self, request: FetchRequest, by_id: bool, now: float) -> FetchSession | None:
        size = sum(len(fetches) for _, fetches in request.topics)
        is_replica = request.replica_id >= 0
        if is_replica:
            self._drop_past(request.replica_id, request.replica_epoch)
        if not size or self._partition_count() + size > MAX_PARTITIONS_IN_SESSIONS:
            return None
        if not self._has_room(now, is_replica):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._randomness.randrange(1, 1 << 31)
        session = FetchSession(session_id, by_id, now, request.replica_id, request.replica_epoch)
        session.update(request)
        self._sessions[session_id] = session
        return session

    def _partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def _has_room(self, now: float, is_replica: bool) -> bool:
        """Evicts a session that was not used for long; for a follower also any consumer's session."""
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now - oldest.last_used < _EVICTABLE_AFTER_SECONDS:
            oldest = None
            if is_replica:
                oldest = next((session for session in self._sessions.values() if not session.is_replica), None)
        if oldest is None:
            return False
        self.drop(oldest.id)
        return True

    def drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _drop_past(self, replica_id: int, replica_epoch: int) -> None:
        """Drops the sessions of an earlier process of this broker."""
        for session in tuple(self._sessions.values()):
            if session.replica_id == replica_id and session.replica_epoch < replica_epoch:
                self.drop(session.id)
