"""How much of what waits goes into the next micro-batch; arithmetic only.

A limit is shared out in proportion to what each partition has, as spark-sql-kafka does, and no partition starves.
"""

import math
from collections.abc import Mapping

from millstream.raw_client import TopicPartition

Offsets = Mapping[TopicPartition, int]


def waiting(starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
    """How many offsets each partition has to read; those with none are left out."""
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
    pending = waiting(starts, ends)
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
