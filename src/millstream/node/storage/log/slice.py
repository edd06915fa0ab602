"""A range of whole batches in a segment, to be sent as it lies on disk.

A slice is `ready` when its bytes are in the page cache and this process vouches for them: it wrote them, or it has
checked their checksums since the file last changed. Otherwise `prepare`, run in a thread, reads and checks them; a bad
first batch is CORRUPT_MESSAGE, a bad later one ends the slice before it. `position` and `length` are final only when
the slice is ready.
"""

from collections.abc import Sequence

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import LOG_OVERHEAD, PLACEMENT, Bytes
from millstream.node.storage.disk import File
from millstream.node.storage.log.batch_scan import walk_checked
from millstream.node.storage.log.segment import Segment

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
        """How many offsets are in it, as near as can be told without reading: exactly where it ends with the segment or
        the readable part, or was checked, else by its share of the bytes."""

    @property
    def is_located(self) -> bool:
        """Whether it was known where it lies when it was made; it may still turn out to be shorter."""
        return self._bounds is None

    def read(self) -> bytes:
        """The bytes themselves, for those who cannot send a file."""
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
                # The cleaner was here. Its segment may reach further than this one did: up to where, a search tells.
                found = self._locate_in(segment.newest(), bounds.up_to + 1, bounds)
            if found:
                return

    def _locate_in(self, segment: Segment, end_offset: int, bounds: "Bounds") -> bool:
        found = segment.find(bounds.offset, in_thread=True)
        if found is None:
            return False  # the offsets up to the next segment are gone
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
        # Whoever reads old data goes on reading: while this stretch is checked and sent, the disk fetches the next.
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
    """What a reader asked for."""

    __slots__ = ("at_least_one", "max_bytes", "offset", "up_to")

    def __init__(self, offset: int, max_bytes: int, up_to: int, at_least_one: bool) -> None:
        self.offset = offset
        self.max_bytes = max_bytes
        self.up_to = up_to
        self.at_least_one = at_least_one

    def end_position(self, segment: Segment, end_offset: int, *, in_thread: bool = False) -> int:
        """Where the readable part of a segment ends; `end_offset` is where the segment itself does."""
        if self.up_to >= end_offset:
            return segment.size
        # The table of the latest batches belongs to the loop, which moves it along.
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
