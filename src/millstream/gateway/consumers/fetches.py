"""Pending fetches of a reader (an HTTP consumer or a stream): they wait for records without a thread.

Each fetch is a request on its own connection; the event loop waits for the connection to become readable. Threads are
used only to send the request and to read the response.

`PendingFetches` keeps one fetch pending for each position that its reader wants. When a position changes (seek,
rebalance), the old fetch is cancelled and a new one is sent at once on another connection, because a broker answers
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
Answer = TypeVar("Answer")

_LAST_WITH_NAMES = 12
"""Later versions of Fetch go by topic ids."""
_LONGEST_WAIT_MS = 60_000
_BUDGET_BYTES, _MOST_BYTES, _FEWEST_BYTES = 64 << 20, 1 << 20, 64 << 10
_MOST_RECORDS = 10_000
"""Of one partition that are kept ahead."""
_MOST_HELD_BYTES = 8 << 20
"""Of their keys and values; one record that is larger is kept all the same."""
_SEND_S = 10.0
_ANSWER_S = 10.0
"""How much later than the wait it was asked for an answer may be."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
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
    """What a fetch brought of one partition."""

    records: list[Record]
    next_offset: int
    """Where to read on: behind the last record, or behind what is not shown, such as markers of transactions; with an
    error, behind the batch that cannot be read, if that is known."""
    error: ErrorCode = ErrorCode.NONE


@dataclass(eq=False, slots=True)
class _Flight:
    wanted: dict[TopicPartition, int]
    task: "asyncio.Task[dict[TopicPartition, FetchedPartition]]"

    def give_up(self) -> None:
        if not self.task.cancel() and not self.task.cancelled():
            self.task.exception()  # asked for, or else asyncio complains that nobody did


@dataclass(slots=True)
class _Trouble:
    """Why some positions cannot be read just now."""

    error: WireError
    pause_s: float
    until: float
    since: float


@dataclass(slots=True)
class PendingFetches:
    cluster: Cluster
    threads: CapacityLimiter
    max_bytes: Callable[[], int]
    """Of one fetch; a batch that is larger comes all the same."""
    limits: OpeningLimits
    """Of one batch, when it is opened."""
    _flights: list[_Flight] = field(default_factory=list)
    _troubles: dict[TopicPartition, _Trouble] = field(default_factory=dict)

    async def next(
        self, positions: Positions, within_s: float, wake: asyncio.Event, trouble_s: float = math.inf
    ) -> dict[TopicPartition, FetchedPartition]:
        """What comes first for any of these positions, or nothing: because the time is up, or because `wake` was set
        (whoever does that has other positions to ask for). WireError if none of them could be read in the end, or for
        longer than `trouble_s`."""
        deadline = time.monotonic() + within_s
        tried = False
        while True:
            self._drop_void(positions)
            landed = self._landed(positions)
            if landed or wake.is_set():
                return landed
            left_s = deadline - time.monotonic()
            if tried:  # also without any time a fetch is sent, for the next call to find what it brought
                self._raise_trouble(positions, 0 if left_s <= 0 else trouble_s)
                if left_s <= 0:
                    return {}
            tried = True
            await self._launch(positions, left_s)
            await self._wait(positions, deadline, wake)

    def _raise_trouble(self, positions: Positions, for_s: float) -> None:
        """If all of the positions are in it, for so long, and no new fetch is under way for any of them."""
        resting = self._resting(positions)
        if positions and len(resting) == len(positions):
            latest = max(resting, key=lambda trouble: trouble.since)
            if time.monotonic() - latest.since >= for_s:
                raise latest.error

    def _resting(self, positions: Positions) -> list[_Trouble]:
        """The troubles of those for which the next fetch is not sent yet. (One that is, may wait for long and be well:
        what is wrong with a fetch is said at once.)"""
        in_the_air = self._in_the_air()
        return [
            self._troubles[item[0]]
            for item in positions.items()
            if item[0] in self._troubles and item not in in_the_air
        ]

    def _in_the_air(self) -> set[tuple[TopicPartition, int]]:
        return {item for flight in self._flights for item in flight.wanted.items()}

    def close(self) -> None:
        for flight in self._flights:
            flight.give_up()
        self._flights.clear()

    def _drop_void(self, positions: Positions) -> None:
        for flight in list(self._flights):
            if not any(positions.get(place) == offset for place, offset in flight.wanted.items()):
                flight.give_up()
                self._flights.remove(flight)

    def _landed(self, positions: Positions) -> dict[TopicPartition, FetchedPartition]:
        found: dict[TopicPartition, FetchedPartition] = {}
        for flight in [each for each in self._flights if each.task.done()]:
            self._flights.remove(flight)
            try:
                parts = flight.task.result()
            except WireError as error:
                for place in flight.wanted:
                    self._trouble(place, error)
                continue
            for place, part in parts.items():
                if positions.get(place) != flight.wanted[place]:
                    continue
                if part.error in _MOVED:
                    self.cluster.refresh_leader(place.topic)
                    self._trouble(place, refusal(str(place), part.error))
                    continue
                if part.error in UNREADABLE:  # the others go on meanwhile
                    self._trouble(place, UnreadableError(place, flight.wanted[place], part.error))
                elif part.error is ErrorCode.MESSAGE_TOO_LARGE:
                    self._trouble(place, refusal(str(place), part.error))
                else:
                    self._troubles.pop(place, None)
                if part.error or part.next_offset != flight.wanted[place]:
                    found[place] = part
        return found

    def _trouble(self, place: TopicPartition, error: WireError) -> None:
        before = self._troubles.get(place)
        pause_s = min(before.pause_s * 2, _LONGEST_PAUSE_S) if before else _FIRST_PAUSE_S
        now = time.monotonic()
        self._troubles[place] = _Trouble(error, pause_s, now + pause_s, before.since if before else now)

    async def _launch(self, positions: Positions, left_s: float) -> None:
        in_the_air = self._in_the_air()
        now = time.monotonic()
        wanted = {
            place: offset
            for place, offset in positions.items()
            if (place, offset) not in in_the_air and (place not in self._troubles or self._troubles[place].until <= now)
        }
        if not wanted:
            return
        by_leader = await self._in_thread(lambda: self._by_leader(wanted))
        wait_ms = max(1, min(int(left_s * 1000), _LONGEST_WAIT_MS))
        for node, rows in by_leader.items():
            offsets = {place: wanted[place] for place in rows}
            task = asyncio.create_task(self._fly(node, rows, offsets, wait_ms))
            self._flights.append(_Flight(offsets, task))

    def _by_leader(self, wanted: Positions) -> dict[int, dict[TopicPartition, int]]:
        """Partitions by the node that leads them, with the epoch; those that nobody leads are in trouble."""
        found: dict[int, dict[TopicPartition, int]] = {}
        for place in wanted:
            try:
                leader = self.cluster.leader_of(place, Deadline(_SEND_S, once=True))
            except WireError as error:
                self._trouble(place, error)
                continue
            found.setdefault(leader.node_id, {})[place] = leader.epoch
        return found

    async def _wait(self, positions: Positions, deadline: float, wake: asyncio.Event) -> None:
        """Until a fetch lands, `wake` is set, the time is up, or a pause after trouble ends."""
        until = min([deadline, *(trouble.until for trouble in self._resting(positions))])
        waking = asyncio.create_task(wake.wait())
        try:
            tasks = {waking, *(flight.task for flight in self._flights)}
            await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    async def _fly(
        self, node: int, epochs: dict[TopicPartition, int], wanted: dict[TopicPartition, int], wait_ms: int
    ) -> dict[TopicPartition, FetchedPartition]:
        request = _request(wanted, epochs, self.max_bytes(), wait_ms)
        borrowed, connection, sent = await self._in_thread(lambda: self._send(node, request))
        try:
            await _readable(connection.fileno(), wait_ms / 1000 + _ANSWER_S)
            return await self._in_thread(lambda: _read(connection, sent, wanted, self.limits))
        except TimeoutError:
            connection.close()
            raise ConnectionLostError(str(connection.address), "did not answer in time", late=True) from None
        except ConnectionLostError:
            for place in wanted:
                self.cluster.refresh_leader(place.topic)
            raise
        finally:
            if not connection.idle:
                connection.close()  # its answer may still come, and nobody could tell it from the next one
            borrowed.__exit__(None, None, None)

    def _send(self, node: int, request: dict[str, Any]) -> tuple[AbstractContextManager[Connection], Connection, Sent]:
        borrowed = self.cluster.connection(node, Deadline(_SEND_S, once=True))
        connection = borrowed.__enter__()
        try:
            return borrowed, connection, connection.send("fetch", request, _SEND_S, at_most=_LAST_WITH_NAMES)
        except BaseException:
            with suppress(WireError):
                borrowed.__exit__(None, None, None)
            for topic in {row["topic"] for row in request["topics"]}:
                self.cluster.refresh_leader(topic)
            raise

    async def _in_thread(self, call: Callable[[], Answer]) -> Answer:
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


def _request(wanted: Positions, epochs: Positions, max_bytes: int, wait_ms: int) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for place, offset in wanted.items():
        topics.setdefault(place.topic, []).append(
            {
                "partition": place.partition,
                "current_leader_epoch": epochs[place],
                "fetch_offset": offset,
                "partition_max_bytes": max_bytes,
            }
        )
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": 1,
        "topics": [{"topic": name, "partitions": rows} for name, rows in topics.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _read(
    connection: Connection, sent: Sent, wanted: Positions, limits: OpeningLimits
) -> dict[TopicPartition, FetchedPartition]:
    answer = connection.receive(sent, _ANSWER_S)
    if answer.error_code:
        raise refusal("a fetch", error_code(answer.error_code))
    parts: dict[TopicPartition, FetchedPartition] = {}
    for topic in answer.responses:
        for row in topic.partitions:
            place = TopicPartition(topic.topic, row.partition_index)
            if place in wanted:
                parts[place] = _part(row, wanted[place], limits, _MOST_HELD_BYTES // len(wanted))
    return parts


def _part(row: Message, wanted: int, limits: OpeningLimits, most_bytes: int) -> FetchedPartition:
    """What is shown of a partition. Of many or large records only the first: the next fetch has the others."""
    if row.error_code:
        return FetchedPartition([], wanted, error_code(row.error_code))
    aborted = AbortedTransactions((each.producer_id, each.first_offset) for each in row.aborted_transactions or ())
    data = memoryview(row.records or b"")
    records: list[Record] = []
    next_offset, end, held = wanted, 0, 0
    for at, header in iterate_headers(data):
        end = at + header.size
        if not aborted.hide(header) and header.last_offset >= wanted:
            last = min(header.last_offset, max(wanted, header.base_offset) + _MOST_RECORDS - len(records) - 1)
            try:
                found = _records(data, at, header, max(wanted, header.base_offset), last, limits)
            except KafkaError as error:
                if next_offset > wanted:
                    return FetchedPartition(records, next_offset)  # what is wrong is said when it is its turn
                too_much = isinstance(error, BeyondLimitsError)
                code = ErrorCode.MESSAGE_TOO_LARGE if too_much else ErrorCode.CORRUPT_MESSAGE
                return FetchedPartition([], header.last_offset + 1, code)
            for record in found:
                held += len(record.key or b"") + len(record.value or b"")
                if records and held > most_bytes:
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
    """Whether it is no batch, nor the beginning of one."""
    return len(rest) >= HEADER_SIZE and not is_plausible(read_header(rest))


def fair_share(readers: int) -> int:
    """How much each of so many readers may fetch at once, so that all together stay within what is kept for them."""
    return min(_MOST_BYTES, max(_FEWEST_BYTES, _BUDGET_BYTES // max(1, readers)))
