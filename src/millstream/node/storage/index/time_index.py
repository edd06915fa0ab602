"""The time index: (greatest timestamp so far, last offset of its batch), and the builder of both indexes of a segment.

An entry is added beside each entry of the offset index, if the greatest timestamp has grown, so both columns strictly
increase. On disk an entry is a big-endian i64 timestamp and an i32 offset relative to the segment's base. The last one,
added when a segment is sealed or closed, is the time of the segment for retention.
"""

from array import array
from bisect import bisect_right
from struct import Struct
from sys import byteorder
from typing import Final

from millstream.formats.records.batch import BatchHeader
from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_file
from millstream.node.storage.index.offset_index import OffsetIndex, is_strictly_increasing

ENTRY: Final = Struct(">qi")
ENTRY_SIZE: Final = ENTRY.size

_unpack_from = ENTRY.unpack_from


class TimeIndex:
    """The growing index of an active segment. Entries are only ever added, so that threads may look things up."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self, data: bytes | memoryview = b"") -> None:
        # Three columns of 4 bytes, regrouped without touching single entries: a full index has 100,000s of them.
        words = array("i")
        words.frombytes(data)  # array("i", data) takes each byte of a memoryview for a number
        pairs = array("i", bytes(len(words) // 3 * 8))
        pairs[0::2] = words[0::3]
        pairs[1::2] = words[1::3]
        self.timestamps: array[int] = array("q", pairs.tobytes())
        self.offsets: array[int] = words[2::3]
        if byteorder == "little":
            self.timestamps.byteswap()
            self.offsets.byteswap()

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless the timestamp is not greater than the last one's."""
        timestamps = self.timestamps
        if timestamp > (timestamps[-1] if timestamps else -1):
            self.offsets.append(relative_offset)  # first: `lookup` bisects the timestamps
            timestamps.append(timestamp)

    def lookup(self, timestamp: int) -> int:
        """The relative offset before which no record is later than `timestamp`; 0 if the index does not show it."""
        slot = bisect_right(self.timestamps, timestamp - 1) - 1
        return self.offsets[slot] if slot >= 0 else 0

    def before(self, relative_offset: int) -> "TimeIndex":
        """A copy with only the entries before the offset."""
        slot = bisect_right(self.offsets, relative_offset - 1)
        kept = TimeIndex()
        kept.timestamps, kept.offsets = self.timestamps[:slot], self.offsets[:slot]
        return kept

    def last(self) -> tuple[int, int] | None:
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def to_bytes(self) -> bytes:
        timestamps, offsets = self.timestamps[:], self.offsets[:]
        if byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        pairs = array("i", timestamps.tobytes())
        words = array("i", bytes(ENTRY_SIZE * len(offsets)))
        words[0::3] = pairs[0::2]
        words[1::3] = pairs[1::2]
        words[2::3] = offsets
        return words.tobytes()


def lookup(entries: memoryview, timestamp: int) -> int:
    """As `TimeIndex.lookup`, over a mapped file."""
    low, high = 0, len(entries) // ENTRY_SIZE
    while low < high:
        middle = (low + high) >> 1
        if _unpack_from(entries, middle * ENTRY_SIZE)[0] < timestamp:
            low = middle + 1
        else:
            high = middle
    offset: int = _unpack_from(entries, (low - 1) * ENTRY_SIZE)[1] if low else 0
    return offset


def last_entry(entries: memoryview | bytes) -> tuple[int, int] | None:
    """(timestamp, relative offset) of the last entry of a file."""
    if len(entries) < ENTRY_SIZE:
        return None
    timestamp, offset = _unpack_from(entries, len(entries) // ENTRY_SIZE * ENTRY_SIZE - ENTRY_SIZE)
    return timestamp, offset


def is_sound(data: bytes | memoryview) -> bool:
    """Whether a file could be this index: whole entries, both columns strictly increasing."""
    if len(data) % ENTRY_SIZE:
        return False
    index = TimeIndex(data)
    if not len(index):
        return True
    return (
        index.timestamps[0] >= 0
        and index.offsets[0] >= 0
        and is_strictly_increasing(index.timestamps)
        and is_strictly_increasing(index.offsets)
    )


DEFAULT_INTERVAL_BYTES = 4096
NO_TIMESTAMP: Final = -1


class IndexBuilder:
    """Makes the offset index and the time index of a segment from its batches, by the rule of appends."""

    __slots__ = (
        "_bytes_since_entry",
        "_interval_bytes",
        "base_offset",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "times",
    )

    def __init__(self, base_offset: int, interval_bytes: int = DEFAULT_INTERVAL_BYTES) -> None:
        self.base_offset = base_offset
        self.index = OffsetIndex()
        self.times = TimeIndex()
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0

    def add(self, position: int, header: BatchHeader) -> None:
        self.add_fields(position, header.last_offset, header.size, header.max_timestamp)

    def add_fields(self, position: int, last_offset: int, size: int, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def write(self, disk: Disk, directory: str) -> None:
        """Write both files, with the closing time entry."""
        if self.max_timestamp >= 0:
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        index, times = (
            offset_file(directory, self.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        # Atomically: a file that a thread has mapped must not shrink.
        disk.write_atomically(times, self.times.to_bytes(), durable=False)
        disk.write_atomically(index, self.index.to_bytes(), durable=False)
