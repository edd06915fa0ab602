"""One pass over one log: from the map of its dirty part to the swap of its last segment.

Long work runs in threads, in steps, so that other work does not wait for it. The log is changed on the event loop,
between the steps. A pass that ends at any point leaves a whole log.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.opening import OpeningLimits
from millstream.node.storage.cleaner import compiled
from millstream.node.storage.cleaner.copying import Copier, map_dirty
from millstream.node.storage.cleaner.errors import PartlyMappedError, UncleanableError
from millstream.node.storage.cleaner.plan import (
    Cleanable,
    CleanerSettings,
    CleaningAbortedError,
    LastWritten,
    PassStats,
    Plan,
    Source,
    Throttle,
)
from millstream.node.storage.cleaner.segment_copy import swap_in
from millstream.node.storage.file_formats import CLEANED_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX
from millstream.node.storage.index.offset_index import MAX_RELATIVE_OFFSET
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.producer_state import ProducerState


def group_sources(plan: Plan, end_offset: int) -> list[list[Source]]:
    """Groups of neighbouring sources that together fit in one segment; those that begin before `end_offset`.

    Without groups, each pass would leave as many segments as it found, and smaller ones each time. Reads file sizes
    from the disk.
    """
    groups: list[list[Source]] = []
    used = (0, 0, 0)
    for source in plan.sources:
        if source.base_offset >= end_offset:
            break
        sizes = (source.size, _size(plan, source, INDEX_SUFFIX), _size(plan, source, TIME_INDEX_SUFFIX))
        together = (used[0] + sizes[0], used[1] + sizes[1], used[2] + sizes[2])
        limits = (plan.segment_bytes, plan.segment_index_bytes, plan.segment_index_bytes)
        fits = all(map(_not_above, together, limits))
        if groups and fits and source.end_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
            groups[-1].append(source)
            used = together
        else:
            groups.append([source])
            used = sizes
    return groups


def _size(plan: Plan, source: Source, suffix: str) -> int:
    path = source.segment.path(suffix)
    return plan.disk.file_size(path) if plan.disk.exists(path) else 0


_not_above: Callable[[int, int], bool] = int.__le__


STEP_BYTES = 4 << 20
"""Bytes of one step, after which the thread is free for other work."""
DECOMPRESSED_STEP_BYTES = 64 << 20
"""The same for decompressed bytes: a small batch can become very large."""

T = TypeVar("T")


class Offload(Protocol):
    def __call__(self, function: Callable[[], T]) -> "asyncio.Future[T]": ...


class Cleaning:
    def __init__(
        self,
        log: PartitionLog,
        found: Cleanable,
        settings: CleanerSettings,
        now_ms: int,
        *,
        offload: Offload,
        throttle: Throttle,
        now: Callable[[], float],
        is_wanted: Callable[[PartitionLog], bool],
        yield_interpreter: Callable[[], None] = lambda: None,
    ) -> None:
        self.log = log
        self.found = found
        self._offload = offload
        self._throttle = throttle
        self._now = now
        self._is_wanted = is_wanted
        self._truncations = log.truncations
        self._plan = _make_plan(log, found, settings, now_ms)
        self._plan.yield_interpreter = yield_interpreter
        self._indexes = [segment.aborted for segment in log.segments if segment.aborted]
        self._is_closed = False
        self.segments_after = 0

    @property
    def stats(self) -> PassStats:
        return self._plan.stats

    @property
    def limits(self) -> OpeningLimits:
        return self._plan.limits

    def abort(self) -> None:
        """End the pass at the next block, because the node stops. The next start removes its files."""
        self._plan.is_aborted = self._is_closed = True

    async def run(self) -> int:
        """Clean; returns the offset up to which the log is clean now.

        CleaningAbortedError when it was aborted, UncleanableError or KafkaError when the log cannot be read, OSError.
        """
        try:
            return await self._run()
        except (UncleanableError, KafkaError, OSError) as error:
            if self._has_changed():
                raise CleaningAbortedError from error  # the log has changed since it was read
            raise

    async def _run(self) -> int:
        plan = self._plan
        keys = self._new_map()
        await self._offload(self._prepare)
        try:
            try:
                await self._work(map_dirty(plan, keys))
            except PartlyMappedError:
                # Records of a batch that clients cannot read must not replace earlier ones. So the map is made again,
                # and batches are checked first.
                self._offload(partial(keys.forget, plan.yield_interpreter))
                plan.checks_records = True
                del plan.not_mapped[:]
                plan.stats.mapped_bytes = 0
                keys = self._new_map()
                await self._work(map_dirty(plan, keys))
            plan.stats.mapped_keys, plan.stats.map_used_bytes = keys.key_count, keys.used_bytes
            copier = Copier(plan, keys)
            for group in await self._offload(partial(group_sources, plan, keys.next_offset)):
                await self._clean_group(copier, group)
            self._check()  # a log that was truncated meanwhile is not clean up to there
            return keys.next_offset
        finally:
            if not self._is_closed:
                self._offload(
                    partial(keys.forget, plan.yield_interpreter)
                )  # not here, because it would block the event loop

    def _new_map(self) -> "compiled.KeyMap":
        plan = self._plan
        return compiled.KeyMap(plan.map_bytes, plan.dirty_start, plan.sources[-1].end_offset - plan.dirty_start)

    def _prepare(self) -> None:
        """In a thread: remove files of an earlier pass, and collect the aborted transactions."""
        plan = self._plan
        for name, _ in plan.disk.list(plan.directory):
            if name.endswith(CLEANED_SUFFIX):
                plan.disk.remove(f"{plan.directory}/{name}")
        start, end = plan.sources[0].base_offset, plan.sources[-1].end_offset
        for index in self._indexes:
            if index.collect(start, end, plan.aborted):
                break

    async def _clean_group(self, copier: Copier, group: list[Source]) -> None:
        try:
            await self._work(copier.copy_group(group))
            copy = copier.finished
            assert copy is not None
            if not copy.changed:
                await self._offload(copy.discard)
                self.segments_after += 1
                return
            settle = swap_in(self.log, copy, self._plan.now_ms)
        except Exception:
            if copier.finished is not None and not self._is_closed:
                await self._offload(copier.finished.discard)
            raise
        failure = await self._offload(settle.run)
        if failure is not None:
            raise failure
        self.segments_after += 1

    async def _work(self, steps: Iterator[int]) -> None:
        throttle = self._throttle
        finished = False
        while not finished:
            done, finished = await self._offload(
                partial(_advance, steps, throttle.piece_bytes(STEP_BYTES), self._plan.stats)
            )
            self._check()
            delay = throttle.delay_seconds(done, self._now())
            if delay > 0:
                await asyncio.sleep(delay)
                self._check()  # a swap may follow

    def _check(self) -> None:
        if self._plan.is_aborted or not self._is_current() or not self._is_wanted(self.log):
            self._plan.is_aborted = True
            raise CleaningAbortedError

    def _has_changed(self) -> bool:
        """Whether the log was changed during the pass, so that it may have failed for that."""
        is_deleted = any(source.segment.dropped and source.segment.successor is None for source in self._plan.sources)
        return is_deleted or not self._is_current() or not self._is_wanted(self.log)

    def _is_current(self) -> bool:
        return self.log.truncations == self._truncations and self.log.failure is None


def _advance(steps: Iterator[int], limit: int, stats: PassStats) -> tuple[int, bool]:
    total = 0
    opened_before = stats.opened_bytes
    for done in steps:
        total += done
        if total >= limit or stats.opened_bytes - opened_before >= DECOMPRESSED_STEP_BYTES:
            return total, False
    return total, True


def _make_plan(log: PartitionLog, found: Cleanable, settings: CleanerSettings, now_ms: int) -> Plan:
    segments, config = log.segments, log.config
    sources = [Source(segments[slot], segments.bases[slot + 1]) for slot in range(found.segments)]
    return Plan(
        disk=log.disk,
        directory=log.directory,
        sources=sources,
        dirty_start=found.dirty_start,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        block_bytes=settings.block_bytes,
        map_bytes=settings.map_bytes,
        producers=_last_written(log.producers),
        aborted=[],
        limits=settings.opening,
    )


def _last_written(producers: ProducerState) -> dict[int, LastWritten]:
    return {
        producer_id: LastWritten(entry.batches[-1][2] if entry.batches else None, entry.epoch)
        for producer_id, entry in producers.entries.items()
    }
