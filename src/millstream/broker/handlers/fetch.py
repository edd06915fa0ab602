"""Fetch: find the bytes, wait for them if need be, and hand over stretches of files; never a record, never a copy.

A fetch answers at once if it has `min_bytes`, an error to tell, or no time to wait. Otherwise it waits on its
partitions and is woken by an append; nothing polls. Bytes that are not in the page cache, or that this process has
not verified, are read ahead and checked in a thread before they are sent.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from millstream.broker.fetch_sessions import FetchSession, FetchSessions, Key, SessionPartition
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.protocol.fetch import (
    FIRST_WITH_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    PartitionResult,
)
from millstream.storage.slice import Slice

OPENED_PER_TURN = 8
_log = logging.getLogger("millstream.broker")

Row = tuple[Key, PartitionResult]
Topics = list[tuple[bytes, list[PartitionResult]]]
Deliver = Callable[[Topics, int, int], None]
"""Takes the answer: topics, top-level error, session id."""


class FetchHandler:
    def __init__(
        self, partitions: PartitionTable, environment: Environment, *, session_slots: int, max_bytes: int
    ) -> None:
        self.partitions = partitions
        self.environment = environment
        self.sessions = FetchSessions(session_slots, environment.randomness)
        self._max_bytes = max_bytes

    def fetch(self, request: FetchRequest, version: int, deliver: Deliver) -> "FetchWait | None":
        """Answers through `deliver`, now or later; returns what waits, so that it can be given up."""
        try:
            session = self.sessions.resolve(request, version, self.environment.loop.time())
        except KafkaError as error:
            deliver([], error.code, 0)
            return None
        operation = FetchWait(self, request, version, session, deliver)
        operation.start()
        return operation

    def read(self, wanted: Iterable[tuple[Key, FetchPartition]], request: FetchRequest, by_id: bool) -> "ReadResult":
        """Looks at every wanted partition once, within the request's limits."""
        result = ReadResult()
        left = min(request.max_bytes, self._max_bytes)
        topics = self.partitions.by_id if by_id else self.partitions.by_name
        for key, fetch in wanted:
            topic = topics.get(key[0])
            partition = topic.get(fetch.partition) if topic is not None else None
            if partition is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.rows.append((key, PartitionResult(fetch.partition, code)))
                result.has_error = True
                continue
            try:
                row = self._read_partition(partition, fetch, left, not result.size)
            except (KafkaError, OSError) as error:
                code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
                result.rows.append((key, PartitionResult(fetch.partition, code)))
                result.has_error = True
                continue
            if row.diverging_epoch is not None:
                result.has_error = True
            elif row.records is not None:
                result.size += row.records.length
                left -= row.records.length
            result.rows.append((key, row))
        return result

    def _read_partition(
        self, partition: Partition, fetch: FetchPartition, left: int, at_least_one: bool
    ) -> PartitionResult:
        log = partition.log
        if fetch.current_leader_epoch != partition.leader_epoch:
            partition.check_leader_epoch(fetch.current_leader_epoch)
        committed = partition.high_watermark
        if fetch.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_of_epoch(fetch.last_fetched_epoch)
            if end < fetch.fetch_offset or epoch < fetch.last_fetched_epoch:
                return PartitionResult(
                    fetch.partition, 0, committed, committed, log.log_start_offset, diverging_epoch=(epoch, end)
                )
        records: Slice | None = None
        if fetch.fetch_offset == committed:
            pass  # at the end: the usual case of a consumer that keeps up
        elif left > 0 or at_least_one:
            records = log.read(
                fetch.fetch_offset, min(fetch.max_bytes, max(left, 0)), up_to=committed, at_least_one=at_least_one
            )
        return PartitionResult(fetch.partition, 0, committed, committed, log.log_start_offset, None, -1, records)


class ReadResult:
    """What one look at the logs gave."""

    __slots__ = ("has_error", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.has_error = False


class FetchWait:
    """One fetch from its arrival to its answer."""

    __slots__ = ("_deliver", "_handler", "_request", "_session", "_state", "_timer", "_version", "_watched")

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
        self._watched: list[Partition] = []
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
        for (topic, index), _ in self._wanted():
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
        found = self._read()
        if self._is_enough(found) or self._request.max_wait_ms <= 0:
            self._answer(found)
        else:
            self._wait()

    def _read(self) -> ReadResult:
        return self._handler.read(self._wanted(), self._request, self._version >= FIRST_WITH_TOPIC_ID)

    def _is_enough(self, found: ReadResult) -> bool:
        return found.size >= self._request.min_bytes or found.has_error or (not found.rows and self._session is None)

    def _wait(self) -> None:
        self._state = "waiting"
        for partition in self._partitions():
            partition.waiters.add(self)
            self._watched.append(partition)
        loop = self._handler.environment.loop
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._guarded(self._time_is_up))

    def wake(self) -> None:
        """A partition moved. The look at it is put off to the end of this turn, when more may have arrived."""
        if self._state == "waiting":
            self._state = "woken"
            self._handler.environment.loop.call_soon(self._guarded(self._look_again))

    def _look_again(self) -> None:
        if self._state != "woken":
            return
        found = self._read()
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
        for partition in self._watched:
            partition.waiters.discard(self)
        self._watched.clear()
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
