"""How dirty a log is, and what of it a pass may clean: the rules of Kafka's LogCleanerManager.

Never the active segment, nothing at or after the last stable offset (which is not past the high watermark), nothing
that is younger than `min.compaction.lag.ms`. A log is worth a pass when the dirty part of what may be cleaned is more
than `min.cleanable.dirty.ratio`, or holds something older than `max.compaction.lag.ms`.
"""

from dataclasses import dataclass

from millstream.node.storage.log.partition_log import PartitionLog

COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Cleanable:
    dirty_start: int
    end_offset: int
    """The base of the first segment that may not be cleaned."""
    segments: int
    """How many segments lie before it."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether `max.compaction.lag.ms` has passed for something in the dirty part."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def is_compacted(log: PartitionLog) -> bool:
    return COMPACT in log.config.cleanup_policy


def cleanable(log: PartitionLog, now_ms: int) -> Cleanable:
    segments = log.segments
    dirty_start = first_dirty_offset(log)
    count = len(segments) - 1  # not the active one
    stable = log.last_stable_offset
    while count and segments.bases[count] > stable:
        count -= 1
    lag_ms = log.config.min_compaction_lag_ms
    first_dirty = min(segments.slot_of(dirty_start), count)
    if lag_ms > 0:
        for slot in range(first_dirty, count):
            if segments[slot].greatest_timestamp() > now_ms - lag_ms:
                count = slot
                break
    clean_bytes = sum(segments[slot].size for slot in range(min(first_dirty, count)))
    dirty_bytes = sum(segments[slot].size for slot in range(first_dirty, count))
    if first_dirty < count and segments.bases[first_dirty + 1] <= dirty_start:
        dirty_bytes = 0  # everything before the end is clean
    return Cleanable(
        dirty_start,
        segments.bases[count],
        count,
        clean_bytes,
        dirty_bytes,
        dirty_bytes > 0 and _is_overdue(log, first_dirty, now_ms),
    )


def first_dirty_offset(log: PartitionLog) -> int:
    """Where the last pass ended, unless the log has become another since."""
    cleaned = log.cleaned_offset
    return cleaned if log.log_start_offset <= cleaned <= log.log_end_offset else log.log_start_offset


def _is_overdue(log: PartitionLog, first_dirty: int, now_ms: int) -> bool:
    clean_until = now_ms - log.config.max_compaction_lag_ms
    if clean_until <= 0:
        return False
    for slot in range(first_dirty, len(log.segments) - 1):
        first = log.segments[slot].read_first_timestamp()
        if first is not None and 0 < first < clean_until:
            return True
    return False
