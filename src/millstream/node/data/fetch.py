"""Fetch: finds the bytes, waits for them if necessary, and sends file ranges. No record is decoded, no byte copied.

A fetch responds at once if it has `min_bytes`, an error to report, or no time to wait. Otherwise it waits on its
partitions. An append wakes a follower, a commit wakes a consumer; nothing polls. Bytes that are not in the page cache,
or not yet verified by this process, are read and checked in a thread before they are sent. `fetch_reading` reads the
logs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.fetch import FIRST_WITH_TOPIC_ID, FetchPartition, FetchRequest, PartitionResult
from millstream.formats.records.opening import OpeningLimits
from millstream.node.data.fetch_reading import Cluster, FetchReader, ReadResult, Row
from millstream.node.data.fetch_sessions import FetchSession, FetchSessions, Key, SessionPartition
from millstream.node.environment import Environment
from millstream.node.replicas.local_partition import ReplicaWaiter, Waiter, Waiters
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.replicas.unreadable_batches import RepeatedReads
from millstream.node.server.request import Refusals
from millstream.node.storage.log.log_reader import Slice

LOGS_OPENED_PER_TURN = 8
"""A fetch of more partitions opens their logs in several turns of the event loop."""
SCAN_INTERVAL_SECONDS = 5.0
"""Interval at which a follower's session reads all its partitions: not every change wakes it (retention moves a log's
start)."""
_log = logging.getLogger("millstream.broker")

Topics = list[tuple[bytes, list[PartitionResult]]]
Deliver = Callable[[Topics, int, int], None]
"""Takes the response: topics, top-level error, session id."""
Admits = Callable[[int], bool]
"""Whether the client's quota allows a response with records of this size now."""


class FetchHandler:
    """Handles Fetch (1) for all connections."""

    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        cluster: Cluster,
        *,
        session_slots: int,
        max_bytes: int,
        limits: Callable[[], OpeningLimits] = OpeningLimits,
    ) -> None:
        self.partitions = partitions
        self.environment = environment
        self.cluster = cluster
        self.sessions = FetchSessions(session_slots, environment.randomness)
        self.reader = FetchReader(partitions, cluster, max_bytes, RepeatedReads(environment, limits))
        self.waiting = self.waiting_followers = 0
        """Number of waiting fetches."""
        self.cold_reads = 0
        """Responses for which records were read from the disk, in a thread."""
        self.cold_read_s = 0.0
        """The sum of the times of these reads."""

    def fetch(
        self,
        request: FetchRequest,
        version: int,
        deliver: Deliver,
        refusals: Refusals | None = None,
        admits: Admits | None = None,
    ) -> "PendingFetch | None":
        """Responds through `deliver`, now or later; returns the waiting fetch, so that it can be cancelled. `refusals`
        has the topics that the client may not read; they are also refused in a session that had them before."""
        try:
            self._check_cluster(request)
            self._check_replica(request)
            session = self.sessions.resolve(request, version, self.environment.loop.time())
        except KafkaError as error:
            deliver([], error.code, 0)
            return None
        if session is None and _may_repeat_partitions(request):
            _remove_repeated_partitions(request)
        operation = PendingFetch(self, request, version, session, deliver, refusals, admits)
        operation.start()
        return operation

    def _check_cluster(self, request: FetchRequest) -> None:
        if request.cluster_id is not None:
            known = self.cluster.cluster_id()
            if known is not None and request.cluster_id != known.encode():
                raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {known}")

    def _check_replica(self, request: FetchRequest) -> None:
        """Refuses a broker epoch that does not exist: if it were stored, the real follower would have a stale epoch."""
        broker_id, broker_epoch = request.replica_id, request.replica_epoch
        if broker_id >= 0 and self.cluster.has_future_epoch(broker_id, broker_epoch):
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not known in epoch {broker_epoch} here; try again"
            )


def _may_repeat_partitions(request: FetchRequest) -> bool:
    topics = request.topics
    return len(topics) > LOGS_OPENED_PER_TURN or (
        len(topics) > 0 and max(len(each[1]) for each in topics) > LOGS_OPENED_PER_TURN
    )


def _remove_repeated_partitions(request: FetchRequest) -> None:
    """Keeps each partition of the request once, with its last fields, as in Kafka and as in a session. Else a client
    could name a partition thousands of times, and each append would cost so many reads of it."""
    topics: dict[bytes, dict[int, FetchPartition]] = {}
    for topic, fetches in request.topics:
        named = topics.setdefault(topic, {})
        for fetch in fetches:
            named[fetch.partition] = fetch
    request.topics = [(topic, list(named.values())) for topic, named in topics.items()]


class PendingFetch:
    """One fetch, from its arrival to its response."""

    __slots__ = (
        "_admits",
        "_changed_keys",
        "_deliver",
        "_handler",
        "_refusals",
        "_replica_session",
        "_request",
        "_session",
        "_state",
        "_timer",
        "_version",
        "_watched",
        "_watched_by_replica",
    )

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        version: int,
        session: FetchSession | None,
        deliver: Deliver,
        refusals: Refusals | None = None,
        admits: Admits | None = None,
    ) -> None:
        self._handler = handler
        self._refusals = refusals
        self._admits = admits
        self._request = request
        self._version = version
        self._session = session
        self._deliver = deliver
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Waiters[Waiter]] = []
        self._watched_by_replica: list[Waiters[ReplicaWaiter]] = []
        self._replica_session = session if session is not None and session.is_replica else None
        """The session of a follower: its partitions notify this fetch of changes."""
        self._changed_keys: dict[Key, None] = {}
        """The partitions of a follower's session that changed since the last read."""
        self._state = "reading"  # reading -> waiting -> woken -> done

    def _wanted(self) -> Iterator[tuple[Key, FetchPartition]]:
        if self._session is not None:
            for key, partition in self._session.partitions.items():
                yield key, partition.fetch
        else:
            for topic, fetches in self._request.topics:
                for fetch in fetches:
                    yield (topic, fetch.partition), fetch

    def start(self) -> None:
        if self._wants_few():
            self._begin()
            return
        unopened = [partition for partition in self._partitions() if partition.opened_log is None]
        if len(unopened) <= LOGS_OPENED_PER_TURN:
            self._begin()
        else:
            # Opening a log reads a few files: thousands at once would delay other requests.
            self._open_in_turns(unopened)

    def _wants_few(self) -> bool:
        """Whether it has so few partitions that their logs may be opened at once: the usual case."""
        if self._session is not None:
            return self._replica_session is None and len(self._session.partitions) <= LOGS_OPENED_PER_TURN
        topics = self._request.topics
        return len(topics) == 1 and len(topics[0][1]) <= LOGS_OPENED_PER_TURN

    def _open_in_turns(self, unopened: list[Partition]) -> None:
        for partition in unopened[:LOGS_OPENED_PER_TURN]:
            try:
                _ = partition.log
            except (KafkaError, OSError):
                pass  # the read reports the error
        rest = unopened[LOGS_OPENED_PER_TURN:]
        follow = (lambda: self._open_in_turns(rest)) if rest else self._begin
        self._handler.environment.loop.call_soon(self._guarded(follow))

    def _partitions(self) -> Iterator[Partition]:
        partitions = self._handler.partitions
        topics = partitions.by_id if self._version >= FIRST_WITH_TOPIC_ID else partitions.by_name
        # The logs of partitions that a follower has all of are open.
        keys: Iterable[Key] = (
            self._replica_session.changed if self._replica_session is not None else [key for key, _ in self._wanted()]
        )
        for topic, index in keys:
            partition = topics.get(topic, {}).get(index)
            if partition is not None:
                yield partition

    def _guarded(self, step: Callable[[], None]) -> Callable[[], None]:
        """A step that the loop calls: after an exception the client still gets a response."""

        def run() -> None:
            if self._state == "done":
                return
            try:
                step()
            except Exception:
                _log.exception("fetch_failed")
                self._leave()
                self._deliver([], ErrorCode.UNKNOWN_SERVER_ERROR, 0)

        return run

    def _begin(self) -> None:
        found = self._read(is_arrival=True)
        if self._is_enough(found) or self._request.max_wait_ms <= 0:
            self._respond(found)
        else:
            self._wait()

    def _read(self, *, is_arrival: bool = False) -> ReadResult:
        wanted: Iterable[tuple[Key, FetchPartition]]
        if self._replica_session is None:
            wanted = self._wanted()
        elif is_arrival:
            wanted = self._changed_partitions(self._replica_session)
        else:
            wanted = self._of_session(self._replica_session, self._replica_session.changed)
        return self._handler.reader.read(
            wanted, self._request, self._version, is_arrival=is_arrival, refusals=self._refusals
        )

    def _changed_partitions(self, session: FetchSession) -> list[tuple[Key, FetchPartition]]:
        """The partitions of a follower's session that have changed, or whose state has to be updated."""
        partitions, request = self._handler.partitions, self._request
        broker_id, broker_epoch = request.replica_id, request.replica_epoch
        has_stale_epoch = self._handler.cluster.has_stale_epoch(broker_id, broker_epoch)
        topics = partitions.by_id if session.by_id else partitions.by_name
        changed, known_partitions = session.changed, session.partitions
        now = self._handler.environment.loop.time()
        if has_stale_epoch or broker_epoch != session.replica_epoch or now - session.last_scan >= SCAN_INTERVAL_SECONDS:
            session.replica_epoch = broker_epoch
            session.last_scan = now
            keys = list(known_partitions)
        else:
            keys = list(changed)
        whole = request.session_epoch == 0
        found = []
        for key in keys:
            known = known_partitions[key]
            fetch = known.fetch
            topic = topics.get(key[0])
            partition = topic.get(key[1]) if topic is not None else None
            known.watch(partition)
            if (
                partition is not None
                and not whole
                and not has_stale_epoch
                and partition.is_at_end(
                    broker_id, broker_epoch, fetch.fetch_offset, fetch.log_start_offset, fetch.current_leader_epoch
                )
                and known.high_watermark == partition.high_watermark
                and known.log_start_offset == partition.log.log_start_offset
            ):
                changed.pop(key, None)
            else:
                changed[key] = None
                found.append((key, fetch))
        return found

    @staticmethod
    def _of_session(session: FetchSession, keys: Iterable[Key]) -> list[tuple[Key, FetchPartition]]:
        return [(key, session.partitions[key].fetch) for key in keys if key in session.partitions]

    def _is_enough(self, found: ReadResult) -> bool:
        return (
            found.size >= self._request.min_bytes
            or found.must_respond
            or (not found.rows and self._session is None)
            or (self._sends_high_watermark and self._has_new_high_watermark(found))
        )

    @property
    def _sends_high_watermark(self) -> bool:
        """With reads from followers, followers get a new high watermark at once."""
        return self._request.replica_id >= 0 and self._session is not None and self._handler.cluster.selects_by_rack()

    def _has_new_high_watermark(self, found: ReadResult) -> bool:
        assert self._session is not None
        known = self._session.partitions
        return any(key in known and row.high_watermark > known[key].high_watermark for key, row in found.rows)

    def _wait(self) -> None:
        self._state = "waiting"
        session = self._replica_session
        if session is not None:
            session.wakes_on_state_changes = self._sends_high_watermark
            session.waiting[self] = None
        else:
            is_replica = self._request.replica_id >= 0
            for partition in self._partitions():
                if is_replica:
                    self._watched_by_replica.append(partition.replica_waiters)
                    partition.replica_waiters.add(self)
                else:
                    self._watched.append(partition.waiters)
                    partition.waiters.add(self)
        self._count(1)
        loop = self._handler.environment.loop
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._guarded(self._timed_out))

    def wake(self) -> None:
        """A partition changed. It is read at the end of this turn of the loop, when more may have arrived."""
        self._wake()

    def partition_changed(self, key: Key) -> None:
        """A partition of the follower's session changed."""
        self._changed_keys[key] = None
        self._wake()

    def log_grew(self, partition: Partition) -> None:
        self.wake()

    def state_changed(self, partition: Partition) -> None:
        """Does nothing: a follower without a session gets the new state with its next fetch."""

    def _wake(self) -> None:
        if self._state == "waiting":
            self._state = "woken"
            self._handler.environment.loop.call_soon(self._guarded(self._read_again))

    def _read_again(self) -> None:
        if self._state != "woken":
            return
        # Only the partitions that woke the follower: it may follow thousands.
        session = self._replica_session
        if session is None:
            found = self._read()
        else:
            wanted = self._of_session(session, self._changed_keys)
            found = self._handler.reader.read(
                wanted, self._request, self._version, is_arrival=False, refusals=self._refusals
            )
        self._changed_keys.clear()
        if self._is_enough(found):
            self._respond(found)
        else:
            self._state = "waiting"

    def _timed_out(self) -> None:
        if self._state in ("waiting", "woken"):
            self._respond(self._read())

    def give_up(self) -> None:
        """The client has disconnected."""
        self._leave()

    def _leave(self) -> None:
        self._state = "done"
        for waiters in self._watched:
            waiters.discard(self)
        for followers in self._watched_by_replica:
            followers.discard(self)
        self._watched.clear()
        self._watched_by_replica.clear()
        if self._replica_session is not None:
            self._replica_session.waiting.pop(self, None)
        if self._timer is not None:
            self._count(-1)
            self._timer.cancel()
            self._timer = None

    def _count(self, change: int) -> None:
        if self._request.replica_id >= 0:
            self._handler.waiting_followers += change
        else:
            self._handler.waiting += change

    def _respond(self, found: ReadResult) -> None:
        self._leave()
        if self._admits is not None and not self._admits(found.size):
            self._respond_throttled()
            return
        cold = [row.records for _, row in found.rows if isinstance(row.records, Slice) and not row.records.ready]
        if not cold:
            if found.size or found.must_respond or found.has_errors:
                self._handler.reader.count_sent(found.rows, self._request, self._version >= FIRST_WITH_TOPIC_ID)
            self._finish(found.rows)
            return
        handler, begun = self._handler, self._handler.environment.loop.time()

        def done(failures: dict[int, KafkaError]) -> None:
            handler.cold_reads += 1
            handler.cold_read_s += handler.environment.loop.time() - begun
            self._prepared(_with_failures(found.rows, failures))

        handler.environment.offload(lambda: _prepare(cold)).add_done_callback(lambda read: done(read.result()))

    def _respond_throttled(self) -> None:
        """An empty response, as in Kafka. A new session is not kept: the client begins it again."""
        session = self._session
        if session is None:
            self._deliver([], ErrorCode.NONE, 0)
        elif self._request.session_epoch == 0:
            self._handler.sessions.drop(session.id)
            self._deliver([], ErrorCode.NONE, 0)
        else:
            self._deliver([], ErrorCode.NONE, session.id)

    def _prepared(self, rows: list[Row]) -> None:
        self._handler.reader.count_sent(rows, self._request, self._version >= FIRST_WITH_TOPIC_ID)
        self._finish(rows)

    def _finish(self, rows: list[Row]) -> None:
        if self._session is None:
            self._deliver(_by_topic(rows), ErrorCode.NONE, 0)
            return
        whole = self._request.session_epoch == 0
        changed = [(key, row) for key, row in rows if self._is_news(key, row, whole)]
        self._session.move_to_end([key for key, row in changed if row.records is not None and row.records.length])
        self._deliver(_by_topic(changed), ErrorCode.NONE, self._session.id)

    def _is_news(self, key: Key, row: PartitionResult, whole: bool) -> bool:
        """Whether a response in a session must include this partition; if so, stores the values sent."""
        assert self._session is not None
        known: SessionPartition | None = self._session.partitions.get(key)
        if known is None:
            return whole
        news = (
            whole
            or row.error != 0
            or row.diverging_epoch is not None
            or row.preferred_read_replica >= 0
            or (row.records is not None and row.records.length > 0)
            or row.high_watermark != known.high_watermark
            or row.log_start_offset != known.log_start_offset
        )
        if news:
            # After an error the next response includes the partition in any case.
            known.high_watermark = -1 if row.error else row.high_watermark
            known.log_start_offset = -1 if row.error else row.log_start_offset
        return news


def _prepare(slices: list[Slice]) -> dict[int, KafkaError]:
    """Reads ahead and verifies, in a thread. Returns the errors of damaged slices."""
    failures: dict[int, KafkaError] = {}
    for each in slices:
        try:
            each.prepare()
        except KafkaError as error:
            failures[id(each)] = error
        except OSError as error:
            failures[id(each)] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Exception as error:
            _log.exception("read_ahead_failed")
            failures[id(each)] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    return failures


def _with_failures(rows: list[Row], failures: dict[int, KafkaError]) -> list[Row]:
    if not failures:
        return rows
    return [
        (key, PartitionResult(row.partition, failures[id(row.records)].code))
        if id(row.records) in failures
        else (key, row)
        for key, row in rows
    ]


def _by_topic(rows: list[Row]) -> Topics:
    topics: dict[bytes, list[PartitionResult]] = {}
    for (topic, _), row in rows:
        topics.setdefault(topic, []).append(row)
    return list(topics.items())
