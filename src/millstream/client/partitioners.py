"""Partitioners: by key as Java's producer does, and two that spread hot keys over several partitions.

A partitioner is a function of (key, number of partitions, bytes of the record). It returns a partition, or
`ANY_PARTITION` to let the producer choose. It works with `Client.publish(..., partitioner=p)` and with any
confluent-kafka producer:

    producer.produce(topic, value, key, partition=p(key, partition_count, len(value)))

Keys that are not spread get the partition of Java's default partitioner (murmur2), so topics written by both stay
co-partitioned. docs/hot-keys.md has the costs of spreading a key, and how to read such a key.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import count
from math import log
from typing import Protocol, TypeAlias
from zlib import crc32

from millstream.client.errors import MillstreamError
from millstream.common.space_saving import SpaceSaving

ANY_PARTITION = -1
"""The producer chooses: librdkafka fills one batch after another."""
_CACHED_HASHES = 8192

HomeOf: TypeAlias = Callable[[bytes, int], int]
"""The partition of a key: a function of the key and the number of partitions."""


class Partitioner(Protocol):
    """A function of key, number of partitions and bytes of the record that returns a partition or `ANY_PARTITION`."""

    def __call__(self, key: bytes | None, partition_count: int, size_bytes: int = 0, /) -> int: ...


@lru_cache(_CACHED_HASHES)
def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java clients, unsigned."""
    multiplier = 0x5BD1E995
    length = len(data)
    value = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & 0xFFFFFFFF
        word = (word ^ word >> 24) * multiplier & 0xFFFFFFFF
        value = value * multiplier & 0xFFFFFFFF ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & 0xFFFFFFFF
    value = (value ^ value >> 13) * multiplier & 0xFFFFFFFF
    return value ^ value >> 15


def java_partition(key: bytes, partition_count: int) -> int:
    """The partition that Java's default partitioner (and librdkafka's `murmur2`) gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def librdkafka_partition(key: bytes, partition_count: int) -> int:
    """The partition that librdkafka's default (`consistent_random`, CRC32) gives a key that is not empty. Use it as
    `home=` for topics that are written with librdkafka's default."""
    return crc32(key) % partition_count


class SaltingPartitioner:
    """Spreads given keys over n partitions each. All other keys stay in one partition.

        SaltingPartitioner({"big-customer": 4, "bot": 8})
        SaltingPartitioner(["big-customer", "bot"], spread=4)

    The key itself is not changed. Its records go to its usual partition and the n - 1 after it, in turn.
    """

    def __init__(
        self,
        keys: Mapping[str | bytes, int] | Iterable[str | bytes],
        *,
        spread: int | None = None,
        home: HomeOf = java_partition,
    ) -> None:
        if isinstance(keys, (str, bytes)):
            raise MillstreamError("give the keys as a list, or as a mapping from key to number of partitions")
        if isinstance(keys, Mapping):
            wanted = {_encoded(key): partitions for key, partitions in keys.items()}
        elif spread is None:
            raise MillstreamError("the number of partitions is missing: give spread=N, or a mapping from key to N")
        else:
            wanted = {_encoded(key): spread for key in keys}
        for key, partitions in wanted.items():
            if partitions < 1:
                raise MillstreamError(f"key {key!r} cannot be spread over {partitions} partitions: give at least 1")
        self._turns = {key: (partitions, count()) for key, partitions in wanted.items()}
        self._home = home

    def __call__(self, key: bytes | str | None, partition_count: int, size_bytes: int = 0, /) -> int:
        if key is None:
            return ANY_PARTITION
        if isinstance(key, str):
            key = key.encode()
        home = self._home(key, partition_count)
        turn = self._turns.get(key)
        if turn is None:
            return home
        spread, turns = turn
        return (home + next(turns) % min(spread, partition_count)) % partition_count

    def partitions_of(self, key: bytes | str, partition_count: int) -> list[int]:
        """The partitions that may have records of a key."""
        encoded = _encoded(key)
        spread = self._turns[encoded][0] if encoded in self._turns else 1
        home = self._home(encoded, partition_count)
        return [(home + step) % partition_count for step in range(min(spread, partition_count))]


class HotKeyPartitioner:
    """Spreads a key over all partitions while its rate is above a threshold.

        HotKeyPartitioner(max_records_per_second=5_000)
        HotKeyPartitioner(max_bytes_per_second=10_000_000, half_life_s=30)

    Rates are those of this producer, with exponential decay: a key at twice the threshold is hot after one
    half-life. It is not hot any more when its rate is below `cool_at` times the threshold. Memory is bounded: only
    `capacity` keys are counted, and a key that is not counted is never hot.
    """

    def __init__(
        self,
        *,
        max_records_per_second: float | None = None,
        max_bytes_per_second: float | None = None,
        half_life_s: float = 10.0,
        cool_at: float = 0.5,
        capacity: int = 1000,
        home: HomeOf = java_partition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = [limit for limit in (max_records_per_second, max_bytes_per_second) if limit is not None]
        if not limits or min(limits) <= 0:
            raise MillstreamError("give max_records_per_second or max_bytes_per_second, above 0")
        if half_life_s <= 0 or not 0 < cool_at <= 1 or capacity < 1:
            raise MillstreamError("half_life_s and capacity are above 0, cool_at is between 0 and 1")
        # For a constant rate r the decayed sum is r * half-life / ln 2.
        per_rate = half_life_s / log(2)
        self._records = _Threshold.of(max_records_per_second, per_rate, capacity, half_life_s)
        self._bytes = _Threshold.of(max_bytes_per_second, per_rate, capacity, half_life_s)
        self._cool_at = cool_at
        self._capacity = capacity
        self._home = home
        self._clock = clock
        self._hot: set[bytes] = set()
        self._turn = 0
        self._lock = threading.Lock()

    def __call__(self, key: bytes | str | None, partition_count: int, size_bytes: int = 0, /) -> int:
        if key is None:
            return ANY_PARTITION
        if isinstance(key, str):
            key = key.encode()
        now_s = self._clock()
        with self._lock:
            if self._records is not None:
                self._records.sketch.add(key, 1.0, now_s)
            if self._bytes is not None:
                self._bytes.sketch.add(key, float(len(key) + size_bytes), now_s)
            if self._is_hot(key, now_s):
                self._turn = (self._turn + 1) % partition_count
                return self._turn
        return self._home(key, partition_count)

    def hot_keys(self) -> list[bytes]:
        """The keys that are hot at present."""
        now_s = self._clock()
        with self._lock:
            self._remove_cooled(now_s)
            return sorted(self._hot)

    def _is_hot(self, key: bytes, now_s: float) -> bool:
        was_hot = key in self._hot
        load = self._load(key, now_s)
        if was_hot and load < self._cool_at:
            self._hot.discard(key)
            return False
        if not was_hot and load > 1.0:
            if len(self._hot) >= self._capacity:  # keys without records since they were hot are not checked otherwise
                self._remove_cooled(now_s)
            self._hot.add(key)
            return True
        return was_hot

    def _load(self, key: bytes, now_s: float) -> float:
        return max(threshold.load(key, now_s) for threshold in (self._records, self._bytes) if threshold is not None)

    def _remove_cooled(self, now_s: float) -> None:
        self._hot = {key for key in self._hot if self._load(key, now_s) >= self._cool_at}


class _Threshold:
    """A rate and the decayed sum at which it is exceeded."""

    def __init__(self, limit: float, sketch: SpaceSaving[bytes]) -> None:
        self._limit = limit
        self.sketch = sketch

    @classmethod
    def of(cls, rate: float | None, per_rate: float, capacity: int, half_life_s: float) -> "_Threshold | None":
        return None if rate is None else cls(rate * per_rate, SpaceSaving(capacity, half_life_s))

    def load(self, key: bytes, now_s: float) -> float:
        """1 at the threshold. Uses the lower bound of the estimate, so that no cold key counts as hot."""
        estimate = self.sketch.estimate(key, now_s)
        return (estimate.weight - estimate.error) / self._limit


def _encoded(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
