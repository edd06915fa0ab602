"""Reading a log: from an offset to a slice, a range of whole batches in one segment that is sent as it is on disk.

At the tail, a table in memory has the positions of batches. Before it, the index and a short walk over headers find the
position: at once if that needs no disk, else in `Slice.prepare`.

A slice is `ready` when its bytes are in the page cache and this process vouches for them: it wrote them, or has checked
their checksums since the file last changed. Otherwise `prepare`, run in a thread, reads and checks them. A damaged
first batch is CORRUPT_MESSAGE, a damaged later one ends the slice before it. `position` and `length` are final only
when the slice is ready.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import LOG_OVERHEAD, PLACEMENT, Bytes
from millstream.node.storage.disk import File
from millstream.node.storage.log.batch_scan import walk_checked, walk_headers
from millstream.node.storage.log.segment import SEARCH_BLOCK_BYTES, Segment
from millstream.node.storage.log.segment_list import SegmentList

if TYPE_CHECKING:
    from millstream.node.storage.log.partition_log import PartitionLog

READ_AHEAD_BYTES = 4 << 20


class NoFile:
    """The file of an empty slice."""

    __slots__ = ()
    path = ""

    def fileno(self) -> int:
        raise OSError("an empty slice has no file")

    def read_at(self, position: int, length: int) -> bytes:
        return b""

    def write_at(self, position: int, data: Bytes) -> None:
        raise OSError("an empty slice has no file")

    def size(self) -> int:
        return 0

    def truncate(self, size: int) -> None:
        raise OSError("an empty slice has no file")

    def sync(self) -> None:
        return

    def is_resident(self, position: int, length: int) -> bool:
        return True

    def read_ahead(self, position: int, length: int) -> None:
        return

    def modified_ns(self) -> int:
        return 0


class Slice:
    __slots__ = ("_bounds", "_segments", "count", "file", "length", "position", "ready")

    def __init__(
        self,
        file: File,
        position: int,
        length: int,
        ready: bool,
        segments: "Sequence[tuple[Segment, int]]" = (),
        bounds: "Bounds | None" = None,
        count: int = 0,
    ) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.ready = ready
        self._segments = segments
        self._bounds = bounds
        self.count = count
        """How many offsets are in it. Exact if it ends with the segment or the readable part, or was checked; else an
        estimate by its share of the bytes."""

    @property
    def is_located(self) -> bool:
        """Whether its position was known when it was made; its length may still shrink."""
        return self._bounds is None

    def read(self) -> bytes:
        """The bytes, for callers that cannot send a file."""
        return self.file.read_at(self.position, self.length)

    def prepare(self) -> None:
        """Find, read and check the bytes; may block."""
        if self.ready:
            return
        try:
            if self._bounds is not None:
                self._locate(self._bounds)
            if self.length:
                self._check()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.ready = True

    def _locate(self, bounds: "Bounds") -> None:
        self.length = 0
        for segment, end_offset in self._segments:
            try:
                found = segment.successor is None and self._locate_in(segment, end_offset, bounds)
            except FileNotFoundError:
                if segment.successor is None:
                    raise
                found = False
            if not found and segment.successor is not None:
                # The cleaner has replaced the segment. The new one may reach further: a search finds the end.
                found = self._locate_in(segment.newest(), bounds.up_to + 1, bounds)
            if found:
                return

    def _locate_in(self, segment: Segment, end_offset: int, bounds: "Bounds") -> bool:
        found = segment.find(bounds.offset, in_thread=True)
        if found is None:
            return False  # no batch is left up to the next segment
        self._segments = ((segment, end_offset),)
        self.file = segment.file()
        self.position = found
        end = bounds.end_position(segment, end_offset, in_thread=True)
        self.length = extent(segment, found, end, bounds, self.file)
        return True

    def _check(self) -> None:
        segment = self._segments[0][0]
        modified_ns = self.file.modified_ns()
        start = end = self.position
        next_offset = 0
        first_offset = -1
        # Readers of old data go on reading: the disk reads the next range while this one is checked and sent.
        self.file.read_ahead(start, self.length + READ_AHEAD_BYTES)
        for position, header, holds in walk_checked(self.file, start, start + self.length):
            if not holds or header.base_offset < next_offset:
                break
            if first_offset < 0:
                first_offset = header.base_offset
            next_offset = header.last_offset + 1
            end = position + header.size
        if end == start:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at byte {start} of {self.file.path} is damaged")
        self.length = end - start
        self.count = next_offset - (
            max(first_offset, self._bounds.offset) if self._bounds is not None else first_offset
        )
        segment.vouch(start, end, modified_ns)
        segment.hint(next_offset, end)


class Bounds:
    """The range that a reader requests."""

    __slots__ = ("at_least_one", "max_bytes", "offset", "up_to")

    def __init__(self, offset: int, max_bytes: int, up_to: int, at_least_one: bool) -> None:
        self.offset = offset
        self.max_bytes = max_bytes
        self.up_to = up_to
        self.at_least_one = at_least_one

    def end_position(self, segment: Segment, end_offset: int, *, in_thread: bool = False) -> int:
        """The position where the readable part of a segment ends; `end_offset` is the end of the segment."""
        if self.up_to >= end_offset:
            return segment.size
        # The table of the latest batches may only be used on the event loop.
        position = None if in_thread else segment.position_of(self.up_to)
        if position is None:
            found = segment.find(self.up_to, in_thread=in_thread)
            position = segment.size if found is None else found
        return position


def extent(segment: Segment, start: int, end: int, bounds: Bounds, file: File) -> int:
    """How many bytes from `start`, a batch's first byte, a reader gets: whole batches where the index knows a
    boundary."""
    length = end - start
    max_bytes = bounds.max_bytes
    if length <= max_bytes:
        return max(length, 0)
    boundary = segment.boundary_at_or_before(start + max_bytes)
    if boundary > start:
        return boundary - start
    first = PLACEMENT.unpack(file.read_at(start, PLACEMENT.size))[1] + LOG_OVERHEAD
    if first > max_bytes:
        return min(first, length) if bounds.at_least_one else 0
    return max_bytes


NO_FILE = NoFile()


def empty_slice() -> Slice:
    return Slice(NO_FILE, 0, 0, True)


SEARCHED_SEGMENTS = 16
"""How many segments a search may skip because the cleaner has removed the offsets from them."""


def read(
    segments: SegmentList, log_end_offset: int, offset: int, max_bytes: int, up_to: int, at_least_one: bool
) -> Slice:
    """As `PartitionLog.read`, for an offset within the log and below `up_to`."""
    segment = segments.active
    end_offset = log_end_offset
    slot = -1
    if offset < segment.base_offset:
        slot = segments.slot_of(offset)
        segment = segments[slot]
        end_offset = segments.end_of(slot, log_end_offset)
    start = segment.position_of(offset)
    end = segment.size if up_to >= end_offset else segment.position_of(up_to)
    if start is None or end is None or end <= start:
        slot = slot if slot >= 0 else len(segments) - 1
        return _search(segments, slot, log_end_offset, Bounds(offset, max_bytes, up_to, at_least_one))
    length = span = end - start
    file = segment.log.get()
    if length > max_bytes:
        length = extent(segment, start, end, Bounds(offset, max_bytes, up_to, at_least_one), file)
        if length == 0:
            return empty_slice()
    return _slice(segment, file, start, length, end_offset, min(up_to, end_offset) - offset, span)


def _slice(segment: Segment, file: File, start: int, length: int, end_offset: int, count: int, span: int) -> Slice:
    """`count` offsets are in the `span` of bytes that begins at `start`."""
    vouched = segment.vouched_length(file, start, length)
    if vouched and file.is_resident(start, vouched):
        return Slice(
            file, start, vouched, True, (), None, count if vouched == span else max(count * vouched // span, 1)
        )
    return Slice(file, start, length, False, ((segment, end_offset),))


def _search(segments: SegmentList, slot: int, log_end_offset: int, bounds: Bounds) -> Slice:
    segment = segments[slot]
    if segment.index_is_open():
        file = segment.log.get()
        if file.is_resident(segment.search_start(bounds.offset), SEARCH_BLOCK_BYTES):
            try:
                found = segment.find(bounds.offset)
                if found is not None:
                    end_offset = segments.end_of(slot, log_end_offset)
                    end = bounds.end_position(segment, end_offset)
                    length = extent(segment, found, end, bounds, file)
                    count = min(bounds.up_to, end_offset) - bounds.offset
                    if not length:
                        return empty_slice()
                    return _slice(segment, file, found, length, end_offset, count, end - found)
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    last = min(slot + SEARCHED_SEGMENTS, len(segments))
    candidates = [(segments[at], segments.end_of(at, log_end_offset)) for at in range(slot, last)]
    return Slice(segment.log.get(), 0, min(bounds.max_bytes, segment.size), False, candidates, bounds)


class BatchLocation(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    """In the file."""
    size: int
    is_control: bool
    is_transactional: bool
    producer_id: int
    is_empty: bool
    """The cleaner has removed the records; the header keeps the producer's last sequence."""


def walk_batches(records: Slice) -> Iterator[BatchLocation]:
    """The whole batches of a ready slice, by their headers."""
    end = records.position + records.length
    for position, header in walk_headers(records.file, records.position, end):
        yield BatchLocation(
            header.base_offset,
            header.last_offset,
            position,
            header.size,
            header.is_control,
            header.is_transactional,
            header.producer_id,
            header.record_count == 0,
        )


def aborted_among(log: "PartitionLog", records: Slice, offset: int, up_to: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions in a slice just read from `offset` on, before `up_to`.

    The end of a slice is known only once it is read; the index has an offset that it does not reach. So a transaction
    too many may be returned, which does no harm: a missing one would make aborted records readable.
    """
    if not records.length:
        return []
    if offset < log.local_start_offset and log.tier is not None:
        found = log.tier.aborted(records)
        return log.aborted_transactions(log.local_start_offset, up_to) if found is None else found
    segments = log.segments
    slot = segments.slot_of(offset)
    if records.is_located:
        end = segments.end_of(slot, log.log_end_offset)
        if segments[slot].aborted:
            end = min(end, segments[slot].offset_beyond(records.position + records.length, end))
    else:
        # It may be in a later segment, where the first ones no longer have the offsets.
        last = min(slot + SEARCHED_SEGMENTS, len(segments)) - 1
        end = segments.end_of(last, log.log_end_offset)
    return log.aborted_transactions(offset, min(end, up_to))
