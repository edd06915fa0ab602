"""Fetch: find the bytes, wait for them if need be, and hand over stretches of files; never a record, never a copy.

A fetch answers at once if it has `min_bytes`, an error to tell, or no time to wait. Otherwise it waits on its
partitions and is woken by an append (a follower) or a commit (a consumer); nothing polls. Bytes that are not in the
page cache, or that this process has not verified, are read ahead and checked in a thread before they are sent.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from millstream.broker.fetch_sessions import FetchSession, FetchSessions, Key, SessionPartition
from millstream.broker.partition import Partition, ReplicaWaiter, Role, Waiter, Waiters
from millstream.broker.partition_table import PartitionTable
from millstream.broker.replica_throttle import ReplicaThrottle
from millstream.environment import Environment
from millstream.metadata.image import PartitionState
from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.fetch import (
    FIRST_WITH_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    PartitionResult,
)
from millstream.storage.partition_log import PartitionLog
from millstream.storage.slice import Slice

OPENED_PER_TURN = 8
SCAN_SECONDS = 5.0
"""So often a follower's session looks at all its partitions: most, but not all that a follower is told of announces
itself (retention moves a log's start)."""
FIRST_FROM_FOLLOWERS = 11
"""The first version whose consumers know that followers may serve them."""
_log = logging.getLogger("millstream.broker")

Row = tuple[Key, PartitionResult]
Topics = list[tuple[bytes, list[PartitionResult]]]
Deliver = Callable[[Topics, int, int], None]
"""Takes the answer: topics, top-level error, session id."""


class Cluster(Protocol):
    """What a fetch must know of the other nodes."""

    @property
    def leader_throttle(self) -> ReplicaThrottle: ...

    def cluster_id(self) -> str | None: ...

    def state_elsewhere(self, topic: bytes, by_id: bool, index: int) -> PartitionState | None: ...

    def is_of_the_past(self, broker_id: int, broker_epoch: int) -> bool: ...

    def is_alive(self, broker_id: int) -> bool: ...

    def rack_of(self, broker_id: int) -> str | None: ...

    def selects_by_rack(self) -> bool:
        """Whether consumers are sent to a replica in their own rack (`replica.selector.class`)."""
        ...


class FetchHandler:
    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        cluster: Cluster,
        *,
        session_slots: int,
        max_bytes: int,
    ) -> None:
        self.partitions = partitions
        self.environment = environment
        self.cluster = cluster
        self.sessions = FetchSessions(session_slots, environment.randomness)
        self._max_bytes = max_bytes

    def fetch(self, request: FetchRequest, version: int, deliver: Deliver) -> "FetchWait | None":
        """Answers through `deliver`, now or later; returns what waits, so that it can be given up."""
        try:
            self._check_cluster(request)
            session = self.sessions.resolve(request, version, self.environment.loop.time())
        except KafkaError as error:
            deliver([], error.code, 0)
            return None
        operation = FetchWait(self, request, version, session, deliver)
        operation.start()
        return operation

    def _check_cluster(self, request: FetchRequest) -> None:
        if request.cluster_id is not None:
            known = self.cluster.cluster_id()
            if known is not None and request.cluster_id != known.encode():
                raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {known}")

    def read(
        self, wanted: Iterable[tuple[Key, FetchPartition]], request: FetchRequest, version: int, *, is_arrival: bool
    ) -> "ReadResult":
        """Looks at every wanted partition once, within the request's limits.

        The first look, `is_arrival`, is when a follower tells how far it is: it does so by where it fetches.
        """
        result = ReadResult()
        left = min(request.max_bytes, self._max_bytes)
        by_id = version >= FIRST_WITH_TOPIC_ID
        topics = self.partitions.by_id if by_id else self.partitions.by_name
        is_replica = request.replica_id >= 0
        for key, fetch in wanted:
            topic = topics.get(key[0])
            partition = topic.get(fetch.partition) if topic is not None else None
            if partition is None:
                result.refused(key, self._not_here(key, by_id, topic is None))
                continue
            try:
                if is_replica:
                    row = self._read_for_replica(partition, fetch, request, left, not result.size, is_arrival)
                else:
                    row = self._read_for_consumer(partition, fetch, request, version, left, not result.size)
            except (KafkaError, OSError) as error:
                result.refused(key, _refusal(partition, fetch, error))
                continue
            if row.diverging_epoch is not None or row.preferred_read_replica >= 0:
                result.must_answer = True
            elif row.records is not None:
                result.size += row.records.length
                left -= row.records.length
            result.rows.append((key, row))
        return result

    def _not_here(self, key: Key, by_id: bool, topic_unknown: bool) -> PartitionResult:
        topic, index = key
        state = self.cluster.state_elsewhere(topic, by_id, index)
        if state is not None:
            leader = state.leader, state.leader_epoch
            return PartitionResult(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
        if by_id and topic_unknown:
            return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _read_for_consumer(
        self,
        partition: Partition,
        fetch: FetchPartition,
        request: FetchRequest,
        version: int,
        left: int,
        at_least_one: bool,
    ) -> PartitionResult:
        """What is committed: all of it at the leader, as much as it has heard of at a follower."""
        if not partition.is_leader and (partition.role is not Role.FOLLOWER or version < FIRST_FROM_FOLLOWERS):
            raise partition.not_leader()
        log = partition.log
        if fetch.current_leader_epoch != partition.leader_epoch:
            partition.check_leader_epoch(fetch.current_leader_epoch)
        committed = partition.high_watermark
        if fetch.last_fetched_epoch >= 0:
            diverging = _divergence(log, fetch)
            if diverging is not None:
                return PartitionResult(
                    fetch.partition, 0, committed, committed, log.log_start_offset, diverging_epoch=diverging
                )
        if request.rack_id and partition.is_leader and self.cluster.selects_by_rack():
            preferred = self._nearest(partition, request.rack_id.decode(errors="replace"), fetch.fetch_offset)
            if preferred >= 0:
                return PartitionResult(fetch.partition, 0, committed, committed, log.log_start_offset, None, preferred)
        records: Slice | None = None
        if fetch.fetch_offset == committed:
            pass  # at the end: the usual case of a consumer that keeps up
        elif left > 0 or at_least_one:
            records = log.read(
                fetch.fetch_offset, min(fetch.max_bytes, max(left, 0)), up_to=committed, at_least_one=at_least_one
            )
        return PartitionResult(fetch.partition, 0, committed, committed, log.log_start_offset, None, -1, records)

    def _read_for_replica(
        self,
        partition: Partition,
        fetch: FetchPartition,
        request: FetchRequest,
        left: int,
        at_least_one: bool,
        is_arrival: bool,
    ) -> PartitionResult:
        """Everything up to the log's end, to a replica that is one."""
        partition.check_is_leader()
        log = partition.log
        partition.check_leader_epoch(fetch.current_leader_epoch)
        broker_id, broker_epoch = request.replica_id, request.replica_epoch
        if self.cluster.is_of_the_past(broker_id, broker_epoch):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has registered again since")
        partition.check_follower(broker_id, broker_epoch)
        if fetch.last_fetched_epoch >= 0:
            diverging = _divergence(log, fetch)
            if diverging is not None:
                return PartitionResult(
                    fetch.partition, 0, partition.high_watermark, -1, log.log_start_offset, diverging_epoch=diverging
                )
        records: Slice | None = None
        if fetch.fetch_offset != log.log_end_offset:
            is_held_up = self._is_held_up(partition, broker_id)
            if (left > 0 or at_least_one) and not is_held_up:
                records = log.read(
                    fetch.fetch_offset,
                    min(fetch.max_bytes, max(left, 0)),
                    up_to=log.log_end_offset,
                    at_least_one=at_least_one,
                )
            elif not log.log_start_offset <= fetch.fetch_offset <= log.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch.fetch_offset} is not in the log")
        if is_arrival:
            partition.fetched_by(broker_id, broker_epoch, fetch.fetch_offset, fetch.log_start_offset)
        committed = partition.high_watermark
        return PartitionResult(fetch.partition, 0, committed, committed, log.log_start_offset, None, -1, records)

    def _is_held_up(self, partition: Partition, broker_id: int) -> bool:
        throttle, at = self.cluster.leader_throttle, partition.topic_partition
        return (
            broker_id not in partition.in_sync()
            and throttle.is_throttled(at.topic, at.partition)
            and throttle.is_exceeded()
        )

    def count_sent(self, rows: "list[Row]", request: FetchRequest, by_id: bool) -> None:
        """Keeps account of what replicas under a throttle were sent."""
        topics = self.partitions.by_id if by_id else self.partitions.by_name
        throttle = self.cluster.leader_throttle
        for (topic, index), row in rows:
            if row.records is None or not row.records.length:
                continue
            partition = topics.get(topic, {}).get(index)
            if partition is not None and throttle.is_throttled(partition.topic_partition.topic, index):
                throttle.record(row.records.length)

    def _nearest(self, partition: Partition, rack: str, offset: int) -> int:
        """A replica in the consumer's rack that has what it asks for, the one that is furthest; -1 for the leader."""
        cluster = self.cluster
        if cluster.rack_of(partition.leader_id) == rack:
            return -1
        best, reached = -1, -1
        for broker_id, follower in partition.followers().items():
            if (
                follower.log_end > reached
                and 0 <= follower.log_start <= offset <= follower.log_end
                and broker_id in partition.in_sync()
                and cluster.is_alive(broker_id)
                and cluster.rack_of(broker_id) == rack
            ):
                best, reached = broker_id, follower.log_end
        return best


def _divergence(log: PartitionLog, fetch: FetchPartition) -> tuple[int, int] | None:
    """Where the reader's log parts from ours, if what it read last is not what we have there."""
    epoch, end = log.end_offset_of_epoch(fetch.last_fetched_epoch)
    if epoch < 0 or end < 0 or fetch.fetch_offset < log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch.fetch_offset} is not in the log")
    return (epoch, end) if end < fetch.fetch_offset or epoch < fetch.last_fetched_epoch else None


def _refusal(partition: Partition, fetch: FetchPartition, error: KafkaError | OSError) -> PartitionResult:
    code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        leader = partition.leader_id, partition.leader_epoch
        return PartitionResult(fetch.partition, code, current_leader=leader)
    return PartitionResult(fetch.partition, code)


class ReadResult:
    """What one look at the logs gave."""

    __slots__ = ("must_answer", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.must_answer = False
        """Whether there is something to tell other than records."""

    def refused(self, key: Key, row: PartitionResult) -> None:
        self.rows.append((key, row))
        self.must_answer = True


class FetchWait:
    """One fetch from its arrival to its answer."""

    __slots__ = (
        "_deliver",
        "_followed",
        "_grown",
        "_handler",
        "_request",
        "_session",
        "_state",
        "_timer",
        "_version",
        "_watched",
        "_watched_as_replica",
    )

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        version: int,
        session: FetchSession | None,
        deliver: Deliver,
    ) -> None:
        self._handler = handler
        self._request = request
        self._version = version
        self._session = session
        self._deliver = deliver
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Waiters[Waiter]] = []
        self._watched_as_replica: list[Waiters[ReplicaWaiter]] = []
        self._followed = session if session is not None and session.is_replica else None
        """A follower's session; its partitions tell it what moved."""
        self._grown: dict[Key, None] = {}
        """For a follower: which partitions woke it."""
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
        unopened = [partition for partition in self._partitions() if partition.opened_log is None]
        if len(unopened) <= OPENED_PER_TURN:
            self._begin()
        else:
            # Opening a log reads a few files: thousands at once would hold up everybody else.
            self._open_in_turns(unopened)

    def _open_in_turns(self, unopened: list[Partition]) -> None:
        for partition in unopened[:OPENED_PER_TURN]:
            try:
                _ = partition.log
            except (KafkaError, OSError):
                pass  # the read says so
        rest = unopened[OPENED_PER_TURN:]
        follow = (lambda: self._open_in_turns(rest)) if rest else self._begin
        self._handler.environment.loop.call_soon(self._guarded(follow))

    def _partitions(self) -> Iterator[Partition]:
        partitions = self._handler.partitions
        topics = partitions.by_id if self._version >= FIRST_WITH_TOPIC_ID else partitions.by_name
        # What a follower has all of is open.
        keys: Iterable[Key] = self._followed.moved if self._followed is not None else (key for key, _ in self._wanted())
        for topic, index in keys:
            partition = topics.get(topic, {}).get(index)
            if partition is not None:
                yield partition

    def _guarded(self, step: Callable[[], None]) -> Callable[[], None]:
        """A step that the loop calls: a fault in it must not leave the client without an answer."""

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
            self._answer(found)
        else:
            self._wait()

    def _read(self, *, is_arrival: bool = False) -> ReadResult:
        wanted: Iterable[tuple[Key, FetchPartition]]
        if self._followed is None:
            wanted = self._wanted()
        elif is_arrival:
            wanted = self._not_level(self._followed)
        else:
            wanted = self._of_session(self._followed, self._followed.moved)
        return self._handler.read(wanted, self._request, self._version, is_arrival=is_arrival)

    def _not_level(self, session: FetchSession) -> list[tuple[Key, FetchPartition]]:
        """The partitions of a follower's session that there is something to say or to note of."""
        partitions, request = self._handler.partitions, self._request
        broker_id, broker_epoch = request.replica_id, request.replica_epoch
        is_of_the_past = self._handler.cluster.is_of_the_past(broker_id, broker_epoch)
        topics = partitions.by_id if session.by_id else partitions.by_name
        moved, known_partitions = session.moved, session.partitions
        now = self._handler.environment.loop.time()
        if is_of_the_past or broker_epoch != session.replica_epoch or now - session.scanned >= SCAN_SECONDS:
            session.replica_epoch = broker_epoch
            session.scanned = now
            keys = list(known_partitions)
        else:
            keys = list(moved)
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
                and not is_of_the_past
                and partition.is_level(
                    broker_id, broker_epoch, fetch.fetch_offset, fetch.log_start_offset, fetch.current_leader_epoch
                )
                and known.high_watermark == partition.high_watermark
                and known.log_start_offset == partition.log.log_start_offset
            ):
                moved.pop(key, None)
            else:
                moved[key] = None
                found.append((key, fetch))
        return found

    @staticmethod
    def _of_session(session: FetchSession, keys: Iterable[Key]) -> list[tuple[Key, FetchPartition]]:
        return [(key, session.partitions[key].fetch) for key in keys if key in session.partitions]

    def _is_enough(self, found: ReadResult) -> bool:
        return (
            found.size >= self._request.min_bytes
            or found.must_answer
            or (not found.rows and self._session is None)
            or (self._tells_committed and self._has_committed_news(found))
        )

    @property
    def _tells_committed(self) -> bool:
        """Where consumers read from followers, these are told at once how far they may."""
        return self._request.replica_id >= 0 and self._session is not None and self._handler.cluster.selects_by_rack()

    def _has_committed_news(self, found: ReadResult) -> bool:
        assert self._session is not None
        known = self._session.partitions
        return any(key in known and row.high_watermark > known[key].high_watermark for key, row in found.rows)

    def _wait(self) -> None:
        self._state = "waiting"
        followed = self._followed
        if followed is not None:
            followed.wants_notes = self._tells_committed
            followed.waiting[self] = None
        else:
            is_replica = self._request.replica_id >= 0
            for partition in self._partitions():
                if is_replica:
                    self._watched_as_replica.append(partition.replica_waiters)
                    partition.replica_waiters.add(self)
                else:
                    self._watched.append(partition.waiters)
                    partition.waiters.add(self)
        loop = self._handler.environment.loop
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._guarded(self._time_is_up))

    def wake(self) -> None:
        """A partition moved. The look at it is put off to the end of this turn, when more may have arrived."""
        self._wake()

    def moved(self, key: Key) -> None:
        """A partition of the follower's session did."""
        self._grown[key] = None
        self._wake()

    def grown(self, partition: Partition) -> None:
        self.wake()

    def noted(self, partition: Partition) -> None:
        """A follower without a session is told when it fetches again."""

    def _wake(self) -> None:
        if self._state == "waiting":
            self._state = "woken"
            self._handler.environment.loop.call_soon(self._guarded(self._look_again))

    def _look_again(self) -> None:
        if self._state != "woken":
            return
        # Only what woke a follower: it may follow thousands, and of the others its session says nothing.
        followed = self._followed
        if followed is None:
            found = self._read()
        else:
            wanted = self._of_session(followed, self._grown)
            found = self._handler.read(wanted, self._request, self._version, is_arrival=False)
        self._grown.clear()
        if self._is_enough(found):
            self._answer(found)
        else:
            self._state = "waiting"

    def _time_is_up(self) -> None:
        if self._state in ("waiting", "woken"):
            self._answer(self._read())

    def give_up(self) -> None:
        """The client is gone."""
        self._leave()

    def _leave(self) -> None:
        self._state = "done"
        for waiters in self._watched:
            waiters.discard(self)
        for followers in self._watched_as_replica:
            followers.discard(self)
        self._watched.clear()
        self._watched_as_replica.clear()
        if self._followed is not None:
            self._followed.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer(self, found: ReadResult) -> None:
        self._leave()
        cold = [row.records for _, row in found.rows if isinstance(row.records, Slice) and not row.records.ready]
        if not cold:
            self._finish(found.rows)
            return
        prepared = self._handler.environment.offload(lambda: _prepare(cold))
        prepared.add_done_callback(lambda done: self._finish(_with_failures(found.rows, done.result())))

    def _finish(self, rows: list[Row]) -> None:
        if self._request.replica_id >= 0:
            self._handler.count_sent(rows, self._request, self._version >= FIRST_WITH_TOPIC_ID)
        if self._session is None:
            self._deliver(_by_topic(rows), ErrorCode.NONE, 0)
            return
        whole = self._request.session_epoch == 0
        told = [(key, row) for key, row in rows if self._is_news(key, row, whole)]
        self._session.move_to_end(key for key, row in told if row.records is not None and row.records.length)
        self._deliver(_by_topic(told), ErrorCode.NONE, self._session.id)

    def _is_news(self, key: Key, row: PartitionResult, whole: bool) -> bool:
        """Whether an answer in a session must speak of this partition; if so, remembers what was said."""
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
            # After an error the next answer speaks of the partition again, whatever it has to say.
            known.high_watermark = -1 if row.error else row.high_watermark
            known.log_start_offset = -1 if row.error else row.log_start_offset
        return news


def _prepare(slices: list[Slice]) -> dict[int, KafkaError]:
    """Reads ahead and verifies; runs in a thread. Returns the slices that are damaged."""
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
