"""Retention: removes segments that are too old, above the size limit, or before the log start offset.

Only whole segments, oldest first, and none that reaches past the high watermark. The rules are Kafka's. The segments of
a tiered log are removed by `local.retention.*`, and only if they are in the tier and flushed; `node/tier` applies the
retention of the topic to the tier.
"""

import logging

from millstream.config.topic_config import LIKE_LOCAL_RETENTION, LIKE_RETENTION
from millstream.node.storage.disk import Job
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.storage")

NO_LIMIT = -1
NANOSECONDS_PER_MS = 1_000_000


def retain(log: PartitionLog, now_ms: int) -> list[Job]:
    """Drop expired segments, and roll by the clock; the jobs remove the files.

    Segments are dropped first, because that needs no room on the disk.
    """
    jobs: list[Job] = []
    try:
        count = expired_count(log, now_ms)
        all_expired = count == len(log.segments)
        sealed = count - 1 if all_expired else count
        if sealed:
            jobs.append(_drop(log, sealed))
        if all_expired or log.segments.active.is_idle_roll_due(log.config, now_ms):
            log.roll(now_ms)
        if all_expired:
            jobs.append(_drop(log, 1))
    except OSError as error:
        _log.error("retention_failed partition=%s error=%s", log.topic_partition, error)
    return jobs


def _drop(log: PartitionLog, count: int) -> Job:
    new_start = log.segments[count].base_offset
    _log.info("segments_expired partition=%s count=%d new_start=%d", log.topic_partition, count, new_start)
    return log.drop_segments(count)


def expired_count(log: PartitionLog, now_ms: int) -> int:
    """How many of the oldest segments have expired. If all have, the caller rolls first."""
    config = log.config
    if config.remote_storage_enable and not config.remote_log_copy_disable:
        return max(_before_start(log), min(_locally_expired(log, now_ms), _tiered(log)))
    if "delete" not in config.cleanup_policy or config.is_mirror:  # a mirror's start follows the source
        return _before_start(log)
    return max(_before_start(log), _too_old(log, config.retention_ms, now_ms), _too_large(log, config.retention_bytes))


def waits_for_tier(log: PartitionLog, now_ms: int) -> bool:
    """Whether local retention would remove more segments if they were in the tier."""
    return log.config.remote_storage_enable and _locally_expired(log, now_ms) > _tiered(log)


def ready_to_copy(log: PartitionLog, now_ms: int) -> int:
    """How many of the oldest segments may go to the tier, by `remote.copy.lag.ms` and `remote.copy.lag.bytes`: those
    that one of both lets go, and those that local retention waits for. May read a time index."""
    config = log.config
    lag_ms, lag_bytes = config.remote_copy_lag_ms, config.remote_copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return len(log.segments)
    counts = [_locally_expired(log, now_ms)]
    if lag_ms != LIKE_LOCAL_RETENTION:
        counts.append(_too_old(log, lag_ms, now_ms))
    if lag_bytes != LIKE_LOCAL_RETENTION:
        counts.append(_too_large(log, lag_bytes))
    return max(counts)


def _locally_expired(log: PartitionLog, now_ms: int) -> int:
    config = log.config
    keep_ms, keep_bytes = config.local_retention_ms, config.local_retention_bytes
    return max(
        _too_old(log, config.retention_ms if keep_ms == LIKE_RETENTION else keep_ms, now_ms),
        _too_large(log, config.retention_bytes if keep_bytes == LIKE_RETENTION else keep_bytes),
    )


def _tiered(log: PartitionLog) -> int:
    """How many of the oldest segments are in the tier, and not needed by a restart."""
    safe = log.tier.removable_end if log.tier is not None else 0
    segments = log.segments
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= safe:
        count += 1
    return count


def _deletable(log: PartitionLog, slot: int) -> bool:
    segments = log.segments
    if slot + 1 < len(segments):
        return segments[slot + 1].base_offset <= log.readable_end
    return segments[slot].size > 0 and log.log_end_offset <= log.readable_end


def _before_start(log: PartitionLog) -> int:
    count = 0
    segments = log.segments
    while count + 1 < len(segments) and segments[count + 1].base_offset <= log.log_start_offset:
        count += 1
    return count


def _too_old(log: PartitionLog, retention_ms: int, now_ms: int) -> int:
    if retention_ms == NO_LIMIT:
        return 0
    count = 0
    for slot, segment in enumerate(log.segments):
        if segment.size == 0:
            break
        greatest = segment.greatest_timestamp()
        if greatest < 0:
            greatest = segment.file().modified_ns() // NANOSECONDS_PER_MS
        if now_ms - greatest <= retention_ms or not _deletable(log, slot):
            break
        count += 1
    return count


def _too_large(log: PartitionLog, limit: int) -> int:
    if limit == NO_LIMIT:
        return 0
    excess = log.size_bytes - limit
    count = 0
    for slot, segment in enumerate(log.segments):
        excess -= segment.size
        if excess < 0 or not _deletable(log, slot):
            break
        count += 1
    return count
