"""The tail of a topic, shared by all streams that have caught up: records are fetched, decoded and rendered once.

A tail keeps the last few megabytes as chunks. A stream that is too slow leaves the tail, reads on its own until it
has caught up, and comes back. Streams never wait for each other. A tail without readers ends.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import Record
from millstream.gateway.consumers.bodies import RecordView
from millstream.gateway.consumers.fetches import FetchedPartition, PendingFetches, fair_share
from millstream.gateway.http.errors import INTERNAL_ERROR, json_bytes
from millstream.gateway.identity.caller import Connection
from millstream.gateway.streams.positions import Positions
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition, UnreadableError, WireError
from millstream.raw_client.errors import UNREADABLE

_KEPT_BYTES = 4 << 20
TROUBLE_SECONDS = 3.0
"""How long nothing can be read before readers get an event; a leader change takes less."""
_PAUSE_SECONDS = 1.0
_PARTITION_CHECK_SECONDS = 60.0
"""Interval of the check for new partitions."""

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Chunk:
    """Records of one fetch, and the positions after them."""

    records: list[tuple[TopicPartition, Record]]
    after: Positions
    size: int
    notes: list[dict[str, Any]] = field(default_factory=list)
    """Ranges that were skipped because the records are deleted or damaged."""
    troubles: dict[int, str] = field(default_factory=dict)
    """Partitions that cannot be read, and why; the others go on."""
    shown: dict[Hashable, list[bytes]] = field(default_factory=dict)
    """By format and mask, the JSON of each record."""

    def show(self, format_: Hashable, view: RecordView) -> list[bytes]:
        """Blocks, once for all readers of this format and mask."""
        found = self.shown.get(format_)
        if found is None:
            found = self.shown[format_] = [json_bytes(view.shown(*each)) for each in self.records]
        return found


async def chunk_of(
    completed: Mapping[TopicPartition, FetchedPartition], tools: "StreamResources", positions: Positions
) -> Chunk:
    records = [(place, record) for place in sorted(completed) for record in completed[place].records]
    after = {place.partition: part.next_offset for place, part in completed.items()}
    size = sum(len(record.key or b"") + len(record.value or b"") + 100 for _, record in records)
    chunk = Chunk(records, after, size)
    for place, part in completed.items():
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            wanted = positions[place.partition]
            found = await tools.call(partial(_nearest, tools.cluster, place, wanted))
            chunk.after[place.partition] = found
            chunk.notes.append({"partition": place.partition, "from": wanted, "to": found})
        elif part.error is ErrorCode.MESSAGE_TOO_LARGE:
            chunk.after[place.partition] = positions[place.partition]
            chunk.troubles[place.partition] = (
                f"{place}: the batch at offset {positions[place.partition]} exceeds the limits of this gateway; "
                f"continue at offset {part.next_offset}, or start the gateway with a larger --limit "
                "max_batch_records or max_batch_bytes"
            )
        elif part.error in UNREADABLE:
            wanted = positions[place.partition]
            if part.next_offset > wanted:
                reason = "the records of this batch are damaged"
                chunk.notes.append(
                    {"partition": place.partition, "from": wanted, "to": part.next_offset, "reason": reason}
                )
            else:
                chunk.troubles[place.partition] = str(UnreadableError(place, wanted, part.error))
        elif part.error:
            raise WireError(f"{place} cannot be read ({part.error.name})")
    return chunk


def _nearest(cluster: Cluster, place: TopicPartition, wanted: int) -> int:
    first = cluster.offsets({place: EARLIEST})[place].offset
    return first if wanted < first else cluster.offsets({place: LATEST})[place].offset


@dataclass(frozen=True, slots=True)
class StreamResources:
    """Shared by all streams of one caller."""

    connection: Connection
    calls: CapacityLimiter
    reads: CapacityLimiter
    open: Callable[[], int]
    """The number of open streams."""
    opening: OpeningLimits
    """Limits of one fetched batch."""

    @property
    def cluster(self) -> Cluster:
        return self.connection.cluster

    @property
    def is_revoked(self) -> bool:
        """Whether the cluster does not accept the caller any more."""
        return self.connection.is_closed

    def fetches(self) -> PendingFetches:
        return PendingFetches(self.cluster, self.reads, lambda: fair_share(self.open()), self.opening)

    async def is_gone(self, topic: str) -> bool:
        """Whether the topic does not exist any more."""
        try:
            return topic not in await self.call(partial(self.cluster.topics, [topic]))
        except WireError:
            return False

    async def call(self, call: Callable[[], Any]) -> Any:
        return await to_thread.run_sync(call, limiter=self.calls)


class Tail:
    def __init__(self, tools: StreamResources, topic: str, *, fixed: bool, positions: Positions) -> None:
        """`fixed`: reads these partitions, and none that are added."""
        self.readers = 0
        self.trouble: str | None = None
        self.is_gone = False
        """The topic was deleted."""
        self.first = 0
        """The number of the oldest chunk that is kept."""
        self._tools = tools
        self._topic = topic
        self._fixed = fixed
        self._positions = dict(positions)
        self._said: dict[int, str] = {}
        """Reported errors of partitions, which are tried again and again."""
        self._chunks: deque[Chunk] = deque()
        self._begins = dict(positions)
        """Where the oldest chunk that is kept begins."""
        self._bytes = 0
        self._news = asyncio.Event()
        self._wake = asyncio.Event()
        self._looked_at = time.monotonic()
        self._running = asyncio.create_task(self._run())

    @property
    def end(self) -> int:
        """The number of the next chunk."""
        return self.first + len(self._chunks)

    def covers(self, positions: Positions) -> bool:
        """Whether a stream at these positions can continue with the chunks that are kept."""
        return all(offset >= self._begins.get(partition, 0) for partition, offset in positions.items())

    def get(self, number: int) -> Chunk | None:
        """None if it is not kept any more."""
        return self._chunks[number - self.first] if number >= self.first else None

    async def news(self, number: int, within_s: float) -> bool:
        """Waits for the chunk with this number; False after the timeout."""
        if number >= self.end and not self.trouble:
            try:
                await asyncio.wait_for(self._news.wait(), within_s)
            except TimeoutError:
                pass
        return number < self.end

    def close(self) -> None:
        self._running.cancel()

    async def _run(self) -> None:
        fetches = self._tools.fetches()
        try:
            while True:
                await self._step(fetches)
        finally:
            fetches.close()

    async def _step(self, fetches: PendingFetches) -> None:
        places = {TopicPartition(self._topic, number): offset for number, offset in self._positions.items()}
        try:
            completed = await fetches.next(places, _PARTITION_CHECK_SECONDS, self._wake, TROUBLE_SECONDS)
            chunk = await chunk_of(completed, self._tools, self._positions)
            is_news = not chunk.troubles.items() <= self._said.items()
            if is_news or any(chunk.after[each] != self._positions[each] for each in chunk.after):
                self._add(chunk)
                self._said |= chunk.troubles
            if not self._fixed and time.monotonic() - self._looked_at >= _PARTITION_CHECK_SECONDS:
                await self._find_partitions()
            self.trouble = None
        except WireError as error:
            _log.info("stream_error topic=%s reason=%s", self._topic, error)
            self.trouble = str(error)
            self.is_gone = await self._tools.is_gone(self._topic)
            self._notify()
            await asyncio.sleep(_PAUSE_SECONDS)
        except Exception:  # a bug of the gateway must not leave readers waiting
            _log.exception("stream_broken topic=%s", self._topic)
            self.trouble = INTERNAL_ERROR
            self._notify()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _find_partitions(self) -> None:
        count = await self._tools.call(partial(self._tools.cluster.partitions_of, self._topic))
        for number in range(count):
            self._positions.setdefault(number, 0)
        self._looked_at = time.monotonic()

    def _add(self, chunk: Chunk) -> None:
        self._positions |= chunk.after
        if any(note["to"] < note["from"] for note in chunk.notes):
            # The log was truncated or replaced: chunks of the old one do not continue here.
            self.first = self.end
            self._chunks.clear()
            self._begins, self._bytes = dict(self._positions), 0
        self._chunks.append(chunk)
        self._bytes += chunk.size
        while self._bytes > _KEPT_BYTES and len(self._chunks) > 1:
            oldest = self._chunks.popleft()
            self._bytes -= oldest.size
            self._begins |= oldest.after
            self.first += 1
        self._notify()

    def _notify(self) -> None:
        waiters, self._news = self._news, asyncio.Event()
        waiters.set()


class Tails:
    """The tails, by topic and partitions."""

    def __init__(self, tools: StreamResources) -> None:
        self.tools = tools
        self._tails: dict[tuple[str, tuple[int, ...] | None], Tail] = {}

    def join(self, topic: str, partitions: tuple[int, ...] | None, positions: Positions) -> Tail | None:
        """For a stream that has caught up; None if it is behind the chunks that are kept."""
        name = (topic, partitions)
        tail = self._tails.get(name)
        if tail is None:
            tail = self._tails[name] = Tail(self.tools, topic, fixed=partitions is not None, positions=positions)
        elif not tail.covers(positions):
            return None
        tail.readers += 1
        return tail

    def leave(self, topic: str, partitions: tuple[int, ...] | None) -> None:
        tail = self._tails[topic, partitions]
        tail.readers -= 1
        if not tail.readers:
            tail.close()
            del self._tails[topic, partitions]

    def __len__(self) -> int:
        return len(self._tails)
