"""The cache of records that were read from the tier: ranges of whole batches, each in a file, bounded in bytes.

A range is checked once, when it arrives. Then it is sent like a part of any segment: as a slice of a file. The range
that was used longest ago goes first; a response that still sends it keeps the open file. Nothing in the cache survives
a restart. Its directory has the name that Kafka gives to its cache of tiered indexes, because Kafka ignores it in a
data directory.

A range that was read to its end is rarely read again, so only the last of them stay (`Passed`). Their pages go back to
the operating system and are used for the next ranges: writing to pages of memory that were never used before takes
several times as long. A file is never overwritten: the kernel may still send its pages, after `sendfile` has returned.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from threading import Lock

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import LOG_OVERHEAD, PLACEMENT, Bytes, has_valid_checksum, iterate_headers
from millstream.node.storage.disk import Disk, File
from millstream.node.storage.index.offset_index import OffsetIndex
from millstream.node.storage.log.log_reader import Slice, empty_slice
from millstream.node.tier.core.manifest import TieredSegment

CACHE_DIRECTORY = "remote-log-index-cache"
RANGE_BYTES = 4 << 20
LEAST_PASSED_BYTES = 64 << 20


class TieredSlice(Slice):
    """A slice of a range in the cache."""

    __slots__ = ("end_offset", "first_offset", "segment_name")

    def __init__(self, chunk: "Chunk", position: int, length: int, first_offset: int, end_offset: int) -> None:
        is_resident = chunk.file.is_resident(position, length)
        super().__init__(chunk.file, position, length, is_resident, count=end_offset - first_offset)
        self.segment_name = chunk.segment_name
        self.first_offset = first_offset
        self.end_offset = end_offset

    def prepare(self) -> None:
        """Read the bytes into the page cache; may block. They were checked when they arrived."""
        if not self.ready:
            try:
                self.file.read_at(self.position, self.length)
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            self.ready = True


class Chunk:
    """A range of whole batches of one segment."""

    __slots__ = ("end_offset", "file", "first_offset", "lasts", "position", "positions", "segment_name", "size")

    def __init__(self, segment_name: str, file: File, position: int) -> None:
        self.segment_name = segment_name
        self.file = file
        self.position = position
        """Where it begins, in the log bytes of the segment."""
        self.lasts: array[int] = array("q")
        """The last offset of each batch."""
        self.positions: array[int] = array("q")
        self.size = 0
        self.first_offset = -1
        self.end_offset = -1

    @property
    def next_position(self) -> int:
        """Where the next range begins."""
        return self.position + self.size

    def slice(self, offset: int, max_bytes: int, up_to: int, at_least_one: bool) -> Slice:
        """Whole batches from the one that holds `offset` on, before `up_to`."""
        first = bisect_left(self.lasts, offset)
        last = bisect_left(self.lasts, up_to) if up_to < self.end_offset else len(self.lasts)
        if first >= last:
            return empty_slice()
        start = self.positions[first]
        end = self.positions[last] if last < len(self.positions) else self.size
        if end - start > max_bytes:
            last = max(bisect_right(self.positions, start + max_bytes) - 1, first)
            if last == first:
                if not at_least_one:
                    return empty_slice()
                last += 1
            end = self.positions[last] if last < len(self.positions) else self.size
        return TieredSlice(self, start, end - start, offset, self.lasts[last - 1] + 1)


class BadRangeError(Exception):
    """The bytes from the tier are damaged."""


def first_batch_bytes(data: Bytes) -> int:
    """The size of the batch at the beginning."""
    if len(data) < PLACEMENT.size:
        raise BadRangeError("the range is too short for a batch")
    return int(PLACEMENT.unpack_from(data)[1]) + LOG_OVERHEAD


RESTORED_EPOCH = 0


def range_starts(index: memoryview, log_bytes: int) -> "array[int]":
    """Where the ranges of a segment begin: at batches that its offset index has, so that several can be read
    at the same time. They are at most RANGE_BYTES apart, if the index has so many entries."""
    positions = OffsetIndex(index).positions
    starts = array("q", [0])
    while (limit := starts[-1] + RANGE_BYTES) < log_bytes:
        slot = bisect_right(positions, limit)
        if slot and positions[slot - 1] > starts[-1]:
            slot -= 1
        if slot == len(positions) or not starts[-1] < positions[slot] < log_bytes:
            break
        starts.append(positions[slot])
    return starts


def _with_epoch(data: Bytes, epoch: int) -> bytes:
    """The same batches with another leader epoch, which their checksums do not cover."""
    changed = bytearray(data)
    position = 0
    while position + PLACEMENT.size <= len(changed):
        base_offset, length, _ = PLACEMENT.unpack_from(changed, position)
        PLACEMENT.pack_into(changed, position, base_offset, length, epoch)
        position += max(length, 0) + LOG_OVERHEAD
    return bytes(changed)


def write_chunk(disk: Disk, path: str, segment: TieredSegment, position: int, data: Bytes) -> Chunk:
    """Check the whole batches at the beginning of `data`, and put them into a file. May block."""
    file = disk.create(path)
    try:
        chunk = Chunk(segment.name, file, position)
        for at, header in iterate_headers(data):
            if header.last_offset < chunk.end_offset or not has_valid_checksum(data, at, header):
                raise BadRangeError(f"the batch at byte {position + at} of {segment.name} is damaged")
            if chunk.first_offset < 0:
                chunk.first_offset = header.base_offset
            chunk.lasts.append(header.last_offset)
            chunk.positions.append(at)
            chunk.size = at + header.size
            chunk.end_offset = header.last_offset + 1
        if not chunk.size:
            raise BadRangeError(f"there is no batch at byte {position} of {segment.name}")
        # Compaction may have removed the first and the last offsets.
        if position == 0:
            chunk.first_offset = min(chunk.first_offset, segment.base_offset)
        if chunk.next_position >= segment.log_bytes:
            chunk.end_offset = max(chunk.end_offset, segment.end_offset)
        whole = memoryview(data)[: chunk.size]
        file.write_at(0, _with_epoch(whole, RESTORED_EPOCH) if segment.is_restored else whole)
    except BaseException:
        disk.remove(path)
        raise
    return chunk


Key = tuple[str, int]
"""A range: its segment, and its position there."""


class Passed:
    """The ranges in the cache that were read to their end, and how many bytes of them are kept.

    Several readers of the same records, one behind the other, should read from the store once. So the bound grows when
    a range is read from the store a second time. It shrinks again when such ranges are not read any more.
    """

    def __init__(self, least_bytes: int = LEAST_PASSED_BYTES) -> None:
        self._least_bytes = least_bytes
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        self._size_bytes = 0
        self._gone: OrderedDict[Key, None] = OrderedDict()
        """Ranges that were dropped, the last ones."""
        self._unused_bytes = 0
        """How many bytes were dropped since a range was read a second time."""
        self.bound_bytes = least_bytes

    def note(self, key: Key, size: int, *, to_its_end: bool) -> None:
        """A range was read."""
        if self.forget(key):
            self._unused_bytes = 0
        if to_its_end:
            self._sizes[key] = size
            self._size_bytes += size

    def forget(self, key: Key) -> bool:
        """The range is not in the cache any more, or is being read again. Whether it was one of these."""
        size = self._sizes.pop(key, None)
        self._size_bytes -= size or 0
        return size is not None

    def arrived(self, key: Key, limit_bytes: int) -> None:
        """A range was read from the store."""
        if key in self._gone:
            del self._gone[key]
            self._unused_bytes = 0
            self.bound_bytes = min(2 * self.bound_bytes, max(limit_bytes, self._least_bytes))

    def beyond(self, limit_bytes: int) -> list[Key]:
        """The ranges to drop. They are noted as dropped."""
        dropped = []
        while self._size_bytes > self.bound_bytes:
            key, size = self._sizes.popitem(last=False)
            self._size_bytes -= size
            dropped.append(key)
            self._gone[key] = None
            self._unused_bytes += size
            if self._unused_bytes > limit_bytes:
                self._unused_bytes = 0
                self.bound_bytes = max(self.bound_bytes // 2, self._least_bytes)
        while len(self._gone) > limit_bytes // RANGE_BYTES:
            self._gone.popitem(last=False)
        return dropped


class TierCache:
    def __init__(self, disk: Disk, root: str, passed: Passed | None = None) -> None:
        self.disk = disk
        self._directory = f"{root}/{CACHE_DIRECTORY}"
        self._chunks: OrderedDict[Key, Chunk] = OrderedDict()
        self._passed = passed or Passed()
        self._by_segment: dict[str, list[tuple[int, int]]] = {}
        """First offset and position of the ranges of a segment, in order."""
        self._files = 0
        self._is_begun = False
        self._beginning = Lock()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def begin(self) -> None:
        """Make the directory, without what an earlier process left in it. May block."""
        if not self._is_begun:
            with self._beginning:
                if not self._is_begun:
                    self.disk.remove_directory(self._directory)
                    self.disk.make_directory(self._directory)
                    self._is_begun = True

    def remove_files(self, paths: list[str]) -> None:
        """May block."""
        for path in paths:
            self.disk.remove(path)

    def new_path(self) -> str:
        self._files += 1
        return f"{self._directory}/{self._files}.range"

    def find(self, segment: TieredSegment, offset: int) -> Chunk | None:
        """The range that has an offset."""
        firsts = self._by_segment.get(segment.name)
        if not firsts:
            return None
        slot = bisect_right(firsts, (offset, segment.log_bytes)) - 1
        if slot < 0:
            return None
        chunk = self.at(segment.name, firsts[slot][1])
        return chunk if chunk is not None and offset < chunk.end_offset else None

    def at(self, segment_name: str, position: int) -> Chunk | None:
        """The range that begins at a position of a segment."""
        key = segment_name, position
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
        return chunk

    def was_read(self, chunk: Chunk, records: Slice) -> None:
        """Note that a part of a range is sent to a reader."""
        key = chunk.segment_name, chunk.position
        self._passed.note(key, chunk.size, to_its_end=records.position + records.length == chunk.size)

    def add(self, chunk: Chunk, limit_bytes: int) -> list[str]:
        """Add a range; returns the files to remove."""
        key = chunk.segment_name, chunk.position
        removed = []
        self._passed.arrived(key, limit_bytes)
        if key in self._chunks:
            removed.append(self._drop(key))
        # Compaction may have removed the offsets between two ranges: then the second one begins where the first ends.
        firsts = self._by_segment.setdefault(chunk.segment_name, [])
        slot = bisect_left(firsts, (chunk.first_offset, chunk.position))
        if slot:
            before = self._chunks[chunk.segment_name, firsts[slot - 1][1]]
            if before.next_position == chunk.position:
                chunk.first_offset = before.end_offset
        if slot < len(firsts):
            after = self._chunks[chunk.segment_name, firsts[slot][1]]
            if chunk.next_position == after.position:
                after.first_offset = chunk.end_offset
                firsts[slot] = after.first_offset, after.position
        firsts.insert(slot, (chunk.first_offset, chunk.position))
        self._chunks[key] = chunk
        self.size_bytes += chunk.size
        removed += [self._drop(passed) for passed in self._passed.beyond(limit_bytes)]
        while self.size_bytes > limit_bytes and len(self._chunks) > 1:
            removed.append(self._drop(next(iter(self._chunks))))
        return removed

    def _drop(self, key: Key) -> str:
        chunk = self._chunks.pop(key)
        self._passed.forget(key)
        firsts = self._by_segment[key[0]]
        firsts.remove((chunk.first_offset, chunk.position))
        if not firsts:
            del self._by_segment[key[0]]
        self.size_bytes -= chunk.size
        return chunk.file.path
