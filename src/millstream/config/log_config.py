"""What one partition log needs to know of its topic's settings, as plain typed values."""

from dataclasses import dataclass, field

DAY_MS = 24 * 60 * 60 * 1000
NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic-level settings, resolved: topic override, else broker setting, else default."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = NO_LIMIT
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = (1 << 20) + 12
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = (1 << 63) - 1
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    flush_messages: int = (1 << 63) - 1
    flush_ms: int = (1 << 63) - 1
    flush_before_ack: bool = False
    """Group commit: an ack waits until its records are on disk, and one fsync serves all that wait."""
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    roll_ms: int = field(init=False)
    """The age at which a segment is closed: a compacted one in time for `max.compaction.lag.ms`."""

    def __post_init__(self) -> None:
        is_compacted = "compact" in self.cleanup_policy
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)
