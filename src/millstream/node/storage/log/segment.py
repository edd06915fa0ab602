"""One segment: a `.log` file, its offset index, its time index, and the index of its aborted transactions.

The active segment has its index entries in memory, and a table of the exact positions of its latest batches, so that
reads of the tail need no search on disk. A sealed one maps its index files at the first use. A segment also knows for
which of its bytes this process vouches (see `log_reader`). The partition log decides which offsets are readable.
"""

import logging
from array import array
from bisect import bisect_right
from errno import ENOENT
from threading import Lock
from typing import Final

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.storage.disk import Disk, File, FileCache
from millstream.node.storage.file_formats import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_file,
)
from millstream.node.storage.index import offset_index, time_index
from millstream.node.storage.index.offset_index import MAX_RELATIVE_OFFSET, NO_ENTRY, OffsetIndex
from millstream.node.storage.index.time_index import NO_TIMESTAMP, IndexBuilder, TimeIndex
from millstream.node.storage.index.transaction_index import TransactionIndex
from millstream.node.storage.log.batch_scan import header_at, walk_headers
from millstream.node.storage.log.files import own

_log = logging.getLogger("millstream.storage")

TAIL_BATCHES: Final = 128
"""How many of the latest batches are in the table of the active segment; it holds up to twice as many."""
READ_HINTS = 16
SEARCH_BLOCK_BYTES = 8192
"""More than the bytes between two index entries, unless batches are large."""
_NOTHING: "array[int]" = array("q")
_rebuilding = Lock()
"""Two threads may find the same index damaged."""


class Segment:
    __slots__ = (
        "_disk",
        "_entries",
        "_indexes_written",
        "_times_checked",
        "aborted",
        "base_offset",
        "bytes_since_entry",
        "created_ms",
        "directory",
        "dropped",
        "first_timestamp",
        "hints",
        "index",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "sealed_modified_ns",
        "size",
        "successor",
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
        self.aborted = TransactionIndex(disk, offset_file(directory, base_offset, TRANSACTION_INDEX_SUFFIX))
        self.size = 0
        self.dropped = False
        """Whether it is no longer part of the log; then its files may be missing."""
        self.successor: Segment | None = None
        """The segment with its remaining records, after the cleaner has replaced it."""
        # Present while the segment is active:
        self.index: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.tail_offsets: array[int] = _NOTHING
        self.tail_positions: array[int] = _NOTHING
        self.bytes_since_entry = 0
        self._indexes_written = False
        self._times_checked = False
        # The timestamp of the first batch, for `segment.ms`; the greatest one, for retention.
        self.first_timestamp: int | None = None
        self.max_timestamp: int | None = None
        self.max_timestamp_offset = base_offset
        # Bytes from here on were appended by this process; below, one range whose checksums it has checked.
        self.trusted_from = 0
        self.verified = (0, 0)
        self.sealed_modified_ns = 0
        # Where sequential readers continue: offset -> position, noted when their last slice was checked.
        self.hints: dict[int, int] | None = None

    # Life

    def create(self) -> None:
        """Make the empty log file and become active. Index files are made when there are entries."""
        self.log.adopt(self._disk.create(self.log.path))
        self.activate(OffsetIndex(), TimeIndex())
        self.max_timestamp = NO_TIMESTAMP

    def activate(self, index: OffsetIndex, times: TimeIndex, *, written: bool = False) -> None:
        """Keep the indexes in memory from now on; `written`: the files have all entries."""
        self.index = index
        self.times = times
        self.tail_offsets = array("q")
        self.tail_positions = array("q")
        self.bytes_since_entry = self.size - index.last_position()
        self._indexes_written = written

    def activate_from_batches(self) -> int:
        """Become active with indexes made from the batches; returns the end of the last whole batch."""
        builder = IndexBuilder(self.base_offset)
        end = 0
        for position, header in walk_headers(self.file(), 0, self.size):
            builder.add(position, header)
            end = position + header.size
        self.activate(builder.index, builder.times)
        self.max_timestamp, self.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
        return end

    def seal(self) -> None:
        """Write the indexes and drop them from memory; there are no more appends.

        An OSError leaves the segment sealed with its indexes in memory: it can be read, and sealed again later.
        """
        self.verified = (self.trusted_from, self.size)
        self.sealed_modified_ns = self.file().modified_ns()
        self.write_indexes()
        self._times_checked = True
        self.trusted_from = self.size
        # In this order: a thread that sees no index finds the files.
        self.index = self.times = None
        self.tail_offsets = self.tail_positions = _NOTHING

    def write_indexes(self) -> None:
        """Write the index files, with the closing time entry that Kafka adds when a segment is sealed or closed."""
        index, times = self.index, self.times
        if index is None or times is None or self._indexes_written:
            return
        greatest = self.greatest_timestamp()
        if greatest >= 0:
            times.append(greatest, self.max_timestamp_offset - self.base_offset)
        self._entries.close()
        times_path = self.path(TIME_INDEX_SUFFIX)
        try:
            self._disk.write_bytes(times_path, times.to_bytes())
            self._disk.write_bytes(self._entries.path, index.to_bytes())
        except OSError:
            # An incomplete time index would make the segment look older than it is; a missing one is rebuilt.
            self._disk.remove(times_path)
            self._disk.remove(self._entries.path)
            raise
        self._indexes_written = True

    def rebuild_indexes(self) -> None:
        """Make the index files of a sealed segment from its batches."""
        with _rebuilding:
            if self.dropped:
                raise FileNotFoundError(ENOENT, "the segment is deleted", self.log.path)
            _log.warning("index_rebuilt segment=%s", self.log.path)
            builder = IndexBuilder(self.base_offset)
            for position, header in walk_headers(self.file(), 0, self.size):
                builder.add(position, header)
            self._entries.close()
            builder.write(self._disk, self.directory)

    def path(self, suffix: str) -> str:
        return offset_file(self.directory, self.base_offset, suffix)

    def files(self) -> list[str]:
        return [path for path in map(self.path, SEGMENT_SUFFIXES) if self._disk.exists(path)]

    def file(self) -> File:
        return self.log.get()

    def close(self) -> None:
        self.log.close()
        self._entries.close()

    def retire(self, suffix: str, successor: "Segment") -> None:
        """Another segment replaces this one under the same name: readers of this one keep its renamed files."""
        self.dropped = True
        self.successor = successor
        self.log.path += suffix
        self._entries.path += suffix
        self.close()

    def newest(self) -> "Segment":
        """The segment that has its records now, after cleaning."""
        segment = self
        while segment.successor is not None:
            segment = segment.successor
        return segment

    # Appending (active only)

    def note(self, base_offset: int, last_offset: int, size: int, max_timestamp: int, interval_bytes: int) -> None:
        """Note a batch that was just written at the end."""
        position = self.size
        if max_timestamp > self.max_timestamp:  # type: ignore[operator]  # always set in an active segment
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp is None and position == 0:
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

    def forget_tail(self) -> None:
        self.tail_offsets = array("q")
        self.tail_positions = array("q")

    def own(self, size: int) -> None:
        """Have files that no other log shares, before they are written to; the log file up to `size`."""
        if self._disk.is_shared(self.log.path):
            self.log.close()
            own(self._disk, self.log.path, size)
        self.aborted.own()

    def truncate(self, position: int, offset: int) -> None:
        """Cut an active segment at a batch boundary."""
        index, times = self.index, self.times
        assert index is not None and times is not None
        self.aborted.truncate(offset)
        self.file().truncate(position)
        self.size = position
        # Copies: a search in a thread may use the old ones.
        index, times = index.before(offset - self.base_offset), times.before(offset - self.base_offset)
        self.activate(index, times)
        self.hints = None
        self.trusted_from = min(self.trusted_from, position)
        self.verified = (min(self.verified[0], position), min(self.verified[1], position))
        if position == 0:
            self.first_timestamp = None
        # The greatest timestamp: of the last remaining entry, or of the batches after it.
        timestamp, relative = times.last() or (NO_TIMESTAMP, 0)
        greatest_offset = self.base_offset + relative
        for _, header in walk_headers(self.file(), self.search_start(greatest_offset), self.size):
            if header.max_timestamp > timestamp:
                timestamp, greatest_offset = header.max_timestamp, header.last_offset
        self.max_timestamp, self.max_timestamp_offset = timestamp, greatest_offset

    # Rolling

    def is_roll_due(self, config: LogConfig, timestamp: int, now_ms: int) -> bool:
        """Whether a batch with this greatest timestamp belongs in the next segment: by time, or as an index is full.

        `segment.ms` runs from the first batch's timestamp to this one's, or by the clock where batches have no
        timestamp. One entry of the time index is reserved for the closing entry.
        """
        if self.size == 0:
            return False
        first = self.first_timestamp
        if first is None:
            first = self.read_first_timestamp()
        open_ms = timestamp - first if first is not None and first >= 0 else now_ms - self.created_ms
        index_bytes = config.segment_index_bytes
        assert self.index is not None and self.times is not None
        return (
            open_ms > config.roll_ms
            or len(self.index.offsets) >= index_bytes // offset_index.ENTRY_SIZE
            or len(self.times.offsets) >= index_bytes // time_index.ENTRY_SIZE - 1
        )

    def is_idle_roll_due(self, config: LogConfig, now_ms: int) -> bool:
        """Whether the segment has been open for `segment.ms` by the clock, without an append."""
        return self.size > 0 and now_ms - self.created_ms > config.roll_ms

    # Finding

    def position_of(self, offset: int) -> int | None:
        """The start of the batch that holds `offset`, if it is known without a search."""
        slot = bisect_right(self.tail_offsets, offset) - 1
        if slot >= 0:
            return self.tail_positions[slot]
        if offset == self.base_offset:
            return 0
        return self.hints.get(offset) if self.hints is not None else None

    def index_is_open(self) -> bool:
        return self.index is not None or self._entries.opened is not None

    def search_start(self, offset: int) -> int:
        """Where a walk to find `offset` would start, if the index is right."""
        return max(self._entries_around(offset)[0][1], 0)

    def find(self, offset: int, *, in_thread: bool = False) -> int | None:
        """The start of the first batch whose last offset is not before `offset`; None when the segment ends before it.

        On the event loop a wrong index is rebuilt. With `in_thread`, the index of an active segment is left alone,
        because the loop appends to it.
        """
        after = self._entries_around(offset)[1]
        file = self.file()
        if after != NO_ENTRY:
            # Sequential readers stop at indexed batches, so the next batch they need is often an indexed one.
            header = header_at(file, after[1])
            if (
                header is not None
                and header.last_offset == after[0] + self.base_offset
                and header.base_offset <= offset
            ):
                return after[1]
        position = self._start_before(offset, in_thread)
        for position, header in walk_headers(file, position, self.size, block_bytes=SEARCH_BLOCK_BYTES):  # noqa: B020
            if header.last_offset >= offset:
                return position
            position += header.size
        if position < self.size:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no batch can be read at byte {position} of {self.log.path}")
        return None

    def read_end_offset(self) -> int:
        """The offset after the segment's last batch."""
        return self.read_last_batch()[1]

    def read_last_batch(self) -> tuple[int, int]:
        """The first offset of the segment's last batch, and the offset after it; both its base offset if it is
        empty."""
        begin = end = self.base_offset
        start = self._start_before(self.base_offset + MAX_RELATIVE_OFFSET, False)
        for _, header in walk_headers(self.file(), start, self.size):
            begin, end = header.base_offset, header.last_offset + 1
        return begin, end

    def boundary_at_or_before(self, position: int) -> int:
        """The greatest indexed batch start that is not past `position`, or 0."""
        index = self.index  # read once: the loop may seal the segment meanwhile
        if index is not None:
            return index.boundary_at_or_before(position)
        boundary = offset_index.boundary_at_or_before(self._mapped(), position)
        return boundary if boundary and header_at(self.file(), boundary) is not None else 0

    def offset_beyond(self, position: int, otherwise: int) -> int:
        """An offset that no batch before `position` has, by a verified index entry."""
        index = self.index
        if index is not None:
            entry = index.at_or_after_position(position)
        elif self._entries.opened is not None:
            entry = offset_index.at_or_after_position(self._mapped(), position)
        else:
            return otherwise
        if entry == NO_ENTRY:
            return otherwise
        header = header_at(self.file(), entry[1])
        last_offset = entry[0] + self.base_offset
        return last_offset if header is not None and header.last_offset == last_offset else otherwise

    def _start_before(self, offset: int, in_thread: bool) -> int:
        """The start of a batch before `offset`, by a verified index entry."""
        before = self._entries_around(offset)[0]
        if before != NO_ENTRY:
            header = header_at(self.file(), before[1])
            if header is None or header.last_offset != before[0] + self.base_offset:
                # The index entry is wrong. The index can be rebuilt.
                if self.index is None:
                    self.rebuild_indexes()
                elif in_thread:
                    return 0
                else:
                    self.activate_from_batches()
                before = self._entries_around(offset)[0]
        return before[1]

    def _entries_around(self, offset: int) -> tuple[tuple[int, int], tuple[int, int]]:
        relative = offset - self.base_offset
        index = self.index
        if index is not None:
            return index.around(relative)
        return offset_index.around(self._mapped(), relative)

    def _mapped(self) -> memoryview:
        try:
            return self._entries.get()
        except FileNotFoundError:
            self.rebuild_indexes()
            return self._entries.get()

    # Time

    def greatest_timestamp(self) -> int:
        """The greatest timestamp in the segment, -1 when it has none; of a sealed one, from the time index."""
        greatest = self.max_timestamp
        if greatest is None:
            last = time_index.last_entry(self.mapped_times())
            greatest = NO_TIMESTAMP
            if last is not None:
                greatest, self.max_timestamp_offset = last[0], self.base_offset + last[1]
            self.max_timestamp = greatest
        return greatest

    def mapped_times(self) -> memoryview:
        """A sealed segment's time index; rebuilt if it is wrong."""
        # Not kept open: searches by time are rare, and retention reads it once per sealed segment.
        path = self.path(TIME_INDEX_SUFFIX)
        try:
            entries = self._disk.map(path)
        except FileNotFoundError:
            entries = memoryview(b"")
        if not self._times_checked:
            if not time_index.is_sound(entries) or not self._ends_with_greatest_timestamp(entries):
                self.rebuild_indexes()
                entries = self._disk.map(path)
            self._times_checked = True
        return entries

    def _ends_with_greatest_timestamp(self, entries: memoryview) -> bool:
        """Whether the last entry of the time index has the greatest timestamp of the segment.

        After a power cut the file may hold zeros, or lack its last entries. Then the segment would look older than it
        is, and retention would delete it. So the batches from the last entry to the end are compared with it.
        """
        timestamp, relative = time_index.last_entry(entries) or (NO_TIMESTAMP, -1)
        offset = self.base_offset + relative
        named = relative < 0
        start = 0 if named else self._start_before(offset, in_thread=True)
        for _, header in walk_headers(self.file(), start, self.size):
            if header.max_timestamp > timestamp:
                return False
            if header.last_offset == offset:
                named = header.max_timestamp == timestamp
        return named

    def first_offset_for_time(self, timestamp: int) -> int:
        """An offset before which no record is as late as `timestamp`."""
        times = self.times
        if times is not None:
            return self.base_offset + times.lookup(timestamp)
        return self.base_offset + time_index.lookup(self.mapped_times(), timestamp)

    def read_first_timestamp(self) -> int | None:
        """The first batch's greatest timestamp."""
        if self.first_timestamp is None and self.size:
            header = header_at(self.file(), 0)
            if header is not None:
                self.first_timestamp = header.max_timestamp
        return self.first_timestamp

    # Trust

    def vouched_length(self, file: File, start: int, length: int) -> int:
        """For how many bytes from `start`, a batch boundary, this process vouches: whole batches, or 0."""
        if self.index is not None and start >= self.trusted_from:
            return length
        low, high = self.verified
        if not low <= start < high:
            return 0
        if self.index is None and file.modified_ns() != self.sealed_modified_ns:
            return 0  # another process has written to it since
        return min(length, high - start)

    def vouch(self, start: int, end: int, modified_ns: int) -> None:
        """Remember that the checksums in [start, end) are right. One range is kept; adjacent ones are joined."""
        low, high = self.verified
        if self.index is None and modified_ns != self.sealed_modified_ns:
            self.sealed_modified_ns = modified_ns
            low = high = start
        if start <= high and end >= low:
            start, end = min(start, low), max(end, high)
        self.verified = (start, end)
        if self.index is not None and end >= self.trusted_from >= start:
            self.trusted_from = start

    def hint(self, offset: int, position: int) -> None:
        """Remember the position of the batch that begins with `offset`."""
        if self.hints is None or len(self.hints) >= READ_HINTS:
            self.hints = {}
        self.hints[offset] = position
