"""A digest of rows that is the same in whatever order they come, and however they are spread over tasks.

Each row is hashed, and the hashes are added. All of it is vectorised: bytes and text by the compiled murmur2 that
chooses partitions too, numbers by numpy. It finds other rows; it is no protection against rows that were made to fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnar import partition_by_key

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6A09E667F3BCC908)
_MOST = 0x7FFFFFFF
_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True, slots=True)
class RowDigest:
    """Of some rows; digests of parts are added up to that of the whole."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: "RowDigest") -> "RowDigest":
        return RowDigest(self.rows + other.rows, (self.total + other.total) & 0xFFFFFFFFFFFFFFFF)


def digest_of(batch: pa.RecordBatch) -> RowDigest:
    if not batch.num_rows:
        return RowDigest()
    return RowDigest(batch.num_rows, int(_mixed(_combined(batch.columns, batch.num_rows)).sum(dtype=np.uint64)))


class Digesting:
    """Passes rows through, and has their digest when all have passed."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.digest = RowDigest()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.digest += digest_of(batch)
            yield batch


def _mixed(values: Hashes) -> Hashes:
    """Each bit of the input changes about half of the output's (the finalizer of splitmix64)."""
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def _combined(columns: list[pa.Array], rows: int) -> Hashes:
    found = np.zeros(rows, np.uint64)
    for column in columns:
        found = _mixed(found + _hashes(column))
    return found


def _hashes(array: pa.Array) -> Hashes:
    """One per value; null has its own."""
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL)
    found = _mixed(_plain(array))
    if array.null_count:
        found = np.where(array.is_valid().to_numpy(zero_copy_only=False), found, _NULL)
    return found


def _plain(array: pa.Array) -> Hashes:
    """Of values that are not null; what the others get does not matter."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _combined(array.flatten(), len(array))
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return _of_lists(array.cast(pa.list_(entries)), ordered=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(array, ordered=True)
    if pa.types.is_dictionary(kind):
        return _hashes(array.dictionary_decode())
    if pa.types.is_boolean(kind):
        return _plain(array.cast(pa.uint8()))
    if pa.types.is_primitive(kind) and kind.bit_width in _WORDS:
        return _words(array, _WORDS[kind.bit_width], 1)
    if pa.types.is_decimal128(kind):
        words = _words(array, np.uint64, 2)
        return _mixed(words[0::2]) + words[1::2]
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        # Types that Spark does not send today: by their text, which is slower.
        array = pa.array([None if value is None else repr(value) for value in array.to_pylist()], pa.string())
    lengths: Hashes = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    found: Hashes = partition_by_key(array, _MOST).astype(np.uint32).astype(np.uint64)
    return (lengths << np.uint64(32)) | found


def _words(array: pa.Array, kind: Any, per_value: int) -> Hashes:
    values = array.buffers()[1]
    if values is None or not len(array):
        return np.zeros(len(array) * per_value, np.uint64)
    width = np.dtype(kind).itemsize * per_value
    found: Hashes = np.frombuffer(values, kind, len(array) * per_value, array.offset * width).astype(np.uint64)
    return found


def _of_lists(array: pa.Array, *, ordered: bool) -> Hashes:
    """By the values, and their positions if the order counts (the entries of a map have none)."""
    lengths: np.ndarray[Any, np.dtype[np.int64]]
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = lengths.cumsum()
    values = _hashes(array.flatten())
    if ordered:
        positions = np.arange(len(values), dtype=np.int64) - np.repeat(ends - lengths, lengths)
        values = _mixed(values + positions.astype(np.uint64))
    sums: Hashes = np.concatenate([np.zeros(1, np.uint64), values.cumsum(dtype=np.uint64)])
    found: Hashes = sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)
    return found
