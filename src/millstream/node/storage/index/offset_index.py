"""The sparse offset index: (last offset of a batch, position of that batch) about every `index.interval.bytes`.

On disk each entry is two big-endian i32: the offset relative to the segment's base, and the position. The active
segment keeps its entries in two arrays so that bisection runs in C; a sealed segment's file is mapped, and bisected in
the map.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import lt
from struct import Struct
from sys import byteorder
from typing import Final

ENTRY: Final = Struct(">ii")
ENTRY_SIZE: Final = ENTRY.size
MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
NO_ENTRY = (-1, 0)
"""The entry before the first one (the segment's start) and after the last one."""

_unpack_from = ENTRY.unpack_from


class OffsetIndex:
    """The growing index of an active segment. Entries are only ever added, so that threads may look things up."""

    __slots__ = ("offsets", "positions")

    def __init__(self, data: bytes | memoryview = b"") -> None:
        values = array("i")
        values.frombytes(data)  # array("i", data) takes each byte of a memoryview for a number
        if byteorder == "little":
            values.byteswap()
        self.offsets: array[int] = values[0::2]
        self.positions: array[int] = values[1::2]

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        # In this order: threads may bisect either list meanwhile.
        self.positions.append(position)
        self.offsets.append(relative_offset)

    def around(self, relative_offset: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The last entry before the offset and the first at or after it, each (relative offset, position) or
        NO_ENTRY."""
        offsets, positions = self.offsets, self.positions
        slot = bisect_left(offsets, relative_offset)
        before = (offsets[slot - 1], positions[slot - 1]) if slot else NO_ENTRY
        return before, ((offsets[slot], positions[slot]) if slot < len(offsets) else NO_ENTRY)

    def last_position(self) -> int:
        return self.positions[-1] if self.positions else 0

    def boundary_at_or_before(self, position: int) -> int:
        """The greatest indexed batch start that is not past `position`, or 0."""
        slot = bisect_right(self.positions, position) - 1
        return self.positions[slot] if slot >= 0 else 0

    def at_or_after_position(self, position: int) -> tuple[int, int]:
        """The first entry whose batch begins at `position` or later, or NO_ENTRY."""
        slot = bisect_left(self.positions, position)
        # A thread may have seen the position before the offset was there.
        return (self.offsets[slot], self.positions[slot]) if slot < len(self.offsets) else NO_ENTRY

    def before(self, relative_offset: int) -> "OffsetIndex":
        """A copy with only the entries before the offset."""
        slot = bisect_right(self.offsets, relative_offset - 1)
        kept = OffsetIndex()
        kept.offsets, kept.positions = self.offsets[:slot], self.positions[:slot]
        return kept

    def to_bytes(self) -> bytes:
        values = array("i", bytes(ENTRY_SIZE * len(self.offsets)))
        values[0::2] = self.offsets
        values[1::2] = self.positions
        if byteorder == "little":
            values.byteswap()
        return values.tobytes()


def around(entries: memoryview, relative_offset: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """As `OffsetIndex.around`, over a mapped file."""
    low, high = 0, len(entries) // ENTRY_SIZE
    count = high
    while low < high:
        middle = (low + high) >> 1
        if _unpack_from(entries, middle * ENTRY_SIZE)[0] < relative_offset:
            low = middle + 1
        else:
            high = middle
    before = _entry(entries, low - 1) if low else NO_ENTRY
    return before, (_entry(entries, low) if low < count else NO_ENTRY)


def _entry(entries: memoryview, slot: int) -> tuple[int, int]:
    offset, position = _unpack_from(entries, slot * ENTRY_SIZE)
    return offset, position


def boundary_at_or_before(entries: memoryview, position: int) -> int:
    """As `OffsetIndex.boundary_at_or_before`, over a mapped file."""
    low, high = 0, len(entries) // ENTRY_SIZE
    while low < high:
        middle = (low + high) >> 1
        if _unpack_from(entries, middle * ENTRY_SIZE)[1] <= position:
            low = middle + 1
        else:
            high = middle
    found: int = _unpack_from(entries, (low - 1) * ENTRY_SIZE)[1] if low else 0
    return found


def at_or_after_position(entries: memoryview, position: int) -> tuple[int, int]:
    """As `OffsetIndex.at_or_after_position`, over a mapped file."""
    low, high = 0, len(entries) // ENTRY_SIZE
    count = high
    while low < high:
        middle = (low + high) >> 1
        if _unpack_from(entries, middle * ENTRY_SIZE)[1] < position:
            low = middle + 1
        else:
            high = middle
    return _entry(entries, low) if low < count else NO_ENTRY


def is_strictly_increasing(values: Sequence[int]) -> bool:
    return all(map(lt, values, values[1:]))


def is_sound(data: bytes | memoryview, log_size: int) -> bool:
    """Whether a file could be this index: whole entries, strictly increasing, all within the log."""
    if len(data) % ENTRY_SIZE:
        return False
    index = OffsetIndex(data)
    if not len(index):
        return True
    return (
        index.offsets[0] >= 0
        and index.positions[0] >= 0
        and index.positions[-1] < log_size
        and is_strictly_increasing(index.offsets)
        and is_strictly_increasing(index.positions)
    )
