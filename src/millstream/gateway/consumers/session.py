"""One HTTP consumer: its membership in the group, its fetches, and its progress in the assigned partitions."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from millstream.common.background_tasks import BackgroundTasks
from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.opening import OpeningLimits
from millstream.gateway.consumers.fetches import FetchedPartition, PendingFetches
from millstream.gateway.consumers.member import FencedError, GroupMember, ManualMember, Metadata
from millstream.gateway.consumers.progress import Batch, PartitionProgress, Progress
from millstream.gateway.http.errors import ApiError, error_for_code, error_for_wire_error
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition, UnreadableError, WireError
from millstream.raw_client.errors import UNREADABLE

RESETS = {"earliest": EARLIEST, "latest": LATEST}
NO_RESET = "none"
_SETTLE_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_AUTO_COMMIT_INTERVAL_SECONDS = 5.0
"""Kafka's default of auto.commit.interval.ms."""

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SessionResources:
    """Shared by all consumers of a gateway."""

    calls: CapacityLimiter
    """Threads for requests that callers wait for."""
    heartbeats: CapacityLimiter
    """Threads for heartbeats. If a coordinator is unreachable, heartbeats block, and must not block other requests."""
    reads: CapacityLimiter
    """Threads for fetches."""
    fetch_bytes: Callable[[], int]
    """The limit of one fetch, and so of records kept ahead."""
    opening: OpeningLimits
    """Limits of one fetched batch."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a consumer of REST v2. The defaults are those of our own routes."""

    format: str = ""
    auto_commit: bool = False
    """Commit the records of earlier polls, at a poll and at the end."""
    min_bytes: int = 1
    timeout_ms: int = 1_000
    """Of a poll that names none."""
    read_committed: bool = True


class Session:
    """Runs in the event loop. Errors for callers are ApiError and WireError."""

    def __init__(
        self,
        tools: SessionResources,
        cluster: Cluster,
        owner: str,
        group: str,
        instance: str,
        reset: str,
        idle_s: float,
        settings: SessionSettings = SessionSettings(),
    ) -> None:
        """`cluster`: the connection of the caller that opened it. `owner`: the only caller that may use it."""
        self.settings = settings
        self.owner = owner
        self.group = group
        self.instance = instance
        self.reset = reset
        self.idle_s = idle_s
        self.polling = False
        self.used_at = time.monotonic()
        self.on_end: Callable[[], None] | None = None
        """Called once, when it is closed."""
        self._tools = tools
        self._cluster = cluster
        self._member: GroupMember | ManualMember = GroupMember(cluster, tools.heartbeats, group, self)
        self._fetches = PendingFetches(
            cluster, tools.reads, tools.fetch_bytes, tools.opening, settings.min_bytes, settings.read_committed
        )
        self._progress = Progress()
        self._without_offset: set[TopicPartition] = set()
        """Assigned partitions without a start position: auto.offset.reset is none, and no offset is committed."""
        self._auto_committed_at = time.monotonic()
        self._rounds: dict[TopicPartition, int] = {}
        """The number of the assignment that brought each partition. Lookups for an earlier one are ignored."""
        self._round = 0
        self._changed = asyncio.Event()
        self._placing = BackgroundTasks()
        self._stopping = False
        self._closed = False

    # Life

    async def subscribe(self, topics: Collection[str]) -> None:
        self._check_open()
        member = self._group_member()
        known = await self._call(lambda: self._cluster.topics(topics))
        missing = sorted(set(topics) - set(known))
        if missing:
            raise ApiError(
                404, f"there is no topic {', '.join(missing)}", "create it first, or check its name", code=40403
            )
        self._check_open()
        await member.join(topics)
        self._check_open()

    async def subscribe_pattern(self, pattern: str) -> None:
        """All topics whose names match a regular expression (RE2), also those that are created later."""
        self._check_open()
        await self._group_member().join((), pattern)
        self._check_open()

    def _group_member(self) -> GroupMember:
        if isinstance(self._member, ManualMember):
            raise ApiError(409, "partitions were assigned to this consumer by hand", "unsubscribe it first", code=40904)
        return self._member

    async def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Reads these partitions, without the group."""
        self._check_open()
        if not isinstance(self._member, ManualMember) and (self._member.topics or self._member.pattern is not None):
            raise ApiError(409, "this consumer has a subscription", "unsubscribe it first", code=40904)
        known = await self._call(lambda: self._cluster.topics({partition.topic for partition in partitions}))
        for partition in sorted(partitions):
            if partition.topic not in known:
                raise ApiError(404, f"there is no topic {partition.topic!r}", "create it first", code=40403)
            if partition.partition >= len(known[partition.topic].partitions):
                raise ApiError(404, f"there is no partition {partition}", "check its number", code=40404)
        self._check_open()
        before = self._member.partitions
        self._member = ManualMember(self._cluster, self._tools.calls, self.group, partitions)
        self.revoked(before - self._member.partitions)
        if new := self._member.partitions - before:
            self.assigned(new)

    async def unsubscribe(self) -> None:
        """Leaves the group, or gives up the partitions that were assigned by hand."""
        self._check_open()
        member, self._member = self._member, GroupMember(self._cluster, self._tools.heartbeats, self.group, self)
        self.revoked(member.partitions)
        await member.leave()

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._placing.cancel()
        self._fetches.close()
        try:
            await self._member.leave()
        finally:
            ended, self.on_end = self.on_end, None
            if ended is not None:
                ended()

    def stop(self) -> None:
        """Ends a waiting poll with the records there are."""
        self._stopping = True
        self._changed.set()

    def touch(self) -> None:
        self.used_at = time.monotonic()

    @property
    def expires_in_s(self) -> float:
        """The time until it expires; it does not expire during a poll."""
        return self.idle_s if self.polling else max(0.0, self.used_at + self.idle_s - time.monotonic())

    @property
    def topics(self) -> tuple[str, ...]:
        """Of a pattern: the topics with assigned partitions."""
        if self._member.pattern is not None:
            return tuple(sorted({partition.topic for partition in self._member.partitions}))
        return self._member.topics

    @property
    def is_manual(self) -> bool:
        """Partitions were assigned by the caller, not by the group."""
        return isinstance(self._member, ManualMember)

    @property
    def pattern(self) -> str | None:
        return self._member.pattern

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def failure(self) -> ApiError | None:
        return self._member.failure

    # Assignment (Owner)

    def leaving(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        found = [(partition, self._progress[partition]) for partition in partitions if partition in self._progress]
        for partition, progress in found:
            progress.ahead, progress.leaving = None, progress.is_open and self._member.reads(partition.topic)
        self._changed.set()
        return [partition for partition, progress in found if progress.leaving]

    def staying(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            progress = self._progress.get(partition)
            if progress is not None:
                progress.leaving = False
        self._changed.set()

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._progress.drop(partitions)
        self._without_offset.difference_update(partitions)
        for partition in partitions:
            self._rounds.pop(partition, None)
        self._changed.set()

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._round += 1
        self._rounds |= dict.fromkeys(partitions, self._round)
        self._placing.start(self._place(list(partitions), self._round))

    async def _place(self, partitions: list[TopicPartition], round_: int) -> None:
        """Finds the start positions: the committed offsets, or those of `reset`."""
        while partitions := [partition for partition in partitions if self._rounds.get(partition) == round_]:
            try:
                begins = await self._call(partial(self._beginnings, partitions))
            except WireError as error:
                _log.info("consumer_positions_failed group=%s reason=%s", self.group, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for partition in partitions:
                if self._rounds.get(partition) != round_:
                    continue
                if partition in begins:
                    self._progress.begin(partition, *begins[partition])
                else:
                    self._without_offset.add(partition)
            break
        self._changed.set()

    def _beginnings(self, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int | None]]:
        cluster = self._cluster
        committed = cluster.committed_offsets(self.group, partitions)
        missing = [partition for partition in partitions if partition not in committed]
        ends = {}
        if missing and self.reset != NO_RESET:
            ends = cluster.offsets(dict.fromkeys(missing, RESETS[self.reset]))
        found: dict[TopicPartition, tuple[int, int | None]] = {
            partition: (at, at) for partition, at in committed.items()
        }
        return found | {partition: (row.offset, None) for partition, row in ends.items()}

    @property
    def assignment(self) -> dict[TopicPartition, PartitionProgress | None]:
        """The assigned partitions with their progress; None while the position is looked up."""
        return {partition: self._progress.get(partition) for partition in sorted(self._member.partitions)}

    # Polling

    async def next(self, max_records: int, max_bytes: int, timeout_s: float) -> Batch:
        """Records to hand out, at least one unless the timeout expires. `hand_out` moves the positions."""
        deadline = time.monotonic() + timeout_s
        tried = False
        self._member.release(self._progress.leaving)  # a new poll means that earlier records are done
        while True:
            self._check()
            self._check_positions()
            self._changed.clear()
            batch = self._progress.collect(max_records, max_bytes)
            left_s = deadline - time.monotonic()
            if batch.records or self._stopping or (tried and left_s <= 0):
                return batch
            tried = True
            wanted = self._progress.to_fetch()
            landed = await self._fetches.next(wanted, left_s, self._changed)
            await self._take(landed, wanted)

    def hand_out(self, batch: Batch) -> bool:
        """Moves the positions. False if a partition was revoked or its position changed in the meantime."""
        return self._progress.hand_out(batch)

    def take_back(self, batch: Batch) -> None:
        """The response could not be sent: moves the positions back."""
        self._progress.take_back(batch)

    async def _take(
        self, landed: Mapping[TopicPartition, FetchedPartition], wanted: Mapping[TopicPartition, int]
    ) -> None:
        """`wanted`: the positions of the fetch. Partitions whose position changed since are ignored. An error of one
        partition is raised after the others were taken: the next poll hands these out."""
        refused: ApiError | None = None
        for partition, part in landed.items():
            progress = self._progress.get(partition)
            if progress is None or progress.leaving or progress.position != wanted[partition]:
                continue
            if part.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset(partition, progress)
            elif part.error is ErrorCode.MESSAGE_TOO_LARGE:
                refused = ApiError(
                    502,
                    f"{partition}: the batch at offset {progress.position} exceeds the limits of this gateway "
                    f"({self._tools.opening.max_records} records, {self._tools.opening.max_bytes} bytes)",
                    f"seek to offset {part.next_offset}, after it; or start the gateway with a larger --limit "
                    "max_batch_records or max_batch_bytes",
                    code=50201,
                )
            elif part.error:
                refused = _refusal(partition, progress.position, part)
            elif part.records:
                progress.ahead = part
            else:
                progress.skip(part.next_offset)
        if refused is not None:
            raise refused

    async def _reset(self, partition: TopicPartition, progress: PartitionProgress) -> None:
        """The records at the position were deleted: moves to the position of `reset`."""
        position = progress.position
        if self.reset == NO_RESET:
            raise ApiError(
                416,
                f"{partition} has no offset {position}, and auto.offset.reset is none",
                "seek to another offset",
                code=41601,
            )
        ends = await self._call(lambda: self._cluster.offsets({partition: RESETS[self.reset]}))
        if self._progress.get(partition) is progress and progress.position == position:
            _log.warning("consumer_reset group=%s partition=%s to=%d", self.group, partition, ends[partition].offset)
            progress.begin_at(ends[partition].offset)

    # Offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
        """Commits these offsets, up to the records that were handed out; None: all positions."""
        self._check()
        if offsets is None:
            progress = self._progress.items()
            offsets = {partition: row.position for partition, row in progress if row.position != row.committed}
        for partition, offset in offsets.items():
            reached = self._own(partition).reached
            if offset > reached:
                raise ApiError(
                    409,
                    f"{partition} was handed out only up to offset {reached - 1}, not to {offset - 1}",
                    f"commit {reached} at most: the offset after the last record that was handed out",
                    code=40905,
                )
        if offsets:
            await self.commit_any(offsets)
        return dict(offsets)

    async def commit_any(self, offsets: Mapping[TopicPartition, int], metadata: Metadata | None = None) -> None:
        """Commits offsets of any partitions."""
        self._check()
        try:
            await self._member.commit(offsets, metadata or {})
        except FencedError:
            raise ApiError(
                409,
                f"group {self.group!r} has fenced this consumer, and its partitions may belong to another member",
                "poll again: records that are not committed are delivered again, here or to another member",
                code=40904,
            ) from None
        for partition, offset in offsets.items():
            if partition in self._progress:
                self._progress[partition].committed = self._progress[partition].settled = offset
        self._member.release(
            [partition for partition in self._progress.leaving if not self._progress[partition].is_open]
        )

    async def auto_commit(self, now: bool = False) -> None:
        """With auto_commit, commits the records of earlier polls: after an interval, before partitions are given up, or
        `now`. A failure is no error of the caller: the records are delivered again."""
        due = now or time.monotonic() - self._auto_committed_at >= _AUTO_COMMIT_INTERVAL_SECONDS
        if not self.settings.auto_commit or not (due or self._progress.leaving):
            return
        self._auto_committed_at = time.monotonic()
        try:
            await self.commit(None)
        except (ApiError, WireError) as error:
            _log.warning("consumer_auto_commit_failed group=%s reason=%s", self.group, error)

    async def seek(self, partition: TopicPartition, target: int | str) -> int:
        """Moves the position to an offset, or to `earliest` or `latest`."""
        self._check()
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not self._is_placed(partition) and self._may_read(partition) and time.monotonic() < deadline:
            if self._member.partitions and partition not in self._member.partitions:
                break
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except TimeoutError:
                break
        if partition not in self._without_offset:
            self._own(partition)
        first = (await self._call(lambda: self._cluster.offsets({partition: EARLIEST})))[partition].offset
        end = (await self._call(lambda: self._cluster.offsets({partition: LATEST})))[partition].offset
        offset = {"earliest": first, "latest": end}[target] if isinstance(target, str) else target
        if not first <= offset <= end:
            raise ApiError(
                416,
                f"{partition} has no offset {offset}: its log goes from {first} to {end}",
                "give an offset in this range, or earliest or latest",
                code=41601,
            )
        if partition in self._without_offset:
            self._without_offset.discard(partition)
            self._progress.begin(partition, offset, None)
        self._own(partition).seek(offset)
        self._changed.set()  # a waiting poll has to fetch from the new position
        return offset

    def _own(self, partition: TopicPartition) -> PartitionProgress:
        if not self._may_read(partition):
            raise ApiError(
                400,
                f"this consumer does not read {partition.topic!r}",
                f"it reads {', '.join(self.topics)}: subscribe again",
            )
        progress = self._progress.get(partition)
        if progress is None:
            raise ApiError(
                409,
                f"{partition} is not assigned to this consumer",
                "GET this consumer to see its partitions; another member gets the uncommitted records",
                code=40904,
            )
        return progress

    def _may_read(self, partition: TopicPartition) -> bool:
        """A pattern may match topics that are not known yet."""
        return self._member.reads(partition.topic) or self._member.pattern is not None

    def _is_placed(self, partition: TopicPartition) -> bool:
        return partition in self._progress or partition in self._without_offset

    def _check_positions(self) -> None:
        if self._without_offset:
            names = ", ".join(str(partition) for partition in sorted(self._without_offset)[:5])
            raise ApiError(
                409,
                f"there is no committed offset for {names}, and auto.offset.reset is none",
                "seek to an offset, or commit one and subscribe again",
                code=40904,
            )

    def _check(self) -> None:
        self._check_open()
        if self._member.failure is not None:
            raise self._member.failure

    def _check_open(self) -> None:
        if self._closed:
            raise ApiError(
                410, "this consumer was closed", f"POST /consumers/{self.group}/subscribe to open one", code=41001
            )

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await to_thread.run_sync(call, limiter=self._tools.calls)


def _refusal(partition: TopicPartition, position: int, part: FetchedPartition) -> ApiError:
    if part.error in UNREADABLE:
        found = error_for_wire_error(UnreadableError(partition, position, part.error))
        hint = f"seek to offset {part.next_offset}, after the batch" if part.next_offset != position else found.hint
        return ApiError(found.status, found.message, hint, code=found.code)
    found = error_for_code(part.error, f"{partition} cannot be read at offset {position}")
    return ApiError(found.status, f"{found.message} ({part.error.name})", found.hint, code=found.code)
