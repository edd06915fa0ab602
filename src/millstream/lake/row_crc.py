"""Checksums of rows: the same for the same values, in any order of rows, files and columns.

Each value has a checksum: bytes and text their CRC-32, numbers themselves. Those of a row are mixed with the names of
the columns and added; so are those of rows. A null or an empty list adds nothing. So the checksum does not change when
a column is added, when a number becomes wider, or when files are rewritten; and the checksums of parts add up to that
of the whole. It finds rows that are missing, doubled or changed by a fault, and is no protection against a person who
looks for rows with the same checksum.
"""

import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Sums = np.ndarray[Any, np.dtype[np.uint64]]
MASK: Final = (1 << 63) - 1
"""Checksums have 63 bits: Delta keeps them as signed numbers of 64."""
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class RowCrc:
    """The number and the checksum of rows."""

    rows: int = 0
    crc: int = 0

    def __add__(self, other: "RowCrc") -> "RowCrc":
        return RowCrc(self.rows + other.rows, (self.crc + other.crc) & MASK)

    def __sub__(self, other: "RowCrc") -> "RowCrc":
        return RowCrc(self.rows - other.rows, (self.crc - other.crc) & MASK)


def row_crc(batch: pa.RecordBatch) -> RowCrc:
    return RowCrc(batch.num_rows, total_of(row_sums(batch)))


def total_of(sums: Sums) -> int:
    return int(sums.sum(dtype=np.uint64)) & MASK


def row_sums(batch: pa.RecordBatch) -> Sums:
    """The checksum of each row."""
    found = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        found += _named(name, column)
    return _mixed(found)


def _mixed(values: Sums) -> Sums:
    """Each bit of the input changes about half of the output's (the finalizer of splitmix64)."""
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def _named(name: str, column: pa.Array) -> Sums:
    """Zero for null."""
    values = _values(column)
    found = _mixed(values + np.uint64(zlib.crc32(name.encode()) << 32))
    if pa.types.is_nested(column.type):
        # pyiceberg reads null as an empty list, so these count as the same.
        found = np.where(values == 0, np.uint64(0), found)
    if column.null_count:
        found = np.where(column.is_valid().to_numpy(zero_copy_only=False), found, np.uint64(0))
    return found


def _values(array: pa.Array) -> Sums:
    """A number for each value; any for null."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        found = np.zeros(len(array), np.uint64)
        for field, child in zip(kind, array.flatten(), strict=True):
            found += _named(field.name, child)
        return found
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
        return _lists(array.cast(pa.list_(entries)), ordered=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array, ordered=True)
    if pa.types.is_floating(kind):
        return _numbers(array.cast(pa.float64()), np.float64).view(np.uint64)
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_integer(array.type) or pa.types.is_boolean(kind):
        return _numbers(array.cast(pa.int64()), np.int64).view(np.uint64)
    if not any(check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary)):
        texts = array if _is_text(kind) else array.cast(pa.string())
        array = texts.cast(pa.large_binary() if pa.types.is_large_string(texts.type) else pa.binary())
    crcs = [0 if value is None else zlib.crc32(value) for value in array.to_pylist()]
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    sums: Sums = np.asarray(crcs, np.uint64) + (lengths << np.uint64(32))
    return sums


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _numbers(array: pa.Array, kind: Any) -> np.ndarray[Any, Any]:
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0, array.type))
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False), kind)


def _lists(array: pa.Array, *, ordered: bool) -> Sums:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = lengths.cumsum()
    values = _named("", array.flatten())
    if ordered:
        places = np.arange(len(values), dtype=np.int64) - np.repeat(ends - lengths, lengths)
        values = _mixed(values + places.astype(np.uint64))
    sums: Sums = np.concatenate([np.zeros(1, np.uint64), values.cumsum(dtype=np.uint64)])
    found: Sums = sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)
    return found
