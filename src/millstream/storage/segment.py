"""One segment: a `.log` file, its offset index and its time index.

The active segment keeps its index entries in memory, plus an exact table of its latest batches so that reading the tail
needs no search on disk; a sealed one maps its index files when asked. A segment also knows which of its bytes this
process can vouch for (see `slice`). When to roll, and which offsets are readable, is the partition log's decision.
"""

import logging
from array import array
from bisect import bisect_right

from millstream.model.errors import ErrorCode, KafkaError
from millstream.storage import offset_index, time_index
from millstream.storage.batch_scan import walk_headers
from millstream.storage.disk import Disk, File
from millstream.storage.file_cache import FileCache
from millstream.storage.file_names import INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, TIME_INDEX_SUFFIX, offset_file
from millstream.storage.index_builder import IndexBuilder
from millstream.storage.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from millstream.storage.time_index import TimeIndex

logger = logging.getLogger("millstream.storage")

TAIL_BATCHES = 128
"""How many of the latest batches the active segment can find without a search; it keeps up to twice as many."""
READ_HINTS = 16
NO_TIMESTAMP = -1


class Segment:
    __slots__ = (
        "_disk",
        "_entries",
        "_indexes_written",
        "base_offset",
        "bytes_since_entry",
        "created_ms",
        "directory",
        "first_timestamp",
        "hints",
        "index",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "sealed_modified_ns",
        "size",
        "tail_offsets",
        "tail_positions",
        "times",
        "trusted_from",
        "verified",
    )

    def __init__(self, disk: Disk, cache: FileCache, directory: str, base_offset: int, created_ms: int) -> None:
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.log = cache.file(offset_file(directory, base_offset, LOG_SUFFIX))
        self._entries = cache.map(offset_file(directory, base_offset, INDEX_SUFFIX))
        self.size = 0
        # Present while the segment is active:
        self.index: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.tail_offsets: array[int] = _NOTHING
        self.tail_positions: array[int] = _NOTHING
        self.bytes_since_entry = 0
        self._indexes_written = False
        # The timestamp of the first batch, from which `segment.ms` is measured; the greatest, by which retention goes.
        self.first_timestamp: int | None = None
        self.max_timestamp: int | None = None
        self.max_timestamp_offset = base_offset
        # Bytes from here on were appended by this process; below, one interval whose checksums it has checked.
        self.trusted_from = 0
        self.verified = (0, 0)
        self.sealed_modified_ns = 0
        # Where readers in sequence continue: offset -> position, learnt while their last slice was checked.
        self.hints: dict[int, int] = {}

    # Life

    def create(self) -> None:
        """Make the empty file and become active."""
        self.log.adopt(self._disk.create(self.log.path))
        self.activate(OffsetIndex(), TimeIndex())
        self.max_timestamp = NO_TIMESTAMP

    def activate(self, index: OffsetIndex, times: TimeIndex) -> None:
        self.index = index
        self.times = times
        self.tail_offsets = array("q")
        self.tail_positions = array("q")
        self._indexes_written = False

    def reactivate(self) -> None:
        """Make a sealed segment the active one again, for a log that was cut back to it."""
        if self.index is None:
            builder = IndexBuilder(self.base_offset)
            for position, header in walk_headers(self.file(), 0, self.size):
                builder.add(position, header)
            self.activate(builder.index, builder.times)
            self.max_timestamp, self.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset

    def seal(self) -> None:
        """Write the indexes and drop them from memory; nothing is appended any more."""
        self.write_indexes()
        self.sealed_modified_ns = self.log.get().modified_ns()
        self.verified = (self.trusted_from, self.size)
        self.trusted_from = self.size
        self.index = self.times = None
        self.tail_offsets = self.tail_positions = _NOTHING

    def write_indexes(self) -> None:
        """Bring the index files up to date, with the closing time entry that Kafka adds when a segment is sealed or
        closed."""
        index, times = self.index, self.times
        if index is None or times is None or self._indexes_written:
            return
        greatest = self.greatest_timestamp()
        if greatest >= 0:
            times.append(greatest, self.max_timestamp_offset - self.base_offset)
        self._entries.close()
        self._disk.write_atomically(self._entries.path, index.to_bytes(), durable=False)
        self._disk.write_atomically(self.path(TIME_INDEX_SUFFIX), times.to_bytes(), durable=False)
        self._indexes_written = True

    def path(self, suffix: str) -> str:
        return offset_file(self.directory, self.base_offset, suffix)

    def files(self) -> list[str]:
        return [path for path in map(self.path, SEGMENT_SUFFIXES) if self._disk.exists(path)]

    def close(self) -> None:
        self.log.close()
        self._entries.close()

    # Appending (active only)

    def note(self, base_offset: int, last_offset: int, size: int, max_timestamp: int, interval_bytes: int) -> None:
        """Take note of a batch that was just written at the end."""
        position = self.size
        if max_timestamp > self.max_timestamp:  # type: ignore[operator]  # an active segment always knows it
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        if self.bytes_since_entry > interval_bytes:
            index, times = self.index, self.times
            assert index is not None and times is not None
            index.append(last_offset - self.base_offset, position)
            times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)  # type: ignore[arg-type]
            self.bytes_since_entry = 0
        self.bytes_since_entry += size
        self._indexes_written = False
        tail_offsets = self.tail_offsets
        tail_offsets.append(base_offset)
        self.tail_positions.append(position)
        if len(tail_offsets) >= 2 * TAIL_BATCHES:
            del tail_offsets[:TAIL_BATCHES]
            del self.tail_positions[:TAIL_BATCHES]
        self.size = position + size

    def truncate(self, position: int, offset: int) -> None:
        """Cut an active segment at a batch boundary."""
        index, times = self.index, self.times
        assert index is not None and times is not None
        self.log.get().truncate(position)
        self.size = position
        relative = offset - self.base_offset
        index.truncate(relative)
        times.truncate(relative)
        self.tail_offsets = array("q")
        self.tail_positions = array("q")
        self.bytes_since_entry = 0
        self.hints.clear()
        self.trusted_from = min(self.trusted_from, position)
        self.verified = (min(self.verified[0], position), min(self.verified[1], position))
        self._indexes_written = False
        if position == 0:
            self.first_timestamp = None
        self.find_greatest_timestamp(times)

    def find_greatest_timestamp(self, times: TimeIndex) -> None:
        """From the last time index entry and the batches after it."""
        timestamp, relative = times.last() or (NO_TIMESTAMP, 0)
        offset = self.base_offset + relative
        _, start = self._entry_before(offset)
        for _, header in walk_headers(self.log.get(), start, self.size):
            if header.max_timestamp > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        self.max_timestamp, self.max_timestamp_offset = timestamp, offset

    # Reading

    def greatest_timestamp(self) -> int:
        """The greatest timestamp in the segment, -1 when it has none; a sealed one's last time index entry tells."""
        greatest = self.max_timestamp
        if greatest is None:
            last = time_index.last_entry(self.mapped_times())
            greatest = NO_TIMESTAMP
            if last is not None:
                greatest, self.max_timestamp_offset = last[0], self.base_offset + last[1]
            self.max_timestamp = greatest
        return greatest

    def mapped_times(self) -> memoryview:
        try:
            return self._disk.map(self.path(TIME_INDEX_SUFFIX))
        except FileNotFoundError:
            return memoryview(b"")

    def position_of(self, offset: int) -> int | None:
        """The start of the batch that holds `offset`, if memory alone can tell."""
        tail = self.tail_offsets
        slot = bisect_right(tail, offset) - 1
        if slot >= 0:
            return self.tail_positions[slot]
        if offset == self.base_offset:
            return 0
        return self.hints.get(offset)

    def index_is_open(self) -> bool:
        return self.index is not None or self._entries.opened is not None

    def search_start(self, offset: int) -> int:
        """Where to start walking to find `offset`."""
        return self._entry_before(offset)[1]

    def find(self, offset: int) -> tuple[int, int] | None:
        """(position, size) of the first batch whose last offset is not before `offset`; walks from the nearest index
        entry."""
        expected, start = self._entry_before(offset)
        if expected >= 0:
            at_entry = next(walk_headers(self.file(), start, self.size, block_bytes=64), None)
            if at_entry is None or at_entry[1].last_offset != expected + self.base_offset:
                # The index names a batch that is not there. It is only a shortcut: make it anew.
                self.rebuild_indexes()
                _, start = self._entry_before(offset)
        position = start
        for position, header in walk_headers(self.file(), start, self.size, block_bytes=4096):
            if header.last_offset >= offset:
                return position, header.size
            position += header.size
        if position < self.size:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"offset {offset}: no batch can be read at byte {position} of {self.log.path}",
            )
        return None

    def read_end_offset(self) -> int:
        """The offset after the segment's last batch."""
        end = self.base_offset
        for _, header in walk_headers(
            self.file(), self.search_start(self.base_offset + MAX_RELATIVE_OFFSET), self.size
        ):
            end = header.last_offset + 1
        return end

    def rebuild_indexes(self) -> None:
        """Make the index files of a sealed segment from its batches."""
        logger.warning("index_rebuilt segment=%s", self.log.path)
        builder = IndexBuilder(self.base_offset)
        for position, header in walk_headers(self.file(), 0, self.size):
            builder.add(position, header)
        self.write_built(builder)

    def write_built(self, builder: IndexBuilder) -> None:
        self._entries.close()
        builder.write(self._disk, self.directory)

    def boundary_at_or_before(self, position: int) -> int:
        """A batch start not past `position` that the index knows, or 0."""
        if self.index is not None:
            return self.index.boundary_at_or_before(position)
        try:
            return offset_index.boundary_at_or_before(self._entries.get(), position)
        except FileNotFoundError:
            return 0

    def first_offset_for_time(self, timestamp: int) -> int:
        """An offset before which nothing is as late as `timestamp`."""
        relative = (
            self.times.lookup(timestamp)
            if self.times is not None
            else time_index.lookup(self.mapped_times(), timestamp)
        )
        return self.base_offset + relative

    def read_first_timestamp(self) -> int | None:
        """The first batch's greatest timestamp."""
        if self.first_timestamp is None and self.size:
            for _, header in walk_headers(self.log.get(), 0, self.size, block_bytes=64):
                self.first_timestamp = header.max_timestamp
                break
        return self.first_timestamp

    def vouch(self, start: int, end: int, modified_ns: int) -> None:
        """Remember that the checksums of the batches in [start, end) hold; one interval is kept, grown where it
        touches."""
        low, high = self.verified
        if modified_ns != self.sealed_modified_ns and self.index is None:
            self.sealed_modified_ns = modified_ns
            low = high = start
        if start <= high and end >= low:
            start, end = min(start, low), max(end, high)
        self.verified = (start, end)
        if self.index is not None and end >= self.trusted_from >= start:
            self.trusted_from = start

    def hint(self, offset: int, position: int) -> None:
        if len(self.hints) >= READ_HINTS:
            self.hints.clear()
        self.hints[offset] = position

    def file(self) -> File:
        return self.log.get()

    def _entry_before(self, offset: int) -> tuple[int, int]:
        relative = offset - self.base_offset
        if self.index is not None:
            return self.index.lookup(relative)
        try:
            return offset_index.lookup(self._entries.get(), relative)
        except FileNotFoundError:
            self.rebuild_indexes()
            return offset_index.lookup(self._entries.get(), relative)


_NOTHING: "array[int]" = array("q")
