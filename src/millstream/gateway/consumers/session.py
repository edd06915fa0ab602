"""One consumer over HTTP: a member of its group, its fetches, and its progress through the partitions it is given."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from millstream.common.background_tasks import BackgroundTasks
from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.opening import OpeningLimits
from millstream.gateway.consumers.fetches import FetchedPartition, PendingFetches
from millstream.gateway.consumers.member import FencedError, GroupMember
from millstream.gateway.consumers.progress import Batch, PartitionProgress, Progress
from millstream.gateway.http.errors import ApiError, error_for_code, error_for_wire_error
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition, UnreadableError, WireError
from millstream.raw_client.errors import UNREADABLE

RESETS = {"earliest": EARLIEST, "latest": LATEST}
_SETTLE_S = 5.0
_RETRY_S = 1.0

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class SessionResources:
    """What all consumers of a gateway share."""

    cluster: Cluster
    calls: CapacityLimiter
    """For what callers wait for."""
    heartbeats: CapacityLimiter
    """Apart from these: when a coordinator is away, its members' heartbeats wait, and must keep nobody else out."""
    reads: CapacityLimiter
    """For fetches."""
    fetch_bytes: Callable[[], int]
    """How much one of them may fetch at once, and so keep ahead."""
    opening: OpeningLimits
    """Of one batch that is fetched."""


class Holding(NamedTuple):
    """A partition that is ours."""

    place: TopicPartition
    position: int | None
    """The next offset to be handed out; None: not known yet."""
    committed: int | None
    leaving: bool
    """To go to another member."""


class Session:
    """Lives in the event loop. Errors for callers are ApiError and WireError."""

    def __init__(self, tools: SessionResources, group: str, instance: str, reset: str, idle_s: float) -> None:
        self.group = group
        self.instance = instance
        self.reset = reset
        self.idle_s = idle_s
        self.polling = False
        self.used_at = time.monotonic()
        self._tools = tools
        self._member = GroupMember(tools.cluster, tools.heartbeats, group, self)
        self._flights = PendingFetches(tools.cluster, tools.reads, tools.fetch_bytes, tools.opening)
        self._progress = Progress()
        self._rounds: dict[TopicPartition, int] = {}
        """For each partition which assignment gave it to us: a look-up for an earlier one is void."""
        self._round = 0
        self._changed = asyncio.Event()
        self._placing = BackgroundTasks()
        self._stopping = False
        self._closed = False

    # Life

    async def subscribe(self, topics: Collection[str]) -> None:
        self._check_open()
        known = await self._call(lambda: self._tools.cluster.topics(topics))
        missing = sorted(set(topics) - set(known))
        if missing:
            raise ApiError(
                404, f"there is no topic {', '.join(missing)}", "create it first, or look at its name", code=40403
            )
        self._check_open()
        await self._member.join(topics)
        self._check_open()

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._placing.cancel()
        self._flights.close()
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
    def failure(self) -> ApiError | None:
        return self._member.failure

    # What is ours, as the member hears of it

    def leaving(self, places: Collection[TopicPartition]) -> Collection[TopicPartition]:
        found = [(place, self._progress[place]) for place in places if place in self._progress]
        for place, held in found:
            held.ahead, held.leaving = None, held.is_open and place.topic in self.topics
        self._changed.set()
        return [place for place, held in found if held.leaving]

    def staying(self, places: Collection[TopicPartition]) -> None:
        for place in places:
            held = self._progress.get(place)
            if held is not None:
                held.leaving = False
        self._changed.set()

    def revoked(self, places: Collection[TopicPartition]) -> None:
        self._progress.drop(places)
        for place in places:
            self._rounds.pop(place, None)
        self._changed.set()

    def assigned(self, places: Collection[TopicPartition]) -> None:
        self._round += 1
        self._rounds |= dict.fromkeys(places, self._round)
        self._placing.start(self._place(list(places), self._round))

    async def _place(self, places: list[TopicPartition], round_: int) -> None:
        """Where to begin: after what the group committed, or where `reset` says."""
        while places := [place for place in places if self._rounds.get(place) == round_]:
            try:
                begins = await self._call(partial(self._beginnings, places))
            except WireError as error:
                logger.info("consumer_not_placed group=%s reason=%s", self.group, error)
                await asyncio.sleep(_RETRY_S)
                continue
            for place, (position, committed) in begins.items():
                if self._rounds.get(place) == round_:
                    self._progress.begin(place, position, committed)
            break
        self._changed.set()

    def _beginnings(self, places: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int | None]]:
        cluster = self._tools.cluster
        committed = cluster.committed_offsets(self.group, places)
        new = {place: RESETS[self.reset] for place in places if place not in committed}
        ends = cluster.offsets(new) if new else {}
        found: dict[TopicPartition, tuple[int, int | None]] = {place: (at, at) for place, at in committed.items()}
        return found | {place: (row.offset, None) for place, row in ends.items()}

    @property
    def assignment(self) -> dict[TopicPartition, PartitionProgress | None]:
        """What is ours, and where we are in it; None: not known yet."""
        return {place: self._progress.get(place) for place in sorted(self._member.partitions)}

    # Polling

    async def next(self, max_records: int, max_bytes: int, timeout_s: float) -> Batch:
        """What may be handed out, at least one record unless the time is up; `hand_out` makes it so."""
        deadline = time.monotonic() + timeout_s
        tried = False
        self._member.release(self._progress.leaving)  # whoever asks for more has done with what it got
        while True:
            self._check()
            self._changed.clear()
            batch = self._progress.collect(max_records, max_bytes)
            left_s = deadline - time.monotonic()
            if batch.records or self._stopping or (tried and left_s <= 0):
                return batch
            tried = True
            wanted = self._progress.to_fetch()
            landed = await self._flights.next(wanted, left_s, self._changed)
            await self._take(landed, wanted)

    def hand_out(self, batch: Batch) -> bool:
        """Moves the positions; False if in the meantime something of it was taken away or moved."""
        return self._progress.hand_out(batch)

    def take_back(self, batch: Batch) -> None:
        """The answer did not go out."""
        self._progress.take_back(batch)

    async def _take(
        self, landed: Mapping[TopicPartition, FetchedPartition], wanted: Mapping[TopicPartition, int]
    ) -> None:
        """`wanted`: from which positions it was fetched; what was moved since, by a seek or a rebalance, is void. An
        error of one partition is raised when the others were taken: the next poll hands these out."""
        refused: ApiError | None = None
        for place, part in landed.items():
            held = self._progress.get(place)
            if held is None or held.leaving or held.position != wanted[place]:
                continue
            if part.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset(place, held)
            elif part.error is ErrorCode.MESSAGE_TOO_LARGE:
                refused = ApiError(
                    502,
                    f"{place}: the batch at offset {held.position} is more than this gateway opens "
                    f"({self._tools.opening.max_records} records, {self._tools.opening.max_bytes} bytes)",
                    f"seek to offset {part.next_offset}, behind it; or start the gateway with a larger --limit "
                    "max_batch_records or max_batch_bytes",
                    code=50201,
                )
            elif part.error:
                refused = _refusal(place, held.position, part)
            elif part.records:
                held.ahead = part
            else:
                held.skip(part.next_offset)
        if refused is not None:
            raise refused

    async def _reset(self, place: TopicPartition, held: PartitionProgress) -> None:
        """What was to be read next was deleted in the meantime."""
        position = held.position
        ends = await self._call(lambda: self._tools.cluster.offsets({place: RESETS[self.reset]}))
        if self._progress.get(place) is held and held.position == position:
            logger.warning("consumer_reset group=%s partition=%s to=%d", self.group, place, ends[place].offset)
            held.begin_at(ends[place].offset)

    # Offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
        """What was handed out; all of it if none are named."""
        self._check()
        if offsets is None:
            held = self._progress.items()
            offsets = {place: row.position for place, row in held if row.position != row.committed}
        for place, offset in offsets.items():
            reached = self._own(place).reached
            if offset > reached:
                raise ApiError(
                    409,
                    f"{place} was handed out up to offset {reached - 1}, and not to {offset - 1}",
                    f"commit {reached} at most: the offset after the last record that was handed out",
                    code=40905,
                )
        if not offsets:
            return {}
        try:
            await self._member.commit(offsets)
        except FencedError:
            raise ApiError(
                409,
                f"group {self.group!r} went on without this consumer, and its partitions may be another member's",
                "poll again: what was not committed comes again, here or at another member",
                code=40904,
            ) from None
        for place, offset in offsets.items():
            if place in self._progress:
                self._progress[place].committed = self._progress[place].settled = offset
        self._member.release([place for place in self._progress.leaving if not self._progress[place].is_open])
        return dict(offsets)

    async def seek(self, place: TopicPartition, target: int | str) -> int:
        """To an offset, or to `earliest` or `latest`."""
        self._check()
        deadline = time.monotonic() + _SETTLE_S
        while place not in self._progress and place.topic in self.topics and time.monotonic() < deadline:
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
            raise ApiError(
                416,
                f"{place} has no offset {offset}: its log goes from {first} to {end}",
                "give an offset between these, or earliest or latest",
                code=41601,
            )
        self._own(place).seek(offset)
        self._changed.set()  # a poll that began meanwhile waits for records from another position
        return offset

    def _own(self, place: TopicPartition) -> PartitionProgress:
        if place.topic not in self.topics:
            raise ApiError(
                400,
                f"this consumer does not read {place.topic!r}",
                f"it reads {', '.join(self.topics)}: subscribe anew",
            )
        held = self._progress.get(place)
        if held is None:
            raise ApiError(
                409,
                f"{place} is not this consumer's (any more): the group has given it to another member, or not yet here",
                "GET this consumer to see its partitions; what it did not commit comes again at whoever has it now",
                code=40904,
            )
        return held

    def _check(self) -> None:
        self._check_open()
        if self._member.failure is not None:
            raise self._member.failure

    def _check_open(self) -> None:
        if self._closed:
            raise ApiError(
                410, "this consumer was closed", f"POST /consumers/{self.group}/subscribe to open one", code=41001
            )

    async def _call(self, call: Callable[[], Answer]) -> Answer:
        return await to_thread.run_sync(call, limiter=self._tools.calls)


def _refusal(place: TopicPartition, position: int, part: FetchedPartition) -> ApiError:
    if part.error in UNREADABLE:
        found = error_for_wire_error(UnreadableError(place, position, part.error))
        hint = f"seek to offset {part.next_offset}, behind the batch" if part.next_offset != position else found.hint
        return ApiError(found.status, found.message, hint, code=found.code)
    found = error_for_code(part.error, f"{place} cannot be read at offset {position}")
    return ApiError(found.status, f"{found.message} ({part.error.name})", found.hint, code=found.code)
