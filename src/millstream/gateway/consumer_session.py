"""One consumer over HTTP: a member of its group, where it is in each of its partitions, and what it has fetched ahead.

A position moves only when records are handed out, in the moment before the answer is sent. What was fetched and not
handed out, or belonged to a poll whose caller went away, is still before the position and comes again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from millstream.gateway.consumer_flights import Flights, Part
from millstream.gateway.consumer_member import FencedError, GroupMember
from millstream.gateway.errors import BadRequestError
from millstream.gateway.kafka_errors import trouble_with
from millstream.model.errors import ErrorCode
from millstream.records.record import Record
from millstream.wire import EARLIEST, LATEST, Cluster, TopicPartition, WireError

RESETS = {"earliest": EARLIEST, "latest": LATEST}
_SETTLE_S = 5.0
_RETRY_S = 1.0
_RECORD_OVERHEAD = 64

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Tools:
    """What all consumers of a gateway share."""

    cluster: Cluster
    calls: CapacityLimiter
    """For heartbeats, commits and questions."""
    reads: CapacityLimiter
    """For fetches."""
    fetch_bytes: Callable[[], int]
    """How much one of them may fetch at once, and so keep ahead."""


class Holding(NamedTuple):
    """A partition that is ours."""

    place: TopicPartition
    position: int | None
    """The next offset to be handed out; None: not known yet."""
    committed: int | None
    leaving: bool
    """To go to another member."""


class Batch:
    """Records that may be handed out: where each partition is before and after."""

    def __init__(self) -> None:
        self.records: list[tuple[TopicPartition, Record]] = []
        self.bytes = 0
        self.before: dict[TopicPartition, int] = {}
        self.after: dict[TopicPartition, int] = {}


class Session:
    """Lives in the event loop. Errors for callers are BadRequestError and WireError."""

    def __init__(self, tools: Tools, group: str, instance: str, reset: str, idle_s: float) -> None:
        self.group = group
        self.instance = instance
        self.reset = reset
        self.idle_s = idle_s
        self.polling = False
        self.used_at = time.monotonic()
        self._tools = tools
        self._member = GroupMember(tools.cluster, tools.calls, group, self)
        self._flights = Flights(tools.cluster, tools.reads, tools.fetch_bytes)
        self._positions: dict[TopicPartition, int] = {}
        """The next record to hand out."""
        self._reached: dict[TopicPartition, int] = {}
        """How far the position ever was: so far may be committed, also after a seek back."""
        self._settled: dict[TopicPartition, int] = {}
        """Up to here nothing is open: where it began, or what the caller has committed since."""
        self._committed: dict[TopicPartition, int] = {}
        self._ahead: dict[TopicPartition, Part] = {}
        """Fetched from the position on, and not handed out yet."""
        self._changed = asyncio.Event()
        self._placing: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._stopping = False
        self._closed = False
        self._leaving: set[TopicPartition] = set()
        """To go to another member as soon as the caller has committed what it got of them, or goes on without."""

    # Life

    async def subscribe(self, topics: Collection[str]) -> None:
        known = await self._call(lambda: self._tools.cluster.topics(topics))
        missing = sorted(set(topics) - set(known))
        if missing:
            raise BadRequestError(
                404, f"there is no topic {', '.join(missing)}", "create it first, or look at its name", code=40403
            )
        await self._member.join(topics)

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        for task in self._placing:
            task.cancel()
        self._flights.close()
        self._ahead.clear()
        await self._member.leave()

    def stop(self) -> None:
        """A poll that waits ends with what there is."""
        self._stopping = True
        self._changed.set()

    def touch(self) -> None:
        self.used_at = time.monotonic()

    @property
    def expires_in_s(self) -> float:
        """Not while somebody polls."""
        return self.idle_s if self.polling else max(0.0, self.used_at + self.idle_s - time.monotonic())

    @property
    def topics(self) -> tuple[str, ...]:
        return self._member.topics

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def failure(self) -> BadRequestError | None:
        return self._member.failure

    # What is ours, as the member hears of it

    def leaving(self, places: Collection[TopicPartition]) -> Collection[TopicPartition]:
        for place in places:
            self._ahead.pop(place, None)
        busy = {place for place in places if self._reached.get(place, 0) > self._settled.get(place, 0)}
        self._leaving |= busy
        self._changed.set()
        return busy

    def revoked(self, places: Collection[TopicPartition]) -> None:
        self._leaving.difference_update(places)
        for place in places:
            self._settled.pop(place, None)
            self._positions.pop(place, None)
            self._reached.pop(place, None)
            self._committed.pop(place, None)
            self._ahead.pop(place, None)
        self._changed.set()

    def assigned(self, places: Collection[TopicPartition]) -> None:
        task = asyncio.create_task(self._place(list(places)))
        self._placing.add(task)
        task.add_done_callback(self._placing.discard)

    async def _place(self, places: list[TopicPartition]) -> None:
        """Where to begin: after what the group committed, or where `reset` says."""
        while places := [place for place in places if place in self._member.partitions]:
            try:
                committed, begins = await self._call(partial(self._beginnings, places))
            except WireError as error:
                logger.info("consumer_not_placed group=%s reason=%s", self.group, error)
                await asyncio.sleep(_RETRY_S)
                continue
            for place in places:
                if place in self._member.partitions:
                    self._committed[place] = committed.get(place, -1)
                    self._positions[place] = self._reached[place] = self._settled[place] = begins[place]
            break
        self._changed.set()

    def _beginnings(self, places: list[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        cluster = self._tools.cluster
        committed = cluster.committed_offsets(self.group, places)
        new = {place: RESETS[self.reset] for place in places if place not in committed}
        ends = {place: row.offset for place, row in (cluster.offsets(new) if new else {}).items()}
        return committed, committed | ends

    @property
    def assignment(self) -> list[Holding]:
        return [
            Holding(
                place,
                self._positions.get(place),
                None if self._committed.get(place, -1) < 0 else self._committed[place],
                place in self._leaving,
            )
            for place in sorted(self._member.partitions)
        ]

    # Polling

    async def next(self, max_records: int, max_bytes: int, timeout_s: float) -> Batch:
        """What may be handed out, at least one record unless the time is up; `hand_out` makes it so."""
        deadline = time.monotonic() + timeout_s
        self._member.release(self._leaving)  # whoever asks for more has done with what it got
        while True:
            self._check()
            self._changed.clear()
            batch = self._collect(max_records, max_bytes)
            left_s = deadline - time.monotonic()
            if batch.records or left_s <= 0 or self._stopping:
                return batch
            empty = {
                place: offset
                for place, offset in self._positions.items()
                if place not in self._ahead and place not in self._leaving
            }
            landed = await self._flights.next(empty, left_s, self._changed)
            await self._take(landed)

    async def _take(self, landed: Mapping[TopicPartition, Part]) -> None:
        for place, part in landed.items():
            if place not in self._positions or place in self._leaving:
                continue
            if part.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset(place)
            elif part.error:
                found = trouble_with(part.error, f"{place} cannot be read at offset {self._positions[place]}")
                raise BadRequestError(found.status, f"{found.message} ({part.error.name})", found.hint, code=found.code)
            elif part.records:
                self._ahead[place] = part
            else:  # only what is not shown, so nothing that anybody could commit
                settled = self._settled[place] >= self._positions[place]
                self._move(place, part.next_offset)
                if settled:
                    self._settled[place] = self._positions[place]

    async def _reset(self, place: TopicPartition) -> None:
        """What was to be read next was deleted in the meantime."""
        ends = await self._call(lambda: self._tools.cluster.offsets({place: RESETS[self.reset]}))
        if place in self._positions:
            logger.warning("consumer_reset group=%s partition=%s to=%d", self.group, place, ends[place].offset)
            self._positions[place] = self._reached[place] = self._settled[place] = ends[place].offset

    def _collect(self, max_records: int, max_bytes: int) -> Batch:
        """From what was fetched ahead, another partition first each time."""
        batch = Batch()
        places = sorted(self._ahead)
        self._turn += 1
        first = self._turn % len(places) if places else 0
        for place in places[first:] + places[:first]:
            part = self._ahead[place]
            for index, record in enumerate(part.records):
                size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
                full = len(batch.records) >= max_records or batch.bytes + size > max_bytes
                if full and batch.records:
                    if index:
                        batch.after[place] = record.offset
                    break
                batch.records.append((place, record))
                batch.bytes += size
            else:
                batch.after[place] = part.next_offset
            if place in batch.after:
                batch.before[place] = self._positions[place]
            if len(batch.records) >= max_records or batch.bytes >= max_bytes:
                break
        return batch

    def hand_out(self, batch: Batch) -> bool:
        """Moves the positions; False if in the meantime something of it was taken away or moved."""
        if any(self._positions.get(place) != offset for place, offset in batch.before.items()):
            return False
        for place, offset in batch.after.items():
            self._move(place, offset)
        return True

    def take_back(self, batch: Batch) -> None:
        """The answer did not go out."""
        for place, offset in batch.before.items():
            if self._positions.get(place) == batch.after[place]:
                self._positions[place] = offset
                if self._reached[place] == batch.after[place]:
                    self._reached[place] = offset
                self._ahead.pop(place, None)

    def _move(self, place: TopicPartition, offset: int) -> None:
        self._positions[place] = offset
        self._reached[place] = max(self._reached[place], offset)
        part = self._ahead.pop(place, None)
        if part is not None and part.next_offset > offset:
            rest = [record for record in part.records if record.offset >= offset]
            if rest:
                self._ahead[place] = Part(rest, part.next_offset)

    # Offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
        """What was handed out; all of it if none are named."""
        self._check()
        if offsets is None:
            offsets = {place: at for place, at in self._positions.items() if at != self._committed.get(place)}
        for place, offset in offsets.items():
            self._own(place)
            if offset > self._reached[place]:
                raise BadRequestError(
                    409,
                    f"{place} was handed out up to offset {self._reached[place] - 1}, and not to {offset - 1}",
                    f"commit {self._reached[place]} at most: the offset after the last record that was handed out",
                    code=40905,
                )
        if not offsets:
            return {}
        try:
            await self._member.commit(offsets)
        except FencedError:
            raise BadRequestError(
                409,
                f"group {self.group!r} went on without this consumer, and its partitions may be another member's",
                "poll again: what was not committed comes again, here or at another member",
                code=40904,
            ) from None
        for place, offset in offsets.items():
            if place in self._positions:
                self._committed[place] = self._settled[place] = offset
        self._member.release({place for place in self._leaving if self._settled[place] >= self._reached[place]})
        return dict(offsets)

    async def seek(self, place: TopicPartition, target: int | str) -> int:
        """To an offset, or to `earliest` or `latest`."""
        self._check()
        deadline = time.monotonic() + _SETTLE_S
        while place not in self._positions and place.topic in self.topics and time.monotonic() < deadline:
            if self._member.partitions and place not in self._member.partitions:
                break
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except TimeoutError:
                break
        self._own(place)
        first = (await self._call(lambda: self._tools.cluster.offsets({place: EARLIEST})))[place].offset
        end = (await self._call(lambda: self._tools.cluster.offsets({place: LATEST})))[place].offset
        offset = {"earliest": first, "latest": end}[target] if isinstance(target, str) else target
        if not first <= offset <= end:
            raise BadRequestError(
                416,
                f"{place} has no offset {offset}: its log goes from {first} to {end}",
                "give an offset between these, or earliest or latest",
                code=41601,
            )
        self._own(place)
        self._ahead.pop(place, None)
        self._positions[place] = offset
        self._reached[place] = max(self._reached[place], offset)
        return offset

    def _own(self, place: TopicPartition) -> None:
        if place.topic not in self.topics:
            raise BadRequestError(
                400,
                f"this consumer does not read {place.topic!r}",
                f"it reads {', '.join(self.topics)}: subscribe anew",
            )
        if place not in self._positions:
            raise BadRequestError(
                409,
                f"{place} is not this consumer's (any more): the group has given it to another member, or not yet here",
                "GET this consumer to see its partitions; what it did not commit comes again at whoever has it now",
                code=40904,
            )

    def _check(self) -> None:
        if self._closed:
            raise BadRequestError(
                410, "this consumer was closed", f"POST /consumers/{self.group}/subscribe to open one", code=41001
            )
        if self._member.failure is not None:
            raise self._member.failure

    async def _call(self, call: Callable[[], Answer]) -> Answer:
        return await to_thread.run_sync(call, limiter=self._tools.calls)
