"""Compares the records of a mirror topic with those of its source, without trust in either: by checksums of batches.

Each partition is compared over the offsets that both sides have, in ranges. Batches must have the same offsets and the
same CRC32C, which covers everything but offset and leader epoch. A partition that only one side has is a difference. A
compacted topic may have been cleaned on one side only: there, records at the same offset must be equal, and a record
may be missing on one side.
"""

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from millstream.admin.mirrors import MirrorTopic
from millstream.formats.records.batch import LOG_OVERHEAD, BatchHeader, iterate_headers
from millstream.formats.records.record import iterate_records
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.offsets import EARLIEST, LATEST

_FETCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for one partition: offsets `start` to `end` were compared."""

    topic: str
    partition: int
    start: int
    end: int
    batches: int
    checksum: int
    """CRC32 over offsets and checksums of all batches: equal on both sides if nothing differs."""
    difference: str = ""
    compacted: int = 0
    """Records of a compacted topic that only one side has."""

    def document(self) -> dict[str, Any]:
        """The result as JSON, for the command line and over HTTP."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start": self.start,
            "end": self.end,
            "batches": self.batches,
            "checksum": f"{self.checksum:08x}",
            "compacted": self.compacted,
            "difference": self.difference or None,
        }


class OutOfTimeError(Exception):
    """The time for a comparison is over."""


def verify_topic(
    here: Cluster, source: Cluster, mirror: MirrorTopic, *, is_compacted: bool, deadline: float | None = None
) -> Iterator[Verified]:
    """Compares all partitions. OutOfTimeError after `deadline` (of `time.monotonic`)."""
    counts = here.partitions_of(mirror.name), source.partitions_of(mirror.source_name)
    for index in range(max(counts)):
        if index >= min(counts):
            yield _only_one_side(here, source, mirror, index, counts)
            continue
        ours, theirs = TopicPartition(mirror.name, index), TopicPartition(mirror.source_name, index)
        start = max(_offset(here, ours, EARLIEST), _offset(source, theirs, EARLIEST))
        end = min(_offset(here, ours, LATEST), _offset(source, theirs, LATEST))
        compare = _compare_records if is_compacted else _compare_batches
        left, right = _batches(here, ours, start, end, deadline), _batches(source, theirs, start, end, deadline)
        yield compare(ours, left, right, start, end)


def _only_one_side(
    here: Cluster, source: Cluster, mirror: MirrorTopic, index: int, counts: tuple[int, int]
) -> Verified:
    has_source = counts[1] > counts[0]
    cluster, name = (source, mirror.source_name) if has_source else (here, mirror.name)
    at = TopicPartition(name, index)
    start, end = _offset(cluster, at, EARLIEST), _offset(cluster, at, LATEST)
    one, other = ("source", "mirror") if has_source else ("mirror", "source")
    fewer = f"{min(counts)} partition{'' if min(counts) == 1 else 's'}"
    text = f"only the {one} has this partition, with offsets {start} to {end}; the {other} has {fewer}"
    return Verified(mirror.name, index, start, end, 0, 0, text)


def _offset(cluster: Cluster, at: TopicPartition, when: int) -> int:
    return cluster.offsets({at: when}, read_committed=False)[at].offset


def _batches(
    cluster: Cluster, at: TopicPartition, start: int, end: int, deadline: float | None
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches that begin before `end`."""
    offset = start
    while offset < end:
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTimeError
        fetched = cluster.fetch_existing(at, offset, max_bytes=_FETCH_BYTES, read_committed=False)
        after = offset
        for place, header in iterate_headers(fetched.data):
            batch = fetched.data[place : place + LOG_OVERHEAD + header.length]
            after = header.base_offset + header.last_offset_delta + 1
            if header.base_offset >= end:
                return
            yield header, batch
        if after <= offset:
            return  # everything behind was compacted away
        offset = after


def _compare_batches(
    at: TopicPartition,
    ours: Iterator[tuple[BatchHeader, memoryview]],
    theirs: Iterator[tuple[BatchHeader, memoryview]],
    start: int,
    end: int,
) -> Verified:
    checksum = batches = 0
    while True:
        left, right = next(ours, None), next(theirs, None)
        if left is None and right is None:
            return Verified(at.topic, at.partition, start, end, batches, checksum)
        difference = _difference(left, right)
        if difference:
            return Verified(at.topic, at.partition, start, end, batches, checksum, difference)
        assert left is not None
        checksum = zlib.crc32(f"{left[0].base_offset}:{left[0].crc}".encode(), checksum)
        batches += 1


def _difference(left: tuple[BatchHeader, memoryview] | None, right: tuple[BatchHeader, memoryview] | None) -> str:
    if left is None or right is None:
        one = left or right
        assert one is not None
        return f"only the {'source' if left is None else 'mirror'} has a batch at offset {one[0].base_offset}"
    for side, (header, batch) in (("mirror", left), ("source", right)):
        if crc32c(batch[21:]) != header.crc:
            return f"the batch at offset {header.base_offset} of the {side} is damaged: its checksum is wrong"
    ours, theirs = left[0], right[0]
    if (ours.base_offset, ours.last_offset_delta) != (theirs.base_offset, theirs.last_offset_delta):
        return f"the batch at offsets {_offsets(ours)} of the mirror is at {_offsets(theirs)} at the source"
    if ours.crc != theirs.crc:
        return f"the batch at offset {ours.base_offset} differs: checksum {ours.crc:08x}, source {theirs.crc:08x}"
    return ""


def _offsets(header: BatchHeader) -> str:
    return f"{header.base_offset} to {header.base_offset + header.last_offset_delta}"


def _compare_records(
    at: TopicPartition,
    ours: Iterator[tuple[BatchHeader, memoryview]],
    theirs: Iterator[tuple[BatchHeader, memoryview]],
    start: int,
    end: int,
) -> Verified:
    left_records, right_records = _records(ours, end), _records(theirs, end)
    left, right = next(left_records, None), next(right_records, None)
    checksum = count = alone = 0
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            alone += 1
            left = next(left_records, None)
        elif left is None or right[0] < left[0]:
            alone += 1
            right = next(right_records, None)
        else:
            if left[1] != right[1]:
                text = f"the record at offset {left[0]} differs"
                return Verified(at.topic, at.partition, start, end, count, checksum, text, alone)
            checksum = zlib.crc32(f"{left[0]}:{left[1]}".encode(), checksum)
            count += 1
            left, right = next(left_records, None), next(right_records, None)
    return Verified(at.topic, at.partition, start, end, count, checksum, "", alone)


def _records(batches: Iterator[tuple[BatchHeader, memoryview]], end: int) -> Iterator[tuple[int, int]]:
    for header, batch in batches:
        for record in iterate_records(header, batch):
            if record.offset < end:
                yield record.offset, zlib.crc32(repr(record).encode())
