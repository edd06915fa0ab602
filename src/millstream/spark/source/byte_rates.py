"""How many bytes an offset stands for, from a look at the batches where a query would read on.

The look is one small fetch per partition that has records waiting; only headers of batches are read. Bytes are as
stored, so compressed; gaps in the offsets (compaction, transactions) count, as they do in the offsets themselves.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millstream.raw_client import Cluster, TopicPartition, WireError

LOOK_BYTES = 64 << 10
_HEADER = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_SHORTEST = 61


class Frame(NamedTuple):
    """Where one record batch is, and what it holds."""

    base_offset: int
    last_offset: int
    size: int


def frames(data: memoryview) -> Iterator[Frame]:
    """The batches of a fetch from their headers alone, the last one too where it is cut off."""
    position, end = 0, len(data)
    while end - position >= _SHORTEST:
        base, length = _HEADER.unpack_from(data, position)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, position + _LAST_OFFSET_DELTA_AT)
        if length < _SHORTEST - _HEADER.size or delta < 0:
            return  # the decoder tells what is wrong with it
        yield Frame(base, base + delta, _HEADER.size + length)
        position += _HEADER.size + length


class ByteRates:
    """Bytes per offset of each partition where the query is now; asked for once per place."""

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
            return None  # a limit is an estimate; whether the partition can be read, the tasks will tell
        seen = list(frames(fetched.data))
        if not seen:
            return None
        return sum(each.size for each in seen) / max(1, seen[-1].last_offset + 1 - seen[0].base_offset)
