"""The segments of one log in order: found by offset, created, rolled, truncated and dropped. The last is active."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator

from millstream.node.storage.disk import Disk, FileCache
from millstream.node.storage.file_formats import DELETED_SUFFIX
from millstream.node.storage.log.segment import Segment

_log = logging.getLogger("millstream.storage")


class SegmentList:
    __slots__ = ("_bases", "_cache", "_directory", "_disk", "_segments", "active")

    def __init__(self, disk: Disk, cache: FileCache, directory: str, segments: list[Segment]) -> None:
        self._disk = disk
        self._cache = cache
        self._directory = directory
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

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def slot_of(self, offset: int) -> int:
        """The segment that holds `offset`, or would; the first for offsets before it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def end_of(self, slot: int, log_end_offset: int) -> int:
        """The offset where a segment ends."""
        return self._bases[slot + 1] if slot + 1 < len(self._bases) else log_end_offset

    # Growing

    def make(self, base_offset: int, now_ms: int) -> Segment:
        """A segment of this log that is not in the list, without files."""
        return Segment(self._disk, self._cache, self._directory, base_offset, now_ms)

    def create(self, base_offset: int, now_ms: int) -> Segment:
        """The same, with an empty log file."""
        segment = self.make(base_offset, now_ms)
        segment.create()
        return segment

    def roll_to(self, segment: Segment) -> None:
        """Seal the active segment and add the next. Indexes that cannot be written stay in memory until the next
        roll."""
        for sealed in self._segments:
            if sealed.index is not None:
                try:
                    sealed.seal()
                except OSError as error:
                    _log.warning(
                        "indexes_not_written segment=%s error=%s: kept in memory until the next roll",
                        sealed.log.path,
                        error,
                    )
        self._add(segment)

    def replace_active(self, segment: Segment) -> None:
        """Put another segment in the place of an active one that is empty."""
        for path in self._segments.pop().files():
            self._disk.remove(path)
        self._bases.pop()
        self._add(segment)

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    # Shrinking

    def drop_first(self) -> list[str]:
        """Take out the oldest segment; returns the paths of its files, renamed and yet to be removed."""
        paths = self._mark_deleted(self._segments[0])
        del self._segments[0], self._bases[0]
        return paths

    def truncate_to(self, offset: int) -> tuple[int, int]:
        """Remove every batch that reaches `offset`; returns the first offset of the last batch that is left in the
        active segment, and the end offset. They are equal if no batch is left in it.

        A batch is kept whole or not at all, and the cleaner leaves gaps, so the end may be before `offset`.
        """
        while len(self._segments) > 1 and self.active.base_offset > offset:
            self._remove_last()
        active = self.active
        if active.index is None:
            active.activate_from_batches()
        position = active.find(offset)
        active.own(active.size if position is None else position)  # a branch may have the same files
        if position is not None:
            active.truncate(position, offset)
        return active.read_last_batch()

    def restart_in(self, segment: Segment) -> None:
        """Removes all segments, and continues with `segment`."""
        while len(self._segments) > 1:
            self._remove_last()
        self.replace_active(segment)

    def _remove_last(self) -> None:
        paths = self._mark_deleted(self._segments[-1])
        del self._segments[-1], self._bases[-1]
        self.active = self._segments[-1]
        for path in paths:
            self._disk.remove(path)

    # Cleaning

    def replace(self, slot: int, count: int, segment: Segment, put_in_place: Callable[[], None]) -> list[str]:
        """Put one segment in the place of several that are sealed. `put_in_place` gives its files their names, once the
        files of the others are renamed. Returns the paths of these, yet to be removed."""
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
