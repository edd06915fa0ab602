"""The stretches of partitions that tasks read: one per partition, or more where options ask for smaller ones."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition


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
        """An upper bound of the records in it: compaction and transactions leave gaps."""
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
    # Small ranges stay as they are; the others share what is left of the wanted number by their size.
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
