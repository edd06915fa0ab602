"""The size of a micro-batch and of its tasks: limits by offsets and bytes, and ranges that are split.

A limit is shared in proportion to the pending offsets of each partition, as in spark-sql-kafka; each partition with
pending records gets at least one offset. Bytes per offset are estimated from the batch headers of one small fetch per
partition. Bytes are as stored (compressed); gaps in offsets (compaction, transactions) count as offsets.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from millstream.raw_client import Cluster, TopicPartition, WireError

Offsets = Mapping[TopicPartition, int]


def pending_offsets(starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    """The number of pending offsets of each partition that has some."""
    return {each: end - starts[each] for each, end in ends.items() if each in starts and end > starts[each]}


def at_most_offsets(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends that together are about `limit` offsets after the starts."""
    return _share(starts, ends, limit, dict.fromkeys(ends, 1.0))


def at_most_bytes(
    starts: Offsets, ends: Offsets, limit: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Ends that together are about `limit` bytes after the starts; one offset at least from each partition."""
    return _share(starts, ends, limit, bytes_per_offset)


def _share(
    starts: Offsets, ends: Offsets, limit: int, weight_per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    pending = pending_offsets(starts, ends)
    weights = {each: size * weight_per_offset[each] for each, size in pending.items()}
    total = sum(weights.values())
    if total <= limit:
        return dict(ends)
    chosen = dict(ends)
    for each, weight in weights.items():
        share = limit * (weight / total) / weight_per_offset[each]
        whole = math.ceil(share) if share < 1 else math.floor(share)
        chosen[each] = min(ends[each], starts[each] + max(1, whole))
    return chosen


LOOK_BYTES = 64 << 10
_HEADER = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_SHORTEST = 61


class Frame(NamedTuple):
    """The offsets and the size of a record batch."""

    base_offset: int
    last_offset: int
    size: int


def frames(data: memoryview) -> Iterator[Frame]:
    """The batches of a fetch by their headers, the last one even if it is cut off."""
    position, end = 0, len(data)
    while end - position >= _SHORTEST:
        base, length = _HEADER.unpack_from(data, position)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, position + _LAST_OFFSET_DELTA_AT)
        if length < _SHORTEST - _HEADER.size or delta < 0:
            return  # the decoder reports the error
        yield Frame(base, base + delta, _HEADER.size + length)
        position += _HEADER.size + length


class ByteRates:
    """Bytes per offset at the current position of each partition; fetched once per position."""

    def __init__(self, cluster: Cluster, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._read_committed = read_committed
        self._known: dict[TopicPartition, tuple[int, float]] = {}

    def at(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        return {partition: self._at(partition, offset) for partition, offset in starts.items()}

    def _at(self, partition: TopicPartition, offset: int) -> float:
        known = self._known.get(partition)
        if known is not None and known[0] == offset:
            return known[1]
        rate = self._look(partition, offset) or (known[1] if known is not None else 1.0)
        self._known[partition] = (offset, rate)
        return rate

    def _look(self, partition: TopicPartition, offset: int) -> float | None:
        try:
            fetched = self._cluster.fetch(
                partition, offset, max_bytes=LOOK_BYTES, max_wait_ms=0, read_committed=self._read_committed
            )
        except WireError:
            return None  # only an estimate is missing; the tasks report whether the partition can be read
        seen = list(frames(fetched.data))
        if not seen:
            return None
        return sum(each.size for each in seen) / max(1, seen[-1].last_offset + 1 - seen[0].base_offset)


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads: offsets from `start` up to `stop`, of the topic with this id (empty: unknown)."""

    topic: str
    partition: int
    start: int
    stop: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """An upper bound of the records in it, because of gaps."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.stop})"


def split_ranges(
    ranges: Iterable[Range], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """Ranges of at most `max_records` offsets, and about `min_partitions` of them; empty ones are dropped."""
    whole = [each for each in ranges if each.size > 0]
    if max_records is not None:
        whole = [part for each in whole for part in _cut(each, math.ceil(each.size / max_records))]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    # Small ranges are not split; the others share the remaining number of tasks by their size.
    total = sum(each.size for each in whole)
    large = [each for each in whole if _parts(each.size, total, min_partitions) > 1]
    total_large = sum(each.size for each in large)
    wanted = max(1, min_partitions - (len(whole) - len(large)))
    split = set(large)
    return [
        part
        for each in whole
        for part in (_cut(each, _parts(each.size, total_large, wanted)) if each in split else [each])
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, round(size / total * wanted))


def _cut(whole: Range, parts: int) -> list[Range]:
    parts = min(parts, whole.size)
    edges = [whole.start + whole.size * number // parts for number in range(parts + 1)]
    return [Range(whole.topic, whole.partition, start, stop, whole.topic_id) for start, stop in pairwise(edges)]
