"""Reads the records that a query needs, as typed Arrow tables; bounded in records and bytes.

A thread for each of a few partitions fetches; others decode. Which records: the newest N of the topic (by offsets,
shared out to its partitions), those since a time, or all; and within them what the conditions of the query allow.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from millstream.admin.errors import InvalidArgumentError
from millstream.admin.offsets import parse_duration, parse_time
from millstream.columnar import ArrowDecoder, CorruptBatchError
from millstream.raw_client import EARLIEST, LATEST, Cluster, OffsetOutOfRangeError, TopicPartition, UnreadableError
from millstream.sql.errors import SqlError, Stop
from millstream.sql.statement import Bounds
from millstream.sql.topic_columns import TopicColumns

DEFAULT_LAST = 1_000_000
_FETCH_BYTES = 8 << 20
_SAMPLE_BYTES = 256 << 10
_SAMPLED_RECORDS = 200
_SAMPLED_PARTITIONS = 8
_BATCH_ROWS = 32_768
_THREADS = max(2, min(4, os.cpu_count() or 2))
Progress = Callable[[int, int], None]
"""Called with the records read so far and the number to read."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which records of each topic are read."""

    last: int | None = DEFAULT_LAST
    """The newest of the topic; None: all."""
    since_ms: int | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise SqlError(f"last is {self.last}", "it must be at least 1")


def window_of(last: int | None, since: str | None, from_beginning: bool) -> Window:
    """The window that a user gave: the newest records, those since a time or an age (1h), or all."""
    if from_beginning and (last is not None or since):
        raise SqlError("'from the beginning' excludes 'last' and 'since'")
    since_ms = None
    if since:
        try:
            age = parse_duration(since)
            since_ms = int((datetime.now(UTC) - age).timestamp() * 1000)
        except (InvalidArgumentError, OverflowError):
            try:
                since_ms = int(parse_time(since).timestamp() * 1000)
            except InvalidArgumentError:
                raise SqlError(
                    f"since {since}", "write a time such as 2026-01-31T12:00, @milliseconds, or an age such as 1h"
                ) from None
    if last is None and not since and not from_beginning:
        last = DEFAULT_LAST
    return Window(last, since_ms)


@dataclass(slots=True)
class TopicRead:
    """What was read of a topic, for the user."""

    topic: str
    records: int = 0
    size_bytes: int = 0
    left_out: int = 0
    """Offsets before those that were read, which the window left out."""
    format: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Range:
    partition: int
    start: int
    stop: int


class MemoryBudget:
    """The bytes of all records of a query. Thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = self._left = limit_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self._left -= size_bytes
            if self._left < 0:
                raise SqlError(
                    f"the records of the query are larger than {self._limit >> 20:,} MB",
                    "read fewer: the last N, since a time, or a condition on _timestamp, _offset or _partition",
                )


def plan(cluster: Cluster, topic: str, window: Window, bounds: Bounds) -> tuple[list[Range], int]:
    """The ranges to read, and how many offsets the window leaves out."""
    count = cluster.partitions_of(topic)
    wanted = [index for index in range(count) if bounds.partitions is None or index in bounds.partitions]
    places = [TopicPartition(topic, index) for index in wanted]
    if not places:
        return [], 0
    starts = {at.partition: found.offset for at, found in cluster.offsets(dict.fromkeys(places, EARLIEST)).items()}
    ends = {at.partition: found.offset for at, found in cluster.offsets(dict.fromkeys(places, LATEST)).items()}
    since = max((each for each in (window.since_ms, bounds.since_ms) if each is not None), default=None)
    if since is not None:
        for at, found in cluster.offsets(dict.fromkeys(places, max(0, since))).items():
            first = ends[at.partition] if found.offset < 0 else found.offset
            starts[at.partition] = max(starts[at.partition], first)
    for index in wanted:
        if bounds.first_offset is not None:
            starts[index] = max(starts[index], bounds.first_offset)
        if bounds.end_offset is not None:
            ends[index] = min(ends[index], bounds.end_offset)
    sizes = {index: max(0, ends[index] - starts[index]) for index in wanted}
    shares = sizes if window.last is None else shared_out(window.last, sizes)
    ranges = [Range(index, ends[index] - shares[index], ends[index]) for index in wanted if shares[index]]
    return ranges, sum(sizes.values()) - sum(shares.values())


def shared_out(total: int, sizes: Mapping[int, int]) -> dict[int, int]:
    """`total` in equal parts; what a small partition does not need goes to the others."""
    shares = dict.fromkeys(sizes, 0)
    rest = sorted((size, index) for index, size in sizes.items())
    for at, (size, index) in enumerate(rest):
        shares[index] = min(size, -(-total // (len(rest) - at)))
        total -= shares[index]
    return shares


def sample(cluster: Cluster, topic: str, ranges: list[Range], stop: Stop) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of the last records of some of the ranges."""
    found: list[tuple[bytes | None, bytes | None]] = []
    decoder = ArrowDecoder(("key", "value"), max_rows=_SAMPLED_RECORDS)
    step = max(1, len(ranges) // _SAMPLED_PARTITIONS)
    for each in ranges[::step][:_SAMPLED_PARTITIONS]:
        stop.check()
        for first in dict.fromkeys((each.start, max(each.start, each.stop - _SAMPLED_RECORDS))):
            try:
                data = cluster.fetch_existing(TopicPartition(topic, each.partition), first, max_bytes=_SAMPLE_BYTES)
                pieces = decoder.pieces(
                    data.data, topic=topic, partition=each.partition, start=first, stop=each.stop, aborted=data.aborted
                )
                batch = next(pieces, None)
            except (CorruptBatchError, UnreadableError, OffsetOutOfRangeError):
                continue  # reading reports it
            if batch is not None:
                keys = batch.column("key").slice(0, _SAMPLED_RECORDS).to_pylist()
                found += zip(keys, batch.column("value").slice(0, _SAMPLED_RECORDS).to_pylist(), strict=True)
    return found


class TopicReader:
    """Reads the ranges of one topic."""

    def __init__(
        self, cluster: Cluster, columns: TopicColumns, ranges: list[Range], budget: MemoryBudget, stop: Stop
    ) -> None:
        self._cluster = cluster
        self._columns = columns
        self._ranges = ranges
        self._budget = budget
        self._stop = stop
        self._lock = threading.Lock()
        self.result = TopicRead(columns.topic, format=columns.format)

    def read(self, progress: Progress) -> pa.Table:
        with (
            ThreadPoolExecutor(_THREADS, "sql-fetch") as fetching,
            ThreadPoolExecutor(_THREADS, "sql-decode") as decoding,
        ):
            parts = [fetching.submit(self._read_range, each, decoding, progress) for each in self._ranges]
            try:
                tables = [table.result() for part in parts for table in part.result()]
            except BaseException:
                fetching.shutdown(wait=False, cancel_futures=True)
                decoding.shutdown(wait=False, cancel_futures=True)
                raise
        self.result.notes += self._columns.notes
        return self._columns.unify(tables)

    def _read_range(self, wanted: Range, decoding: ThreadPoolExecutor, progress: Progress) -> "list[Future[pa.Table]]":
        topic, tables = self._columns.topic, list[Future[pa.Table]]()
        decoder = ArrowDecoder(self._columns.raw_columns, max_rows=_BATCH_ROWS)
        place, offset = TopicPartition(topic, wanted.partition), wanted.start
        while offset < wanted.stop:
            self._stop.check()
            try:
                fetched = self._cluster.fetch_existing(place, offset, max_bytes=_FETCH_BYTES)
                pieces = decoder.pieces(
                    fetched.data,
                    topic=topic,
                    partition=wanted.partition,
                    start=offset,
                    stop=wanted.stop,
                    aborted=fetched.aborted,
                )
                following = offset
                while True:
                    try:
                        batch = next(pieces)
                    except StopIteration as end:
                        following = end.value
                        break
                    self._budget.take(batch.nbytes)
                    self._stop.check()
                    tables.append(decoding.submit(self._typed, batch, progress))
            except CorruptBatchError as error:
                self._note(str(error))
                if error.last_offset is None:
                    break
                following = error.last_offset + 1
            except UnreadableError as error:
                self._note(str(error))
                break
            except OffsetOutOfRangeError as error:
                if offset >= error.log_start:
                    break  # it was truncated after the plan
                following = error.log_start  # retention has deleted records after the plan
            if following == offset:
                break
            offset = following
        return tables

    def _typed(self, batch: pa.RecordBatch, progress: Progress) -> pa.Table:
        self._stop.check()
        table = self._columns.typed(batch)
        with self._lock:
            self.result.records += batch.num_rows
            self.result.size_bytes += batch.nbytes
            progress(self.result.records, sum(each.stop - each.start for each in self._ranges))
        return table

    def _note(self, text: str) -> None:
        with self._lock:
            self.result.notes.append(text)
