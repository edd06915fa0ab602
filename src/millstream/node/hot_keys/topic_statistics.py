"""Statistics of one topic's traffic: rates per partition, the hottest keys, and samples of batches.

All values decay with one half-life, so they describe the last minute or two. Clock and logs are arguments.

A sample has the keys and sizes of a few records of a batch. Other records are skipped by their length, and only keys
are copied, so the cost does not grow with the size of values. The log has checked the CRC. A batch that cannot be
parsed is not sampled.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from millstream.common.space_saving import SpaceSaving
from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import HEADER_SIZE, is_plausible, read_header
from millstream.formats.records.compiled import seek_offset
from millstream.formats.records.opening import OpeningLimits, opened
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, read_varint

HALF_LIFE_SECONDS = 30.0
KEPT_KEYS = 128
SHOWN_KEYS = 20
SHOWN_PARTITIONS = 100
MAX_KEY_BYTES = 256
_PREFIX_BYTES = MAX_KEY_BYTES - 16

Key = bytes | None


class Rate:
    """Records and bytes per second, with exponential decay."""

    __slots__ = ("_bytes", "_records", "_seconds", "updated_s")

    def __init__(self, now_s: float) -> None:
        self._records = 0.0
        self._bytes = 0.0
        self._seconds = 0.0
        self.updated_s = now_s

    def add(self, records: int, size_bytes: int, now_s: float) -> None:
        elapsed = max(now_s - self.updated_s, 0.001)
        fading = 2 ** (-elapsed / HALF_LIFE_SECONDS)
        self._records = self._records * fading + records
        self._bytes = self._bytes * fading + size_bytes
        # Seconds decay as well, so the quotient is right from the start and not only after some half-lives.
        self._seconds = self._seconds * fading + elapsed
        self.updated_s = now_s

    @property
    def records_per_second(self) -> float:
        return self._records / self._seconds if self._seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self._bytes / self._seconds if self._seconds else 0.0


class KeyShares:
    """The keys of sampled records, with their shares of records and of bytes."""

    def __init__(self) -> None:
        self._records: SpaceSaving[Key] = SpaceSaving(KEPT_KEYS, HALF_LIFE_SECONDS)
        self._bytes: SpaceSaving[Key] = SpaceSaving(KEPT_KEYS, HALF_LIFE_SECONDS)
        self._sampled: SpaceSaving[None] = SpaceSaving(1, HALF_LIFE_SECONDS)

    def add(self, records: Iterable[tuple[Key, int]], weight: float, now_s: float) -> None:
        """Counts sampled records. Each represents `weight` records of the topic."""
        sums: dict[Key, list[int]] = {}
        count = 0
        for key, size in records:
            of_key = sums.setdefault(key, [0, 0])
            of_key[0] += 1
            of_key[1] += size
            count += 1
        for key, (number, size) in sums.items():
            kept = bounded(key)
            self._records.add(kept, number * weight, now_s)
            self._bytes.add(kept, size * weight, now_s)
        self._sampled.add(None, count, now_s)

    def document(self, now_s: float) -> dict[str, Any]:
        """The hottest keys for a report, hottest first."""
        records, sizes = self._records.total(now_s), self._bytes.total(now_s)
        rows = []
        if records and sizes:
            tops = [*self._records.top(SHOWN_KEYS, now_s), *self._bytes.top(SHOWN_KEYS, now_s)]
            for key in dict.fromkeys(row.key for row in tops):
                by_records, by_bytes = self._records.estimate(key, now_s), self._bytes.estimate(key, now_s)
                rows.append(
                    {
                        **key_document(key),
                        "record_share": round(by_records.weight / records, 4),
                        "record_share_at_least": round((by_records.weight - by_records.error) / records, 4),
                        "byte_share": round(by_bytes.weight / sizes, 4),
                        "byte_share_at_least": round((by_bytes.weight - by_bytes.error) / sizes, 4),
                    }
                )
        rows.sort(key=lambda row: -max(row["record_share_at_least"], row["byte_share_at_least"]))
        return {"sampled_records": round(self._sampled.total(now_s)), "keys": rows[:SHOWN_KEYS]}


class TopicKeyStatistics:
    def __init__(self, now_s: float) -> None:
        self.total = Rate(now_s)
        self.partitions: dict[int, Rate] = {}
        """The partitions with records since the topic is followed."""
        self.partition_count = 0
        self.keys = KeyShares()
        self.busy_s = now_s
        """When records last arrived."""
        self.reported_s: float | None = None

    def note(self, appended: dict[int, tuple[int, int]], partition_count: int, now_s: float) -> None:
        """Adds the records and bytes that partitions got since the last call. Other partitions got nothing."""
        self.partition_count = partition_count
        for partition in appended:
            if partition not in self.partitions:
                self.partitions[partition] = Rate(self.total.updated_s)
        for partition, rate in self.partitions.items():
            rate.add(*appended.get(partition, (0, 0)), now_s)
        records = sum(row[0] for row in appended.values())
        self.total.add(records, sum(row[1] for row in appended.values()), now_s)
        if records:
            self.busy_s = now_s

    def rates_document(self) -> dict[str, Any]:
        """The rates for a report. With many partitions, only those with the highest rates."""
        busiest = sorted(self.partitions.items(), key=lambda item: -item[1].bytes_per_second)
        return {
            **_rates(self.total),
            "partition_count": self.partition_count,
            "partitions": [{"partition": partition, **_rates(rate)} for partition, rate in busiest[:SHOWN_PARTITIONS]],
        }


def bounded(key: Key) -> Key:
    """A key in at most MAX_KEY_BYTES. A longer key is cut and gets a hash, so that different keys stay different."""
    if key is None or len(key) <= MAX_KEY_BYTES:
        return key
    return key[:_PREFIX_BYTES] + hashlib.blake2b(key, digest_size=16).digest()


def key_document(key: Key) -> dict[str, Any]:
    """A key for JSON, as `millstream consume --json` writes it: text, or base64 if it is not UTF-8."""
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        import base64

        return {"key_base64": base64.b64encode(key or b"").decode()}


def _rates(rate: Rate) -> dict[str, float]:
    return {
        "records_per_second": round(rate.records_per_second, 2),
        "bytes_per_second": round(rate.bytes_per_second, 1),
    }


BLOCK_RECORDS = 64
"""The number of records in a block. One block of a batch is a sample."""
MOST = OpeningLimits(max_bytes=32 << 20, max_records=1_000_000)
"""Larger batches are not sampled, even if the settings allow to open them."""


class Sample(NamedTuple):
    """The records of one block: key and size of each."""

    records: list[tuple[bytes | None, int]]


def sample_block(data: bytes, offset: int, limits: OpeningLimits = MOST) -> Sample | None:
    """The block with `offset`, of the batch at the start of `data`; None if it cannot be sampled."""
    if len(data) < HEADER_SIZE:
        return None
    header = read_header(data)
    if not is_plausible(header) or header.size > len(data) or header.is_control:
        return None
    first = (offset - header.base_offset) // BLOCK_RECORDS * BLOCK_RECORDS
    try:
        with opened(header, data, limits) as content:
            position, number = seek_offset(content, 0, len(content), header.record_count, first)
            return _block(content, position, min(BLOCK_RECORDS, header.record_count - number))
    except (MalformedRecordError, KafkaError):
        return None


def _block(content: memoryview, position: int, count: int) -> Sample | None:
    records = []
    for _ in range(count):
        size, position = read_varint(content, position)
        end = position + size
        if size < 1 or end > len(content):
            return None
        _, at = read_varint(content, position + 1, MAX_LONG_BYTES)
        _, at = read_varint(content, at)
        length, at = read_varint(content, at)
        if length > end - at:
            return None
        records.append((None if length < 0 else bytes(content[at : at + length]), size))
        position = end
    return Sample(records) if records else None
