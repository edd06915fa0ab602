"""Arrow rows as record batches, complete except for the producer's fields, which `stamp` sets; partitions of keys."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.columnar.compiled import implementation
from millstream.columnar.schema import HEADERS_TYPE
from millstream.formats.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    seal,
)
from millstream.formats.records.compression import Codec, compress

MAX_BATCH_BYTES = 900_000
"""Below the brokers' default of `message.max.bytes`, with room for data that does not compress."""

_PRODUCER = Struct(">qhi")
_PRODUCER_START = 43
_MAX_MILLISECONDS = ((1 << 63) - 1) // 1000
"""The range of timestamps in Arrow and Spark; differences between two of them fit into a record."""
_ROW_COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(slots=True)
class EncodedBatch:
    """A whole batch with a right checksum and without a producer: producer id, epoch and sequence are -1."""

    data: bytearray
    record_count: int


class ArrowEncoder:
    def __init__(
        self,
        codec: Codec,
        *,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        level: int | None = None,
        implementation: ModuleType = implementation,
    ) -> None:
        """`max_batch_bytes`: before compression; a larger record gets a batch for itself."""
        if max_batch_bytes <= HEADER_SIZE:
            raise ValueError(
                f"A batch has a header of {HEADER_SIZE} bytes: max_batch_bytes={max_batch_bytes} is too small."
            )
        self._codec = Codec(codec)
        self._level = level
        self._max_bytes = max_batch_bytes - HEADER_SIZE
        self._implementation = implementation

    def encode(self, rows: pa.RecordBatch) -> Iterator[EncodedBatch]:
        """Batches of the rows of one partition, in order. Columns: key and value (binary or string), headers
        (list<struct<key, value>>), timestamp (any unit, or int64 milliseconds; null is now). A
        missing column is null."""
        unknown = [name for name in rows.schema.names if name not in _ROW_COLUMNS]
        if unknown:
            raise ValueError(f"A record has no column {unknown[0]!r}; rows may have {', '.join(_ROW_COLUMNS)}.")
        keys, values = _binary(rows, "key"), _binary(rows, "value")
        headers, timestamps = _headers(rows), _milliseconds(rows)
        for body, count, base_timestamp, max_timestamp in self._implementation.encode_records(
            keys, values, headers, timestamps, self._max_bytes
        ):
            yield EncodedBatch(self._frame(body, count, base_timestamp, max_timestamp), count)

    def _frame(self, body: bytearray, count: int, base_timestamp: int, max_timestamp: int) -> bytearray:
        content = body if self._codec is Codec.NONE else compress(self._codec, body, self._level)
        size = HEADER_SIZE + len(content)
        batch = bytearray(HEADER_SIZE)
        HEADER.pack_into(
            batch, 0, 0, size - LOG_OVERHEAD, -1, MAGIC_V2, 0, int(self._codec), count - 1,
            base_timestamp, max_timestamp, -1, -1, NO_SEQUENCE, count,
        )  # fmt: skip
        batch += content
        seal(batch, 0, size)
        return batch

    @staticmethod
    def stamp(batch: EncodedBatch, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
        """Sets the producer's fields and updates the checksum."""
        data = batch.data
        (attributes,) = ATTRIBUTES.unpack_from(data, ATTRIBUTES_START)
        attributes = attributes | TRANSACTIONAL_BIT if transactional else attributes & ~TRANSACTIONAL_BIT
        ATTRIBUTES.pack_into(data, ATTRIBUTES_START, attributes)
        _PRODUCER.pack_into(data, _PRODUCER_START, producer_id, epoch, base_sequence)
        seal(data, 0, len(data))


stamp = ArrowEncoder.stamp


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None


def _binary(rows: pa.RecordBatch, name: str) -> pa.Array:
    column = _column(rows, name)
    if column is None:
        return pa.nulls(rows.num_rows, pa.binary())
    return _cast(column, pa.binary(), f"column {name!r}", "binary or string")


def _headers(rows: pa.RecordBatch) -> pa.Array | None:
    column = _column(rows, "headers")
    if column is None or column.null_count == len(column):
        return None
    headers = _cast(column, HEADERS_TYPE, "column 'headers'", "array<struct<key: string, value: binary>>")
    inner = headers.flatten()
    if inner.null_count or inner.field("key").null_count:
        raise ValueError("A header has no key: each element of column 'headers' needs one (its value may be null).")
    return headers


def _milliseconds(rows: pa.RecordBatch) -> pa.Array:
    column = _column(rows, "timestamp")
    now = int(time.time() * 1000)
    if column is None or column.null_count == len(column):
        return pa.repeat(pa.scalar(now, pa.int64()), rows.num_rows)
    import pyarrow.compute as pc  # a slow import, which readers do not need

    if pa.types.is_timestamp(column.type):
        # Floored, not truncated, so that times before 1970 do not become later.
        column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz))
    elif not pa.types.is_integer(column.type):
        raise ValueError(f"Column 'timestamp' is {column.type}; it must be a timestamp, or integer milliseconds.")
    milliseconds = pc.fill_null(column.cast(pa.int64()), now)
    bounds = pc.min_max(milliseconds).as_py()
    if not -_MAX_MILLISECONDS <= bounds["min"] <= bounds["max"] <= _MAX_MILLISECONDS:
        raise ValueError(f"A timestamp is out of range: {bounds['min']} to {bounds['max']} milliseconds since 1970.")
    return milliseconds


def _cast(column: pa.Array, wanted: pa.DataType, what: str, allowed: str) -> pa.Array:
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise ValueError(f"{what[0].upper()}{what[1:]} is {column.type}; it must be {allowed}.") from None


def partition_by_key(keys: pa.Array, count: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """The partition of each key, as Java's producer chooses it (murmur2); -1 for a null key."""
    if count < 1:
        raise ValueError(f"A topic has at least one partition, not {count}.")
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    found: np.ndarray[Any, np.dtype[np.int32]] = implementation.partition_by_key(keys, count)
    return found
