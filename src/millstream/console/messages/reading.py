"""Reads records for display: the newest, from an offset or a time, and new ones as they arrive, with bounded cost.

Partitions are merged by time while they are read, so a page is in order over the whole topic. Each partition is read in
chunks, and only as far as needed. `ReadLimit` limits the cost of one query; a page that reached the limit says so and
can be continued. Live reading never falls behind: it skips the oldest new records that exceed the limit and counts
them.
"""

import heapq
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.access.masking import Decode, Mask
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.aborted import AbortedTransactions
from millstream.formats.records.batch import BatchHeader, has_valid_checksum, iterate_headers
from millstream.formats.records.opening import BeyondLimitsError, OpeningLimits, records_between
from millstream.formats.records.record import Header
from millstream.raw_client import EARLIEST, LATEST, Cluster, OffsetOutOfRangeError, TopicPartition, UnreadableError

FETCH_BYTES = 1 << 20
_FIRST_CHUNK = 16
_LARGEST_CHUNK = 8192
_THREADS = 8
_OPENING = OpeningLimits(max_bytes=64 << 20, max_records=1_000_000)
"""Limits of one batch."""
_MOST_HELD = 64 << 20
"""Bytes of the records of one chunk."""


class FoundRecord(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


Matches = Callable[[FoundRecord], bool]


class ReadLimit:
    """The limit of one query in records, bytes and time. Readers count their work here and stop at the limit."""

    def __init__(self, records: int = 200_000, size_bytes: int = 64 << 20, seconds: float = 10.0) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()

    def take(self, records: int, size_bytes: int) -> None:
        with self._lock:
            self.records -= records
            self.size_bytes -= size_bytes

    @property
    def spent(self) -> bool:
        return self.records <= 0 or self.size_bytes <= 0 or time.monotonic() >= self._until


class Range(NamedTuple):
    """The offsets of a partition that can be read: from `start` to before `end`."""

    start: int
    end: int


@dataclass(slots=True)
class Page:
    """Records in the order of the query, and the next offset of each partition."""

    records: list[FoundRecord]
    following: dict[int, int]
    """Next offsets. Backwards: continue before it; forwards: continue at it."""
    searched: int
    more: bool
    """Whether there are more records in that direction."""
    stopped_early: bool
    """The limit was reached before the page was full."""
    problems: list[str] = field(default_factory=list)


class RecordReader:
    """Reads topics of a cluster. Blocking and thread-safe; not for the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        mask_of: Callable[[str], Mask | None] | None = None,
        decode: Decode | None = None,
    ) -> None:
        """`mask_of` and `decode`: what is masked in a topic for the user. Everything that reads here gets the masked
        record, so a filter cannot find what is masked."""
        self._cluster = cluster
        self._mask_of = mask_of
        self._decode = decode

    def ranges(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, Range]:
        """The readable range of each partition, of all or of those given."""
        if partitions is None:
            partitions = range(self._cluster.partitions_of(topic))
        topic_partitions = [TopicPartition(topic, index) for index in partitions]
        starts = self._cluster.offsets(dict.fromkeys(topic_partitions, EARLIEST))
        ends = self._cluster.offsets(dict.fromkeys(topic_partitions, LATEST))
        return {
            topic_partition.partition: Range(starts[topic_partition].offset, ends[topic_partition].offset)
            for topic_partition in topic_partitions
        }

    def starts_at(self, topic: str, moment_ms: int, ranges: Mapping[int, Range]) -> dict[int, int]:
        """The first offset of each partition at or after a time; its end if there is none."""
        found = self._cluster.offsets({TopicPartition(topic, index): moment_ms for index in ranges})
        return {
            topic_partition.partition: ranges[topic_partition.partition].end if there.offset < 0 else there.offset
            for topic_partition, there in found.items()
        }

    def backwards(
        self,
        topic: str,
        ranges: Mapping[int, Range],
        count: int,
        matches: Matches | None = None,
        limit: ReadLimit | None = None,
    ) -> Page:
        """The last `count` records before each range's end, newest first."""
        return self._page(topic, ranges, count, matches, limit or ReadLimit(), _Backwards)

    def forwards(
        self,
        topic: str,
        ranges: Mapping[int, Range],
        count: int,
        matches: Matches | None = None,
        limit: ReadLimit | None = None,
    ) -> Page:
        """The first `count` records from each range's start on, oldest first."""
        return self._page(topic, ranges, count, matches, limit or ReadLimit(), _Forwards)

    def one(self, topic: str, partition: int, offset: int) -> FoundRecord | None:
        """The record at an offset; None if it does not exist any more."""
        page = self.forwards(topic, {partition: Range(offset, offset + 1)}, 1)
        return page.records[0] if page.records else None

    def _page(
        self,
        topic: str,
        ranges: Mapping[int, Range],
        count: int,
        matches: Matches | None,
        limit: ReadLimit,
        direction: "type[_PartitionReader]",
    ) -> Page:
        mask = None if self._mask_of is None else self._mask_of(topic)
        view = None if mask is None or self._decode is None else _MaskedView(mask, self._decode)
        if mask is not None and view is None:
            raise AssertionError("a mask needs a decoder")
        chunk = max(4, min(64, 2 * count // max(1, len(ranges))))
        walks = [
            direction(self._cluster, TopicPartition(topic, index), span, chunk, limit, view)
            for index, span in ranges.items()
        ]
        _prime([walk for walk in walks if not walk.at_end])
        heap = [(direction.order(walk.next), walk) for walk in walks if walk.fill()]
        heapq.heapify(heap)
        records: list[FoundRecord] = []
        searched = 0
        while heap and len(records) < count and not (searched % 1024 == 0 and searched and limit.spent):
            _, walk = heap[0]
            record = walk.take()
            if walk.fill():
                heapq.heapreplace(heap, (direction.order(walk.next), walk))
            else:
                heapq.heappop(heap)
            searched += 1
            if matches is None or matches(record):
                records.append(record)
        full = len(records) == count
        more = any(not walk.at_end for walk in walks)
        return Page(
            records,
            {walk.partition: walk.following for walk in walks},
            searched,
            more,
            more and not full,
            [walk.problem for walk in walks if walk.problem],
        )


@dataclass(frozen=True, slots=True)
class _MaskedView:
    mask: Mask
    decode: Decode

    def shown(self, record: FoundRecord) -> FoundRecord:
        mask, decode = self.mask, self.decode
        return record._replace(
            key=mask.key(record.key, decode),
            value=mask.value(record.value, decode),
            headers=mask.headers(record.headers),
        )


class _PartitionReader(ABC):
    """Reads a range of one partition, in chunks."""

    def __init__(
        self,
        cluster: Cluster,
        topic_partition: TopicPartition,
        span: Range,
        chunk: int,
        limit: ReadLimit,
        view: "_MaskedView | None" = None,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._topic_partition = topic_partition
        self._limit = limit
        self._chunk = chunk
        self._low, self._high = span
        """The range not read yet."""
        self._ready: list[FoundRecord] = []
        """Records read and not returned yet; the last one is next."""
        self.problem = ""
        self.following = self._edge

    @staticmethod
    @abstractmethod
    def order(record: FoundRecord) -> tuple[int, int, int]: ...

    @property
    @abstractmethod
    def _edge(self) -> int: ...

    @abstractmethod
    def _read_on(self) -> list[FoundRecord]:
        """Reads the next chunk. Returns its records, the next one last."""

    @abstractmethod
    def _passed(self, record: FoundRecord) -> int:
        """The offset to continue from after this record."""

    @property
    def partition(self) -> int:
        return self._topic_partition.partition

    @property
    def at_end(self) -> bool:
        return not self._ready and self._low >= self._high

    @property
    def next(self) -> FoundRecord:
        return self._ready[-1]

    def take(self) -> FoundRecord:
        record = self._ready.pop()
        self.following = self._passed(record) if self._ready else self._edge
        return record

    def fill(self) -> bool:
        """Whether there is a next record. Reads until there is one, or the range or the limit ends."""
        while not self._ready and self._low < self._high and not self._limit.spent:
            try:
                self._ready = self._read_on()
            except (KafkaError, OffsetOutOfRangeError) as error:
                self.problem = f"{self._topic_partition}: {error}"
                self._high = self._low
            if not self._ready:
                self.following = self._edge
                self._chunk = min(2 * self._chunk, _LARGEST_CHUNK)
        return bool(self._ready)

    def _read(self, start: int, end: int, *, whole: bool) -> tuple[list[FoundRecord], int]:
        """The records from start to before end, and the offset reached; without `whole`, at most one fetch."""
        found: list[FoundRecord] = []
        size = held = 0
        while start < end and held <= _MOST_HELD:
            try:
                fetched = self._cluster.fetch(self._topic_partition, start, max_bytes=FETCH_BYTES, max_wait_ms=0)
            except UnreadableError as error:
                self.problem = str(error)
                start = end
                break
            size += len(fetched.data)
            following = start
            transactions = AbortedTransactions(fetched.aborted)
            for at, header in iterate_headers(fetched.data):
                hidden = transactions.hide(header)
                if header.base_offset >= end:
                    following = end
                    break
                following = max(following, header.last_offset + 1)
                if hidden or header.last_offset < start:
                    continue
                try:
                    records = self._opened(fetched.data, at, header, start, end)
                except BeyondLimitsError:
                    if whole or not found:
                        raise
                    following = header.base_offset  # the records before it are shown; the next chunk reports the error
                    break
                except KafkaError as error:
                    low, high = header.base_offset, header.last_offset
                    self.problem = f"{self._topic_partition}: offsets {low} to {high} are skipped: {error.message}"
                    continue
                found += records
                held += sum(len(each.key or b"") + len(each.value or b"") for each in records)
                if held > _MOST_HELD:
                    if whole and following < end:
                        raise _damaged(header.base_offset, "this batch and the following ones are too large to show")
                    break
            if following == start:
                if fetched.data:
                    raise _damaged(start, "no record batch starts there")
                break  # it was truncated after the range was read
            start = min(following, end)  # a batch may extend beyond the end; the rest belongs to the next chunk
            if not whole:
                break
        self._limit.take(len(found), max(size, held))
        if found:  # the next chunk should need about one fetch
            average = max(1, size // len(found))
            self._chunk = max(_FIRST_CHUNK, min(_LARGEST_CHUNK, 2 * self._chunk, FETCH_BYTES // average))
        return found, start

    def _opened(self, data: memoryview, at: int, header: BatchHeader, start: int, end: int) -> list[FoundRecord]:
        """The records of a batch from start to before end."""
        if not has_valid_checksum(data, at, header):
            raise _damaged(header.base_offset, "its checksum (CRC32C) is wrong")
        first, last = max(start, header.base_offset), min(end - 1, header.last_offset)
        found = [
            FoundRecord(self.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
            for each in records_between(header, data[at : at + header.size], first, last, _OPENING)
        ]
        return found if self._view is None else [self._view.shown(record) for record in found]


class _Backwards(_PartitionReader):
    @staticmethod
    def order(record: FoundRecord) -> tuple[int, int, int]:
        return (-record.timestamp_ms, record.partition, -record.offset)

    @property
    def _edge(self) -> int:
        return self._high

    def _read_on(self) -> list[FoundRecord]:
        start = max(self._low, self._high - self._chunk)
        found, _ = self._read(start, self._high, whole=True)
        self._high = start
        return found

    def _passed(self, record: FoundRecord) -> int:
        return record.offset


class _Forwards(_PartitionReader):
    @staticmethod
    def order(record: FoundRecord) -> tuple[int, int, int]:
        return (record.timestamp_ms, record.partition, record.offset)

    @property
    def _edge(self) -> int:
        return self._low

    def _read_on(self) -> list[FoundRecord]:
        end = min(self._high, self._low + self._chunk)
        found, reached = self._read(self._low, end, whole=False)
        self._low = reached if reached > self._low else end
        found.reverse()
        return found

    def _passed(self, record: FoundRecord) -> int:
        return record.offset + 1


def _damaged(offset: int, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} cannot be read: {reason}")


def _prime(walks: list[_PartitionReader]) -> None:
    """Reads the first chunk of all partitions in parallel, because each needs a round trip."""
    if len(walks) > 1:
        with ThreadPoolExecutor(min(_THREADS, len(walks))) as pool:
            for _ in pool.map(_PartitionReader.fill, walks):
                pass


MOST_RECORDS = 200
_MOST_LOOKED_AT = 50_000
_MOST_BYTES = 16 << 20
_LONGEST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    records: list[FoundRecord]
    """Oldest first."""
    searched: int
    skipped: int
    """Number of offsets skipped; some may have had no record."""
    problems: list[str]


class RecordTail:
    """Reads new records, from the end offsets at the first step on. Blocking; for one thread at a time."""

    def __init__(
        self,
        reader: RecordReader,
        topic: str,
        partitions: Collection[int] | None = None,
        matches: Matches | None = None,
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._partitions = partitions
        self._matches = matches
        self._positions: dict[int, int] | None = None

    def step(self, most: int = MOST_RECORDS) -> Step:
        ranges = self._reader.ranges(self._topic, self._partitions)
        if self._positions is None:
            self._positions = {index: span.end for index, span in ranges.items()}
            return Step([], 0, 0, [])
        # A new partition is read from its beginning, a truncated one from its new end.
        grown = {
            index: Range(max(span.start, self._positions.get(index, span.start)), span.end)
            for index, span in ranges.items()
            if span.end > self._positions.get(index, span.start)
        }
        self._positions = {index: span.end for index, span in ranges.items()}
        if not grown:
            return Step([], 0, 0, [])
        limit = ReadLimit(_MOST_LOOKED_AT, _MOST_BYTES, _LONGEST_SECONDS)
        page = self._reader.backwards(self._topic, grown, most, self._matches, limit)
        skipped = sum(page.following[index] - span.start for index, span in grown.items()) if page.more else 0
        return Step(page.records[::-1], page.searched, skipped, page.problems)
