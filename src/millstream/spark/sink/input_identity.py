"""How the input of a micro-batch is identified: by the offsets in Spark's checkpoint, or by a digest of the rows.

Spark writes `offsets/<batch>` before it runs a batch, and repeats the batch with these offsets. Only offsets of our own
source identify records by themselves (with topic ids). Offsets of other sources, such as a directory of files, are
numbers in logs inside the checkpoint: after a restore the same number may mean other files. Then rows are digested.

The digest does not depend on the order of rows or on their distribution over tasks: each row is hashed, and the hashes
are added. It is vectorised: bytes and text by the compiled murmur2 of the partitioner, numbers by numpy. It detects
other rows, but is no protection against rows that are constructed to have the same digest.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.columnar import partition_by_key
from millstream.spark.errors import CheckpointError, SinkError
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.source.offsets import NOTE, StreamOffset

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6A09E667F3BCC908)
_MOST = 0x7FFFFFFF
_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True, slots=True)
class RowDigest:
    """Digest of rows. The digests of parts add up to the digest of the whole."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: "RowDigest") -> "RowDigest":
        return RowDigest(self.rows + other.rows, (self.total + other.total) & 0xFFFFFFFFFFFFFFFF)


def digest_of(batch: pa.RecordBatch) -> RowDigest:
    if not batch.num_rows:
        return RowDigest()
    return RowDigest(batch.num_rows, int(_mixed(_combined(batch.columns, batch.num_rows)).sum(dtype=np.uint64)))


class DigestingRows:
    """Yields rows unchanged and computes their digest."""

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
    """One hash per value; null has a hash too."""
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL)
    found = _mixed(_plain(array))
    if array.null_count:
        found = np.where(array.is_valid().to_numpy(zero_copy_only=False), found, _NULL)
    return found


def _plain(array: pa.Array) -> Hashes:
    """Hashes of the values that are not null; the others are overwritten."""
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
        # Types that Spark does not send today: by their text, which is slow.
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
    """By the values, and by their positions if the order counts (not in a map)."""
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


_VERSION = "v1"
_NO_DATA_YET = "-"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True, slots=True)
class CheckpointOffsets:
    """A local checkpoint whose newest batch reads only from our source."""

    root: str
    query: str

    @classmethod
    def find(cls, location: str | None) -> "CheckpointOffsets | None":
        """None if the checkpoint is not on a local disk, or has other sources."""
        if not location or (root := _local(location)) is None:
            return None
        try:
            query = str(json.loads((root / "metadata").read_text())["id"])
            newest = max(int(each.name) for each in (root / "offsets").iterdir() if each.name.isdigit())
            return cls(str(root), query) if _batch(root, newest) is not None else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def input_of(self, batch: int) -> BatchInput:
        root = Path(self.root)
        try:
            found = _batch(root, batch)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"the offsets of batch {batch} in {root} cannot be read: {error}; start the query again"
            ) from error
        if found is None:
            raise SinkError(f"the sources of batch {batch} in {root} changed during the batch; start the query again")
        begin, end = found
        ranges: dict[str, Any] = {"begin": begin.sources, "end": end.sources}
        if (root / "state").exists():
            # The output of a query with state depends on the batch time and the watermark too.
            ranges["time"] = [end.metadata.get(name) for name in ("batchTimestampMs", "batchWatermarkMs")]
        return BatchInput.of_offsets(ranges, _ends(end.sources))


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """Where a checkpoint on a local disk ends."""

    batch: int
    is_committed: bool
    ends: tuple[str, ...]
    """The end of each source, in the format of `startingOffsets`; empty if it is not known."""
    has_state: bool


def end_of_checkpoint(root: Path) -> CheckpointEnd | None:
    """None if no batch was begun. Raises OSError or ValueError if the files cannot be read."""
    try:
        newest = max((int(each.name) for each in (root / "offsets").iterdir() if each.name.isdigit()), default=-1)
    except FileNotFoundError:
        return None
    if newest < 0:
        return None
    entry = _entry(root, newest)
    ends = () if entry is None else tuple(_ends(entry.sources))
    return CheckpointEnd(newest, (root / "commits" / str(newest)).exists(), ends, (root / "state").exists())


def input_of_rows(digests: Sequence[RowDigest | None]) -> BatchInput:
    """The input by the rows of all tasks, if offsets do not identify it."""
    total = RowDigest()
    for each in digests:
        if each is None:
            raise SinkError("the checkpoint was readable before the batch and is not now; start the query again")
        total += each
    return BatchInput.of_rows(total.rows, total.total)


@dataclass(frozen=True, slots=True)
class _Entry:
    metadata: dict[str, Any]
    sources: list[dict[str, Any] | None]


def _batch(root: Path, number: int) -> tuple[_Entry, _Entry] | None:
    """Begin and end of a batch; None if a source is not ours."""
    end = _entry(root, number)
    begin = _entry(root, number - 1) if number else _Entry({}, [])
    return None if begin is None or end is None else (begin, end)


def _entry(root: Path, batch: int) -> _Entry | None:
    """One file of the offset log; None if a source is not ours."""
    version, metadata, *sources = (root / "offsets" / str(batch)).read_text().split("\n")
    if version != _VERSION:
        return None
    parsed = [None if each == _NO_DATA_YET else json.loads(each) for each in sources]
    known = [each for each in parsed if each is not None]
    if not known or not all(isinstance(each, dict) and NOTE in each for each in known):
        return None
    return _Entry(json.loads(metadata), parsed)


def _ends(sources: list[dict[str, Any] | None]) -> list[str]:
    """In the format of `startingOffsets`; empty while a source reads from a table."""
    found = []
    for each in sources:
        try:
            offset = StreamOffset.from_json(each or {})
        except CheckpointError:
            return []
        if each is None or (offset.history is not None and not offset.history.is_done):
            return []
        positions = {topic: value for topic, value in each.items() if topic != NOTE}
        found.append(json.dumps(positions, separators=(",", ":")))
    return found


def _local(location: str) -> Path | None:
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(location) else Path(location)
