"""What one pass over a log is to do, as the event loop saw the log when the pass began. Threads work on this alone."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.formats.records.opening import OpeningLimits
from millstream.node.storage.disk import Disk
from millstream.node.storage.index.transaction_index import AbortedTransaction
from millstream.node.storage.log.segment import Segment


class CleaningAbortedError(Exception):
    """The log has changed under the pass, or the node stops: nothing is wrong, the next pass begins anew."""


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
    """What must stay of a producer: the batch that ends at this offset, or the markers of its epoch if it has none."""

    offset: int | None
    epoch: int


@dataclass(slots=True)
class PassStats:
    """What a pass has done so far."""

    mapped_bytes: int = 0
    mapped_keys: int = 0
    map_used_bytes: int = 0
    read_bytes: int = 0
    read_records: int = 0
    written_bytes: int = 0
    written_records: int = 0
    opened_bytes: int = 0
    """What was decompressed."""
    passed_over: int = 0
    """Batches that are kept as they are, because they are more than the limits allow to open."""
    first_passed_over: int = -1
    """The offset of the first of them."""


@dataclass(slots=True)
class Plan:
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
    """Offsets, in order, of batches of the dirty part that became too large when they were opened. Those that say
    themselves that they have too many records are not here."""
    is_aborted: bool = False
    """Set by the loop, looked at by threads between blocks."""
    breathe: Callable[[], None] = lambda: None
    """Called between stretches of work, in the thread."""
    stats: PassStats = field(default_factory=PassStats)

    def check(self) -> None:
        """Between stretches of work: let others have the interpreter, and see whether to go on."""
        self.breathe()
        if self.is_aborted:
            raise CleaningAbortedError
