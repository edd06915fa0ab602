"""Reading the tier: ranges of a segment's log bytes go into the cache, a little ahead of the reader.

The indexes of a segment come first: they say where its ranges begin. Then several ranges are read at the same time. One
range is under way at most once, however many readers wait for it. When it is here, or has failed, the waiting readers
are woken. After a failure the same range is not requested again for a while: readers get the error.
"""

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from millstream.config.table import tier
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.opening import BeyondLimitsError, OpeningLimits, first_record_at, latest_record
from millstream.node.storage.index import time_index
from millstream.node.storage.index.time_search import FoundOffset
from millstream.node.storage.log.batch_scan import walk_headers
from millstream.node.storage.log.earlier_batches import add_batches
from millstream.node.storage.log.log_reader import Slice, empty_slice
from millstream.node.storage.log.producer_snapshots import decode_snapshot
from millstream.node.storage.log.producer_state import ProducerState
from millstream.node.storage.log.tiered_part import TierStart
from millstream.node.storage.object_store import NoObjectError, StoreError
from millstream.node.tier.cache import RANGE_BYTES, BadRangeError, Chunk, TieredSlice, first_batch_bytes, write_chunk
from millstream.node.tier.context import TierContext
from millstream.node.tier.core import object_format
from millstream.node.tier.core.decisions import backoff_s
from millstream.node.tier.core.manifest import Manifest, TieredSegment
from millstream.node.tier.core.object_format import DamagedObjectError, Tail

_RANGES_AHEAD = 4
_INDEXES = -1
"""In place of a position: the indexes of a segment."""
_log = logging.getLogger("millstream.tier")


class SegmentReader:
    """Reads the segments of one partition."""

    def __init__(self, context: TierContext, partition: str, wake: Callable[[], None]) -> None:
        self._context = context
        self._partition = partition
        self._wake = wake
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[int, float, str]] = {}
        """By segment: number of failures in a row, until when it is not tried again, and the error."""
        self.lost: str | None = None
        """A segment whose object is gone: the manifest that names it may be old."""

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    def read(
        self,
        segment: TieredSegment,
        following: TieredSegment | None,
        offset: int,
        max_bytes: int,
        up_to: int,
        at_least_one: bool,
    ) -> Slice | None:
        """A slice of the cache; an empty one if the range is requested now. `following` is the next segment. None if
        the segment has no batch at or after the offset, because compaction has removed them: the next one follows."""
        cache = self._context.cache
        chunk = cache.find(segment, offset)
        if chunk is None or not self._has_aborted(segment):
            cache.misses += 1
            self._request(segment, offset)
            return empty_slice()
        cache.hits += 1
        self._read_ahead(segment, following, chunk)
        if offset > chunk.lasts[-1]:
            return None
        found = chunk.slice(offset, max_bytes, min(up_to, segment.end_offset), at_least_one)
        if found.length:
            cache.was_read(chunk, found)
        return found

    def aborted(self, records: Slice) -> list[tuple[int, int]] | None:
        if not isinstance(records, TieredSlice):
            return None
        return [
            (each.producer_id, each.first_offset)
            for each in self._context.aborted(records.segment_name) or ()
            if each.first_offset < records.end_offset and each.last_offset >= records.first_offset
        ]

    # Requesting

    def _has_aborted(self, segment: TieredSegment) -> bool:
        """Whether the aborted transactions of a segment are in memory, if it has any."""
        return not segment.has_aborted or self._context.aborted(segment.name) is not None

    def _read_ahead(self, segment: TieredSegment, following: TieredSegment | None, chunk: Chunk) -> None:
        """Request those of the next few ranges that are not in the cache."""
        position = chunk.next_position
        for _ in range(_RANGES_AHEAD):
            if position >= segment.log_bytes:
                if following is None:
                    return
                segment, following, position = following, None, 0
            ahead = self._context.cache.at(segment.name, position)
            if ahead is not None:
                position = ahead.next_position
                continue
            if segment.name in self._failures:
                return
            starts = self._context.range_starts(segment)
            if starts is None:
                self._begin(segment, _INDEXES)
                return
            end = _range_end(segment, starts, position)
            self._begin(segment, position)
            if end - position > RANGE_BYTES:
                return  # where the next one begins is not known
            position = end

    def _request(self, segment: TieredSegment, offset: int) -> None:
        failed = self._failures.get(segment.name)
        if failed is not None and self._context.environment.loop.time() < failed[1]:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._partition}: the tier cannot be read at {offset}: {failed[2]}"
            )
        self._begin(segment, self._missing(segment, offset))

    def _missing(self, segment: TieredSegment, offset: int) -> int:
        """What must be read next, so that the batch with an offset can be read."""
        context = self._context
        starts = context.range_starts(segment)
        if starts is None or not self._has_aborted(segment):
            return _INDEXES
        position = starts[bisect_right(starts, context.position_before(segment, offset)) - 1]
        while (chunk := context.cache.at(segment.name, position)) is not None:
            if chunk.end_offset > offset:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self._partition}: {segment.name} has no batch with offset {offset}: the object is damaged",
                )
            position = chunk.next_position
        return position

    def _begin(self, segment: TieredSegment, position: int) -> "asyncio.Task[None]":
        key = segment.name, position
        task = self._under_way.get(key)
        if task is None:
            context = self._context
            work: Coroutine[Any, Any, None]
            work = context.load_indexes(segment) if position == _INDEXES else self._fetch(segment, position)
            task = context.environment.loop.create_task(work)
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: tuple[str, int], done: "asyncio.Task[None]") -> None:
        self._under_way.pop(key, None)
        if done.cancelled() or self._context.is_closed:
            return
        error = done.exception()
        if error is None:
            self._failures.pop(key[0], None)
        else:
            self._failed(key[0], error)
        self._wake()

    def _failed(self, name: str, error: BaseException) -> None:
        environment = self._context.environment
        self._context.counters.read_errors += 1
        if isinstance(error, NoObjectError):
            self.lost = name
        elif not isinstance(error, StoreError | BadRangeError | DamagedObjectError | OSError):
            _log.error("tier_read_failed partition=%s", self._partition, exc_info=error)
        count = self._failures.get(name, (0, 0.0, ""))[0] + 1
        pause = backoff_s(count, environment.randomness.random())
        self._failures[name] = count, environment.loop.time() + pause, str(error)
        _log.warning("tier_not_read partition=%s object=%s retry_s=%.1f error=%s", self._partition, name, pause, error)

    async def _fetch(self, segment: TieredSegment, position: int) -> None:
        """Put the range that begins at a position into the cache."""
        context = self._context
        starts = (await context.indexes(segment)).starts
        length = min(RANGE_BYTES, _range_end(segment, starts, position) - position)
        data = await context.read(segment, position, length)
        first = first_batch_bytes(data)
        if first > len(data):
            if position + first > segment.log_bytes:
                raise BadRangeError(f"the batch at byte {position} of {segment.name} is damaged")
            data = b"".join((data, await context.read(segment, position + len(data), first - len(data))))
        cache, path = context.cache, context.cache.new_path()

        def write() -> Chunk:
            cache.begin()
            return write_chunk(cache.disk, path, segment, position, data)

        chunk = await context.environment.offload(write)
        removed = cache.add(chunk, context.config()[tier.TIER_CACHE_BYTES])
        if removed:
            await context.environment.offload(partial(cache.remove_files, removed))

    # Searching by time

    async def chunk_at(self, segment: TieredSegment, offset: int) -> Chunk:
        """The range that has an offset, once it is here."""
        while True:
            chunk = self._context.cache.find(segment, offset)
            if chunk is not None:
                return chunk
            try:
                await asyncio.shield(self._begin(segment, self._missing(segment, offset)))
            except (StoreError, BadRangeError, DamagedObjectError, OSError) as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._partition}: {error}") from error

    async def first_at(
        self, segment: TieredSegment, timestamp: int, least_offset: int, limits: OpeningLimits
    ) -> FoundOffset | None:
        """The first record of a segment that is neither before `timestamp` nor below `least_offset`."""
        offset = max(await self._offset_for_time(segment, timestamp), least_offset)
        while offset < segment.end_offset:
            chunk = await self.chunk_at(segment, offset)
            found = await self._context.environment.open_in_turn(partial(_first_in, chunk, timestamp, offset, limits))
            if found is not None:
                return found if found.offset < segment.end_offset else None
            offset = chunk.end_offset
        return None

    async def latest_of(self, segment: TieredSegment, limits: OpeningLimits) -> FoundOffset | None:
        """The first record with the greatest timestamp of a segment."""
        offset = max(await self._offset_for_time(segment, segment.max_timestamp), segment.base_offset)
        while offset < segment.end_offset:
            chunk = await self.chunk_at(segment, offset)
            found = await self._context.environment.open_in_turn(
                partial(_latest_in, chunk, segment.max_timestamp, limits)
            )
            if found is not None:
                return found if found.offset < segment.end_offset else None
            offset = chunk.end_offset
        return None

    async def _offset_for_time(self, segment: TieredSegment, timestamp: int) -> int:
        try:
            tail = (await self._context.indexes(segment)).tail
        except (StoreError, DamagedObjectError) as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._partition}: {error}") from error
        return segment.base_offset + time_index.lookup(tail.parts[object_format.TIME_INDEX], timestamp)


def _range_end(segment: TieredSegment, starts: "array[int]", position: int) -> int:
    """Where the range that begins at a position ends, in the log bytes of a segment."""
    slot = bisect_right(starts, position)
    return starts[slot] if slot < len(starts) else segment.log_bytes


def _first_in(chunk: Chunk, timestamp: int, least_offset: int, limits: OpeningLimits) -> FoundOffset | None:
    for at, header in walk_headers(chunk.file, 0, chunk.size):
        if header.max_timestamp < timestamp or header.last_offset < least_offset or not header.record_count:
            continue
        whole = max(header.base_offset, least_offset), header.max_timestamp
        try:
            found = first_record_at(header, chunk.file.read_at(at, header.size), timestamp, least_offset, limits)
        except (BeyondLimitsError, KafkaError):
            found = whole  # as in a search on disk: the batch counts as a whole
        if found is not None:
            return FoundOffset(*found, header.leader_epoch)
    return None


def _latest_in(chunk: Chunk, greatest: int, limits: OpeningLimits) -> FoundOffset | None:
    for at, header in walk_headers(chunk.file, 0, chunk.size):
        if header.max_timestamp >= greatest and header.record_count:
            whole = header.last_offset, header.max_timestamp
            try:
                found = latest_record(header, chunk.file.read_at(at, header.size), limits) or whole
            except (BeyondLimitsError, KafkaError):
                found = whole
            return FoundOffset(*found, header.leader_epoch)
    return None


async def tier_start(tail_of: Callable[[TieredSegment], Awaitable[Tail]], manifest: Manifest) -> TierStart:
    """Where a log continues that takes everything before from the tier: its epochs and producers, from the last object.

    The tier has at least one segment.
    """
    last = manifest.readable[-1]
    tail = await tail_of(last)
    producers = ProducerState()
    if tail.footer.identity.end_offset == last.end_offset:  # else an unclean election has cut the segment
        producers = ProducerState(decode_snapshot(bytes(tail.parts[object_format.SNAPSHOT])))
        add_batches(producers, bytes(tail.parts[object_format.PRODUCERS]))
    entries = list(producers.entries.values())
    return TierStart(last.end_offset, manifest.log_start_offset, manifest.epochs(), entries)
