"""Pending fetches of a reader (an HTTP consumer or a stream): they wait for records without a thread.

Each fetch is a request on its own connection; the event loop waits for the connection to become readable. Threads are
used only to send the request and to read the response.

`PendingFetches` keeps one fetch pending for each position that its reader wants. When a position changes (seek,
rebalance), the old fetch is cancelled and a new one is sent at once on another connection, because a broker serves
the requests of one connection in order.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.formats.records.aborted import AbortedTransactions
from millstream.formats.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    has_valid_checksum,
    is_plausible,
    iterate_headers,
    read_header,
)
from millstream.formats.records.opening import BeyondLimitsError, OpeningLimits, records_between
from millstream.formats.records.record import Record
from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.raw_client.connection import Connection, Sent
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import UNREADABLE, ConnectionLostError, UnreadableError, error_code, refusal

Positions = Mapping[TopicPartition, int]
Result = TypeVar("Result")

_LAST_WITH_NAMES = 12
"""Later versions of Fetch use topic ids."""
_LONGEST_WAIT_MS = 60_000
_SHARE_OF_TIMEOUT = 0.8
_BUDGET_BYTES, _MOST_BYTES, _FEWEST_BYTES = 64 << 20, 1 << 20, 64 << 10
_MOST_RECORDS = 10_000
"""Records of one partition that are kept ahead."""
_MOST_HELD_BYTES = 8 << 20
"""Size of their keys and values; a single larger record is kept."""
_SEND_SECONDS = 10.0
_RESPONSE_GRACE_SECONDS = 10.0
"""How much longer than the requested wait a response may take."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 1.0
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class FetchedPartition(NamedTuple):
    """The records of one partition that a fetch returned."""

    records: list[Record]
    next_offset: int
    """The next position: after the last record, or after records that are not shown, such as transaction markers. With
    an error: after the batch that cannot be read, if known."""
    error: ErrorCode = ErrorCode.NONE


@dataclass(eq=False, slots=True)
class _PendingFetch:
    wanted: dict[TopicPartition, int]
    task: "asyncio.Task[dict[TopicPartition, FetchedPartition]]"

    def give_up(self) -> None:
        if not self.task.cancel() and not self.task.cancelled():
            self.task.exception()  # retrieved, or asyncio logs that it was not


@dataclass(slots=True)
class _PartitionError:
    """The error of a position that cannot be read now, and when it is tried again."""

    error: WireError
    pause_s: float
    until: float
    since: float


@dataclass(slots=True)
class PendingFetches:
    cluster: Cluster
    threads: CapacityLimiter
    max_bytes: Callable[[], int]
    """Limit of one fetch; a single larger batch is returned."""
    limits: OpeningLimits
    """Limits of one batch when it is decompressed."""
    min_bytes: int = 1
    """A broker waits for so many bytes, or for the end of the timeout."""
    read_committed: bool = True
    _pending: list[_PendingFetch] = field(default_factory=list)
    _errors: dict[TopicPartition, _PartitionError] = field(default_factory=dict)

    async def next(
        self, positions: Positions, within_s: float, wake: asyncio.Event, error_s: float = math.inf
    ) -> dict[TopicPartition, FetchedPartition]:
        """The first results for any of these positions. Empty if the timeout expires or `wake` is set (the caller then
        has other positions). WireError if no position can be read at the timeout, or for longer than `error_s`."""
        deadline = time.monotonic() + within_s
        tried = False
        while True:
            self._cancel_stale(positions)
            completed = self._completed(positions)
            if completed or wake.is_set():
                return completed
            left_s = deadline - time.monotonic()
            if tried:  # also with a timeout of 0 a fetch is sent: the next call gets its result
                self._raise_error(positions, 0 if left_s <= 0 else error_s)
                if left_s <= 0:
                    return {}
            tried = True
            await self._send_fetches(positions, left_s)
            await self._wait(positions, deadline, wake)

    def _raise_error(self, positions: Positions, for_s: float) -> None:
        """Raises if all positions have had errors for so long, and no new fetch is pending for any of them."""
        paused = self._paused(positions)
        if positions and len(paused) == len(positions):
            latest = max(paused, key=lambda row: row.since)
            if time.monotonic() - latest.since >= for_s:
                raise latest.error

    def _paused(self, positions: Positions) -> list[_PartitionError]:
        """The errors of positions whose next fetch is not sent yet. (A pending fetch may be fine: errors come at
        once, records may take long.)"""
        pending = self._pending_positions()
        return [self._errors[item[0]] for item in positions.items() if item[0] in self._errors and item not in pending]

    def _pending_positions(self) -> set[tuple[TopicPartition, int]]:
        return {item for fetch in self._pending for item in fetch.wanted.items()}

    def close(self) -> None:
        for fetch in self._pending:
            fetch.give_up()
        self._pending.clear()

    def _cancel_stale(self, positions: Positions) -> None:
        for fetch in list(self._pending):
            if not any(positions.get(partition) == offset for partition, offset in fetch.wanted.items()):
                fetch.give_up()
                self._pending.remove(fetch)

    def _completed(self, positions: Positions) -> dict[TopicPartition, FetchedPartition]:
        found: dict[TopicPartition, FetchedPartition] = {}
        for fetch in [each for each in self._pending if each.task.done()]:
            self._pending.remove(fetch)
            try:
                parts = fetch.task.result()
            except WireError as error:
                for partition in fetch.wanted:
                    self._set_error(partition, error)
                continue
            for partition, part in parts.items():
                if positions.get(partition) != fetch.wanted[partition]:
                    continue
                if part.error in _MOVED:
                    self.cluster.refresh_leader(partition.topic)
                    self._set_error(partition, refusal(str(partition), part.error))
                    continue
                if part.error in UNREADABLE:  # other partitions go on
                    self._set_error(partition, UnreadableError(partition, fetch.wanted[partition], part.error))
                elif part.error is ErrorCode.MESSAGE_TOO_LARGE:
                    self._set_error(partition, refusal(str(partition), part.error))
                else:
                    self._errors.pop(partition, None)
                if part.error or part.next_offset != fetch.wanted[partition]:
                    found[partition] = part
        return found

    def _set_error(self, partition: TopicPartition, error: WireError) -> None:
        before = self._errors.get(partition)
        pause_s = min(before.pause_s * 2, _MAX_PAUSE_SECONDS) if before else _FIRST_PAUSE_SECONDS
        now = time.monotonic()
        self._errors[partition] = _PartitionError(error, pause_s, now + pause_s, before.since if before else now)

    async def _send_fetches(self, positions: Positions, left_s: float) -> None:
        pending = self._pending_positions()
        now = time.monotonic()
        wanted = {
            partition: offset
            for partition, offset in positions.items()
            if (partition, offset) not in pending
            and (partition not in self._errors or self._errors[partition].until <= now)
        }
        if not wanted:
            return
        by_leader = await self._in_thread(lambda: self._by_leader(wanted))
        # With `min_bytes` records may come at the end of the wait, and must be here before the caller's timeout.
        share = 1.0 if self.min_bytes <= 1 else _SHARE_OF_TIMEOUT
        wait_ms = max(1, min(int(left_s * 1000 * share), _LONGEST_WAIT_MS))
        for node, rows in by_leader.items():
            offsets = {partition: wanted[partition] for partition in rows}
            task = asyncio.create_task(self._fetch(node, rows, offsets, wait_ms))
            self._pending.append(_PendingFetch(offsets, task))

    def _by_leader(self, wanted: Positions) -> dict[int, dict[TopicPartition, int]]:
        """Partitions by their leader, with the leader epoch. Partitions without a leader get an error."""
        found: dict[int, dict[TopicPartition, int]] = {}
        for partition in wanted:
            try:
                leader = self.cluster.leader_of(partition, Deadline(_SEND_SECONDS, once=True))
            except WireError as error:
                self._set_error(partition, error)
                continue
            found.setdefault(leader.node_id, {})[partition] = leader.epoch
        return found

    async def _wait(self, positions: Positions, deadline: float, wake: asyncio.Event) -> None:
        """Waits until a fetch is complete, `wake` is set, the timeout expires, or a pause after an error ends."""
        until = min([deadline, *(row.until for row in self._paused(positions))])
        waking = asyncio.create_task(wake.wait())
        try:
            tasks = {waking, *(fetch.task for fetch in self._pending)}
            await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    async def _fetch(
        self, node: int, epochs: dict[TopicPartition, int], wanted: dict[TopicPartition, int], wait_ms: int
    ) -> dict[TopicPartition, FetchedPartition]:
        request = _request(wanted, epochs, self.max_bytes(), wait_ms, self.min_bytes, self.read_committed)
        borrowed, connection, sent = await self._in_thread(lambda: self._send(node, request))
        try:
            await _readable(connection.fileno(), wait_ms / 1000 + _RESPONSE_GRACE_SECONDS)
            return await self._in_thread(lambda: _read(connection, sent, wanted, self.limits))
        except TimeoutError:
            connection.close()
            raise ConnectionLostError(str(connection.address), "did not respond in time", late=True) from None
        except ConnectionLostError:
            for partition in wanted:
                self.cluster.refresh_leader(partition.topic)
            raise
        finally:
            if not connection.idle:
                connection.close()  # its response may still arrive, and would be taken for the next one
            borrowed.__exit__(None, None, None)

    def _send(self, node: int, request: dict[str, Any]) -> tuple[AbstractContextManager[Connection], Connection, Sent]:
        borrowed = self.cluster.connection(node, Deadline(_SEND_SECONDS, once=True))
        connection = borrowed.__enter__()
        try:
            return borrowed, connection, connection.send("fetch", request, _SEND_SECONDS, at_most=_LAST_WITH_NAMES)
        except BaseException:
            with suppress(WireError):
                borrowed.__exit__(None, None, None)
            for topic in {row["topic"] for row in request["topics"]}:
                self.cluster.refresh_leader(topic)
            raise

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await to_thread.run_sync(call, limiter=self.threads)


async def _readable(descriptor: int, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not arrived.done():
            arrived.set_result(None)

    loop.add_reader(descriptor, note)
    try:
        await asyncio.wait_for(arrived, timeout_s)
    finally:
        loop.remove_reader(descriptor)


def _request(
    wanted: Positions, epochs: Positions, max_bytes: int, wait_ms: int, min_bytes: int, read_committed: bool
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for partition, offset in wanted.items():
        topics.setdefault(partition.topic, []).append(
            {
                "partition": partition.partition,
                "current_leader_epoch": epochs[partition],
                "fetch_offset": offset,
                "partition_max_bytes": max_bytes,
            }
        )
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": min(min_bytes, max_bytes),
        "max_bytes": max_bytes,
        "isolation_level": int(read_committed),
        "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _read(
    connection: Connection, sent: Sent, wanted: Positions, limits: OpeningLimits
) -> dict[TopicPartition, FetchedPartition]:
    response = connection.receive(sent, _RESPONSE_GRACE_SECONDS)
    if response.error_code:
        raise refusal("a fetch", error_code(response.error_code))
    parts: dict[TopicPartition, FetchedPartition] = {}
    for topic in response.responses:
        for row in topic.partitions:
            partition = TopicPartition(topic.topic, row.partition_index)
            if partition in wanted:
                parts[partition] = _part(row, wanted[partition], limits, _MOST_HELD_BYTES // len(wanted))
    return parts


def _part(row: Message, wanted: int, limits: OpeningLimits, most_bytes: int) -> FetchedPartition:
    """The visible records of a partition. If they are many or large, only the first; the next fetch has the others."""
    if row.error_code:
        return FetchedPartition([], wanted, error_code(row.error_code))
    aborted = AbortedTransactions((each.producer_id, each.first_offset) for each in row.aborted_transactions or ())
    data = memoryview(row.records or b"")
    records: list[Record] = []
    next_offset, end, progress = wanted, 0, 0
    for at, header in iterate_headers(data):
        end = at + header.size
        if not aborted.hide(header) and header.last_offset >= wanted:
            last = min(header.last_offset, max(wanted, header.base_offset) + _MOST_RECORDS - len(records) - 1)
            try:
                found = _records(data, at, header, max(wanted, header.base_offset), last, limits)
            except KafkaError as error:
                if next_offset > wanted:
                    return FetchedPartition(records, next_offset)  # the error is reported by the next fetch
                too_much = isinstance(error, BeyondLimitsError)
                code = ErrorCode.MESSAGE_TOO_LARGE if too_much else ErrorCode.CORRUPT_MESSAGE
                return FetchedPartition([], header.last_offset + 1, code)
            for record in found:
                progress += len(record.key or b"") + len(record.value or b"")
                if records and progress > most_bytes:
                    return FetchedPartition(records, record.offset)
                records.append(record)
            if last < header.last_offset:
                return FetchedPartition(records, last + 1)
        next_offset = max(next_offset, header.last_offset + 1)
    if next_offset == wanted and _is_damaged(data[end:]):
        return FetchedPartition([], wanted, ErrorCode.CORRUPT_MESSAGE)
    return FetchedPartition(records, next_offset)


def _records(
    data: memoryview, at: int, header: BatchHeader, first: int, last: int, limits: OpeningLimits
) -> list[Record]:
    if not has_valid_checksum(data, at, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} has a wrong CRC")
    return records_between(header, data[at : at + header.size], first, last, limits)


def _is_damaged(rest: memoryview) -> bool:
    """Whether these bytes are neither a batch nor the beginning of one."""
    return len(rest) >= HEADER_SIZE and not is_plausible(read_header(rest))


def fair_share(readers: int) -> int:
    """The fetch limit of each of so many readers, so that all together stay within the budget."""
    return min(_MOST_BYTES, max(_FEWEST_BYTES, _BUDGET_BYTES // max(1, readers)))
