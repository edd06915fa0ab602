"""One partition of a mirror topic that this node leads and copies: its place at the source, its progress."""

from millstream.common.lazy_dataclass import dataclass
from millstream.node.mirror.core.links import MirrorTopic
from millstream.node.replicas.partition import Partition

UNKNOWN = -1


@dataclass(slots=True)
class Totals:
    """What was copied since the start of the process."""

    bytes_copied: int = 0
    records_skipped: int = 0
    records_truncated: int = 0

    def add(self, pulled: "PulledPartition") -> None:
        self.bytes_copied += pulled.bytes_copied
        self.records_skipped += pulled.records_skipped
        self.records_truncated += pulled.records_truncated


@dataclass(slots=True, eq=False)
class PulledPartition:
    partition: Partition
    topic: MirrorTopic
    leader: int = UNKNOWN
    """The leader at the source, and its epoch."""
    leader_epoch: int = UNKNOWN
    source_start: int = UNKNOWN
    source_end: int = UNKNOWN
    """The high watermark of the source in the last response."""
    caught_up_at: float = 0.0
    """When this log last had everything that the source had."""
    rests_until: float = 0.0
    bytes_copied: int = 0
    records_skipped: int = 0
    """Offsets that the source had removed before they were copied."""
    records_truncated: int = 0
    """Offsets that were cut here because the source has others."""
    bytes_per_record: float = 0.0
    problem: str = ""

    @property
    def index(self) -> int:
        return self.partition.topic_partition.partition

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def lag_records(self) -> int:
        return max(0, self.source_end - self.end) if self.source_end >= 0 else 0

    @property
    def lag_bytes(self) -> int:
        """About: by the size of the records that came last."""
        return int(self.lag_records * self.bytes_per_record)

    def lag_seconds(self, now: float) -> float:
        """How long ago this log had everything; 0 if it has everything now."""
        return max(0.0, now - self.caught_up_at) if self.lag_records else 0.0

    def copied(self, size: int, offsets: int) -> None:
        self.bytes_copied += size
        if offsets > 0:
            self.bytes_per_record = size / offsets
