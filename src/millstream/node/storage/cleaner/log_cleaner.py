"""The cleaner of a log directory: chooses the next compacted log, and runs a pass for each thread.

The log with the greatest dirty ratio is first. It checks every `log.cleaner.backoff.ms`, and at once after a pass. A
log that cannot be read is left alone until it is opened again: its records stay as they are, and other logs do not
wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from millstream.common.background_tasks import BackgroundTasks
from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.storage.cleaner.cleaning import Cleaning, Offload
from millstream.node.storage.cleaner.errors import UncleanableError
from millstream.node.storage.cleaner.plan import (
    Cleanable,
    CleanerSettings,
    CleaningAbortedError,
    Throttle,
    cleanable,
    first_dirty_offset,
    is_compacted,
)
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.cleaner")

MEGABYTE = 1e6
_TICK_MS = 1000
"""`tick` is called at least this often."""
_SHORTEST_MS = 10


@dataclass(frozen=True, slots=True)
class CleanerProgress:
    """The cleaning state of one compacted log."""

    partition: TopicPartition
    first_dirty_offset: int
    cleanable_end_offset: int
    clean_bytes: int
    dirty_bytes: int
    ratio: float
    is_running: bool
    uncleanable: str
    """Why it cannot be cleaned; empty if it can."""
    passed_over: int
    """Batches that the last pass kept as they are, because they are above the limits for decompression."""


class Logs(Protocol):
    """The open logs of a node."""

    def loaded(self) -> list[PartitionLog]: ...

    def loaded_log(self, partition: TopicPartition) -> PartitionLog | None: ...

    def want_checkpoint(self) -> None: ...


class LogCleaner:
    def __init__(
        self,
        logs: Logs,
        settings: Callable[[], CleanerSettings],
        *,
        offload: Offload,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        yield_interpreter: Callable[[], None] = lambda: None,
    ) -> None:
        self._logs = logs
        self._yield_interpreter = yield_interpreter
        self._settings = settings
        self._offload = offload
        self._loop = loop
        self._now_ms = now_ms
        self._throttle = Throttle()
        self._running: dict[TopicPartition, Cleaning] = {}
        self._tasks = BackgroundTasks()
        self._uncleanable: dict[TopicPartition, tuple[PartitionLog, str]] = {}
        self._passed_over: dict[TopicPartition, tuple[PartitionLog, int]] = {}
        """By partition: how many batches the last pass kept unread."""
        self._not_before_ms: dict[TopicPartition, int] = {}
        """When a log may be cleaned again whose last pass was aborted."""
        self._found_nothing_ms: int | None = None
        """When no log was due at the last check; None if the next check is due at once."""
        self._soon: asyncio.TimerHandle | None = None
        self._held: set[TopicPartition] = set()
        """Logs that are about to move to another directory."""
        self._closed = False

    def tick(self) -> None:
        """Begin passes that are due; called periodically."""
        settings = self._settings()
        self._throttle.bytes_per_second = settings.io_max_bytes_per_second
        if self._closed or not settings.enable or self._is_backing_off(settings):
            return
        while len(self._running) < settings.threads:
            if not self._begin_dirtiest(settings):
                self._back_off(settings)
                return

    def _is_backing_off(self, settings: CleanerSettings) -> bool:
        """By the present setting, which may have changed since the last check."""
        if self._found_nothing_ms is None:
            return False
        return 0 <= self._now_ms() - self._found_nothing_ms < settings.backoff_ms

    def _back_off(self, settings: CleanerSettings) -> None:
        self._found_nothing_ms = self._now_ms()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if settings.backoff_ms < _TICK_MS:  # the periodic call is not that frequent
            self._soon = self._loop.call_later(max(settings.backoff_ms, _SHORTEST_MS) / 1000, self.tick)

    def close(self) -> None:
        """Abort all passes; then the logs may be closed."""
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
        for cleaning in self._running.values():
            cleaning.abort()

    def hold(self, partition: TopicPartition) -> bool:
        """Begin no pass of this log, and abort the one that runs. Whether none runs any more."""
        self._held.add(partition)
        running = self._running.get(partition)
        if running is not None:
            running.abort()
        return running is None

    def release(self, partition: TopicPartition) -> None:
        self._held.discard(partition)

    def progress(self) -> list[CleanerProgress]:
        now_ms = self._now_ms()
        return [self._progress_of(log, now_ms) for log in self._logs.loaded() if is_compacted(log)]

    def iterate_progress(self) -> Iterator[CleanerProgress]:
        """The same, one by one, so that the caller can yield to the event loop. Unreadable logs are left out."""
        now_ms = self._now_ms()
        for log in self._logs.loaded():
            try:
                if is_compacted(log):
                    yield self._progress_of(log, now_ms)
            except (OSError, KafkaError) as error:
                _log.error("cleaner_cannot_look partition=%s error=%s", log.topic_partition, error)

    # Choosing

    def _begin_dirtiest(self, settings: CleanerSettings) -> bool:
        now_ms = self._now_ms()
        best: tuple[PartitionLog, Cleanable] | None = None
        for log in self._logs.loaded():
            if not is_compacted(log) or len(log.segments) == 1 or not self._may_clean(log, now_ms):
                continue
            try:
                found = cleanable(log, now_ms)
            except (OSError, KafkaError) as error:
                _log.error("cleaner_cannot_look partition=%s error=%s", log.topic_partition, error)
                self._not_before_ms[log.topic_partition] = now_ms + settings.backoff_ms
                continue
            is_due = found.ratio > log.config.min_cleanable_dirty_ratio or found.is_overdue
            if found.dirty_bytes and is_due and (best is None or found.ratio > best[1].ratio):
                best = log, found
        if best is not None:
            self._begin(*best, settings)
        return best is not None

    def _may_clean(self, log: PartitionLog, now_ms: int) -> bool:
        partition = log.topic_partition
        uncleanable = self._uncleanable.get(partition)
        if uncleanable is not None:
            if uncleanable[0] is log:
                return False
            del self._uncleanable[partition]
        not_before_ms = self._not_before_ms.get(partition)
        if not_before_ms is not None:
            if now_ms < not_before_ms:
                return False
            del self._not_before_ms[partition]
        return partition not in self._running and partition not in self._held and log.failure is None

    def _is_wanted(self, log: PartitionLog) -> bool:
        return not self._closed and self._logs.loaded_log(log.topic_partition) is log and is_compacted(log)

    # One pass

    def _begin(self, log: PartitionLog, found: Cleanable, settings: CleanerSettings) -> None:
        cleaning = Cleaning(
            log,
            found,
            settings,
            self._now_ms(),
            offload=self._offload,
            throttle=self._throttle,
            now=self._loop.time,
            is_wanted=self._is_wanted,
            yield_interpreter=self._yield_interpreter,
        )
        self._running[log.topic_partition] = cleaning
        self._tasks.start(self._clean(cleaning), loop=self._loop)

    async def _clean(self, cleaning: Cleaning) -> None:
        log = cleaning.log
        partition = log.topic_partition
        begun = self._loop.time()
        try:
            cleaned_offset = await cleaning.run()
        except CleaningAbortedError:
            _log.info("cleaning_given_up partition=%s", partition)
            self._put_off(log)
        except OSError as error:
            if self._is_wanted(log):
                _log.error("cleaning_failed partition=%s error=%s", partition, error)
            self._put_off(log)
        except (UncleanableError, KafkaError) as error:
            _log.error(
                "log_uncleanable partition=%s reason=%s: it is not cleaned until it is opened again", partition, error
            )
            self._uncleanable[partition] = log, str(error)
        except Exception as error:
            _log.exception("log_uncleanable partition=%s: an unexpected error of the cleaner", partition)
            self._uncleanable[partition] = log, repr(error)
        else:
            log.cleaned_offset = cleaned_offset
            self._logs.want_checkpoint()
            _log_result(cleaning, cleaned_offset, self._loop.time() - begun)
            self._note_passed_over(cleaning)
        finally:
            del self._running[partition]
        self._found_nothing_ms = None
        self.tick()

    def _note_passed_over(self, cleaning: Cleaning) -> None:
        log, stats = cleaning.log, cleaning.stats
        self._passed_over.pop(log.topic_partition, None)
        if not stats.passed_over:
            return
        self._passed_over[log.topic_partition] = log, stats.passed_over
        limits = cleaning.limits
        _log.warning(
            "batches_passed_over partition=%s count=%d first_offset=%d reason=more than %d records, more than %d bytes "
            "decompressed, or malformed records: they are kept, and so are tombstones behind them. The limits are "
            "millstream.batch.max.records and millstream.batch.max.decompressed.bytes",
            log.topic_partition,
            stats.passed_over,
            stats.first_passed_over,
            limits.max_records,
            limits.max_bytes,
        )

    def _put_off(self, log: PartitionLog) -> None:
        self._not_before_ms[log.topic_partition] = self._now_ms() + self._settings().backoff_ms

    def _progress_of(self, log: PartitionLog, now_ms: int) -> CleanerProgress:
        partition = log.topic_partition
        uncleanable = self._uncleanable.get(partition)
        reason = uncleanable[1] if uncleanable is not None and uncleanable[0] is log else ""
        passed_over = self._passed_over.get(partition)
        found = cleanable(log, now_ms)
        return CleanerProgress(
            partition,
            first_dirty_offset(log),
            found.end_offset,
            found.clean_bytes,
            found.dirty_bytes,
            found.ratio,
            partition in self._running,
            reason,
            passed_over[1] if passed_over is not None and passed_over[0] is log else 0,
        )


def _log_result(cleaning: Cleaning, cleaned_offset: int, seconds: float) -> None:
    stats = cleaning.stats
    worked = stats.mapped_bytes + stats.read_bytes + stats.written_bytes
    _log.info(
        "log_cleaned partition=%s from=%d to=%d bytes_before=%d bytes_after=%d records_before=%d records_after=%d "
        "segments_before=%d segments_after=%d keys=%d map_bytes=%d seconds=%.3f mb_per_second=%.1f",
        cleaning.log.topic_partition,
        cleaning.found.dirty_start,
        cleaned_offset,
        stats.read_bytes,
        stats.written_bytes,
        stats.read_records,
        stats.written_records,
        cleaning.found.segments,
        cleaning.segments_after,
        stats.mapped_keys,
        stats.map_used_bytes,
        seconds,
        worked / MEGABYTE / seconds if seconds else 0.0,
    )
