"""What a pass may clean and how: the cleaner's settings, the dirty part of a log, and the plan that threads work on.

The rules are those of Kafka's LogCleanerManager. Never cleaned are the active segment, offsets at or after the last
stable offset (which is not past the high watermark), and records younger than `min.compaction.lag.ms`. A log is due for
a pass when the dirty part of its cleanable bytes is more than `min.cleanable.dirty.ratio`, or has a record older than
`max.compaction.lag.ms`.
"""

from array import array
from collections.abc import Callable
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import log
from millstream.formats.records.opening import WIDEST, OpeningLimits
from millstream.node.storage.disk import Disk
from millstream.node.storage.index.transaction_index import AbortedTransaction
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.log.segment import Segment
from millstream.node.storage.opening_limits import opening_limits


class CleaningAbortedError(Exception):
    """The log has changed during the pass, or the node stops. Not a failure: the next pass starts again."""


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be cleaned: its batches are in [base_offset, end_offset)."""

    segment: Segment
    end_offset: int

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def size(self) -> int:
        return self.segment.size


@dataclass(frozen=True, slots=True)
class LastWritten:
    """What must be kept of a producer: the batch that ends at this offset, or the markers of its epoch if it has
    none."""

    offset: int | None
    epoch: int


@dataclass(slots=True)
class PassStats:
    """Counters of a pass."""

    mapped_bytes: int = 0
    mapped_keys: int = 0
    map_used_bytes: int = 0
    read_bytes: int = 0
    read_records: int = 0
    written_bytes: int = 0
    written_records: int = 0
    opened_bytes: int = 0
    """Decompressed bytes."""
    passed_over: int = 0
    """Batches that are kept as they are, because they are above the limits for decompression."""
    first_passed_over: int = -1
    """The offset of the first of them."""


@dataclass(slots=True)
class Plan:
    """One pass over a log, as the event loop saw the log at its begin. Threads use nothing else."""

    disk: Disk
    directory: str
    sources: list[Source]
    """From the log's start to the first segment that may not be cleaned."""
    dirty_start: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    block_bytes: int
    map_bytes: int
    producers: dict[int, LastWritten]
    aborted: list[AbortedTransaction]
    limits: OpeningLimits
    not_mapped: "array[int]" = field(default_factory=lambda: array("q"))
    """Offsets, in order, of batches of the dirty part that were above the limits when they were decompressed, or whose
    records cannot be read. Batches whose header has too many records are not here."""
    checks_records: bool = False
    """Whether all records of a batch are checked before they are mapped: a batch with a malformed record was found."""
    is_aborted: bool = False
    """Set by the loop, read by threads between blocks."""
    yield_interpreter: Callable[[], None] = lambda: None
    """Called between steps, in the thread."""
    stats: PassStats = field(default_factory=PassStats)

    def check(self) -> None:
        """Between steps: let other threads run, and end the pass if it is aborted."""
        self.yield_interpreter()
        if self.is_aborted:
            raise CleaningAbortedError


SMALLEST_BLOCK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The cleaner's settings as they are now; all but `enable` may change while it works."""

    enable: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    io_max_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000
    opening: OpeningLimits = WIDEST
    """A batch above these limits is not decompressed, but kept as it is."""

    @property
    def map_bytes(self) -> int:
        """The maximal size of the key map of one thread."""
        return int(self.dedupe_buffer_bytes / self.threads * self.load_factor)

    @property
    def block_bytes(self) -> int:
        """How much one thread reads at once: half of its buffer, because as much may wait to be written."""
        return max(self.io_buffer_bytes // self.threads // 2, SMALLEST_BLOCK_BYTES)


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config[log.LOG_CLEANER_ENABLE],
        threads=config[log.LOG_CLEANER_THREADS],
        dedupe_buffer_bytes=config[log.LOG_CLEANER_DEDUPE_BUFFER_SIZE],
        load_factor=config[log.LOG_CLEANER_IO_BUFFER_LOAD_FACTOR],
        io_buffer_bytes=config[log.LOG_CLEANER_IO_BUFFER_SIZE],
        io_max_bytes_per_second=config[log.LOG_CLEANER_IO_MAX_BYTES_PER_SECOND],
        backoff_ms=config[log.LOG_CLEANER_BACKOFF_MS],
        opening=opening_limits(config),
    )


SMOOTHING_SECONDS = 0.3
"""The size of one step, in seconds of the rate."""


class Throttle:
    """Limits how fast all threads of the cleaner read and write (`log.cleaner.io.max.bytes.per.second`)."""

    __slots__ = ("_free_at", "bytes_per_second")

    def __init__(self) -> None:
        self.bytes_per_second = float("inf")
        self._free_at = 0.0

    def piece_bytes(self, most: int) -> int:
        """How many bytes to process before `delay_seconds` is called again."""
        return int(min(most, max(1.0, self.bytes_per_second * SMOOTHING_SECONDS)))

    def delay_seconds(self, done_bytes: int, now: float) -> float:
        """How long to wait after so many bytes."""
        self._free_at = max(self._free_at, now) + done_bytes / self.bytes_per_second
        return max(0.0, self._free_at - now)


COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a log that a pass may clean."""

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
    """Where the last pass ended, unless the log was truncated or replaced since."""
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
