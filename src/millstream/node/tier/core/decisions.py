"""Decisions of tiered storage: which segments go up, and where the log starts by the retention of the topic."""

from collections.abc import Iterable
from typing import NamedTuple

from millstream.config.topic_config import NO_LIMIT, LogConfig
from millstream.node.tier.core.manifest import Manifest


class LocalSegment(NamedTuple):
    """A closed segment on this disk."""

    base_offset: int
    end_offset: int
    size: int


def to_copy(segments: Iterable[LocalSegment], tiered_end: int, stable_end: int) -> LocalSegment | None:
    """The next closed segment to copy: the first that reaches beyond the tier, if all of it is below `stable_end`: the
    high watermark, the last stable offset and the flushed offset."""
    for segment in segments:
        if segment.end_offset > tiered_end:
            return segment if segment.end_offset <= stable_end else None
    return None


def expired_start(manifest: Manifest, config: LogConfig, local_bytes: int, now_ms: int) -> int:
    """The log start by `retention.ms` and `retention.bytes`, which count for tier and disk together. `local_bytes` is
    the size of the part that is only on the disk."""
    start = manifest.log_start_offset
    if "delete" not in config.cleanup_policy or config.is_mirror:  # a mirror's start follows the source
        return start
    excess = NO_LIMIT
    if config.retention_bytes != NO_LIMIT:
        excess = manifest.size_bytes + local_bytes - config.retention_bytes
    for segment in manifest.readable:
        is_old = (
            config.retention_ms != NO_LIMIT
            and segment.max_timestamp >= 0
            and now_ms - segment.max_timestamp > config.retention_ms
        )
        excess -= segment.log_bytes
        if not is_old and (config.retention_bytes == NO_LIMIT or excess < 0):
            break
        start = segment.end_offset
    return start


def backoff_s(failures: int, chance: float) -> float:
    """The pause after this many failures in a row: 0.5 s, doubled up to 30 s, give or take a fifth."""
    doubled: float = 0.5 * 2 ** min(max(failures - 1, 0), 10)
    return min(doubled, 30.0) * (0.8 + 0.4 * chance)
