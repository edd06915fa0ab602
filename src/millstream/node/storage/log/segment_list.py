"""The segments of one log in order, found by offset. The last is the active one."""

from bisect import bisect_right
from collections.abc import Callable, Iterator

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import DELETED_SUFFIX
from millstream.node.storage.log.segment import Segment


class SegmentList:
    __slots__ = ("_bases", "_disk", "_segments", "active")

    def __init__(self, disk: Disk, segments: list[Segment]) -> None:
        self._disk = disk
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, slot: int) -> Segment:
        return self._segments[slot]

    @property
    def bases(self) -> list[int]:
        return self._bases

    def slot_of(self, offset: int) -> int:
        """The segment that holds `offset`, or would; the first for offsets before it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def end_of(self, slot: int, log_end_offset: int) -> int:
        """The offset where a segment ends."""
        return self._bases[slot + 1] if slot + 1 < len(self._bases) else log_end_offset

    def add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def replace_active(self, segment: Segment) -> None:
        """Put another segment in the place of an active one that is empty."""
        for path in self._segments.pop().files():
            self._disk.remove(path)
        self._bases.pop()
        self.add(segment)

    def drop_first(self) -> list[str]:
        """Take out the oldest segment; returns the paths of its files, out of the way and yet to be removed."""
        paths = self._mark_deleted(self._segments[0])
        del self._segments[0], self._bases[0]
        return paths

    def drop_last(self) -> list[str]:
        """Take out the newest segment; the one before it becomes active."""
        paths = self._mark_deleted(self._segments[-1])
        del self._segments[-1], self._bases[-1]
        self.active = self._segments[-1]
        return paths

    def replace(self, slot: int, count: int, segment: Segment, put_in_place: Callable[[], None]) -> list[str]:
        """Put one segment in the place of several that are sealed; `put_in_place` gives its files their names, once
        those of the others are out of the way."""
        replaced = self._segments[slot : slot + count]
        assert self.active not in replaced, "the active segment stays"
        paths: list[str] = []
        for old in replaced:
            paths += self._mark_deleted(old)
            old.retire(DELETED_SUFFIX, segment)
        put_in_place()
        self._segments[slot : slot + count] = [segment]
        self._bases[slot : slot + count] = [segment.base_offset]
        return paths

    def _mark_deleted(self, segment: Segment) -> list[str]:
        segment.dropped = True
        renamed = []
        for path in segment.files():
            try:
                self._disk.rename(path, path + DELETED_SUFFIX)
            except OSError:
                self._disk.remove(path)  # a full directory may have no room for a longer name
            else:
                renamed.append(path + DELETED_SUFFIX)
        segment.close()
        return renamed
