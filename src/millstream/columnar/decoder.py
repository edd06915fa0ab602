"""Fetched bytes as Arrow record batches: headers, checksums, aborted transactions and codecs; `compiled` reads
records."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import cramjam
import pyarrow as pa

from millstream.columnar.compiled import implementation
from millstream.columnar.schema import record_schema
from millstream.formats.records.aborted import AbortedTransactions
from millstream.formats.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    BatchHeader,
    Bytes,
    checksum,
    is_plausible,
    read_header,
)
from millstream.formats.records.compression import Codec, DecompressionFailedError, decompress
from millstream.formats.records.varint import MalformedRecordError

MAX_ROWS = 16_384
MAX_BYTES = 8 << 20
_MOST_BYTES = 1 << 30
"""Arrow's offsets have 32 bits; one record of the largest batch must still fit on top of this."""
_MOST_HELD = 2 << 20
"""Decompressed bytes after which rows are yielded, so that the caller works while more are decoded."""
MOST_RECORDS = 4_000_000
"""Most records of one batch: its rows are made at once, and take several times the memory of small records."""
_MOST_ROOM = 16 << 20
"""Largest buffer that is kept for decompression; larger batches are rare."""
_FRAMED = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}
_MAX_OFFSET = (1 << 63) - 1


class CorruptBatchError(Exception):
    """The bytes at an offset are not a record batch, or its records cannot be read; the text says where and why.

    `last_offset`: the last offset of the batch, if its header can be trusted (the checksum is right).
    """

    def __init__(self, topic: str, partition: int, offset: int, reason: str, last_offset: int | None = None) -> None:
        what = f"{topic}-{partition}@{offset}: {reason}."
        if last_offset is None:
            next_step = "Start at a later offset, or restore the partition from another replica."
        else:
            next_step = f"The offsets {offset} to {last_offset} cannot be read. Continue at offset {last_offset + 1}."
        super().__init__(f"{what} {next_step}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
        self.last_offset = last_offset

    def __reduce__(self) -> tuple[type["CorruptBatchError"], tuple[str, int, int, str, int | None]]:
        return type(self), (self.topic, self.partition, self.offset, self.reason, self.last_offset)


class ArrowDecoder:
    """Decodes bytes of a log to record batches with the wanted columns. Not thread safe."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        implementation: ModuleType = implementation,
    ) -> None:
        if max_rows < 1 or max_bytes < 1:
            raise ValueError(f"max_rows={max_rows} and max_bytes={max_bytes} must be at least 1.")
        self.schema: pa.Schema = record_schema(columns)
        self._implementation = implementation
        self._decompressor = _Decompressor()
        self._topics = _Constant(pa.string())
        self._partitions = _Constant(pa.int32())
        self._collected = frozenset(columns) - {"topic", "partition"}
        self._max_rows = max_rows
        self._max_bytes = min(max_bytes, _MOST_BYTES)

    def decode(
        self,
        data: Bytes,
        *,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        aborted: Iterable[tuple[int, int]] = (),
    ) -> tuple[list[pa.RecordBatch], int]:
        """Rows with start <= offset < stop, and the offset of the next fetch.

        Control batches and the records of aborted transactions are left out. A batch that is cut off at the end is left
        for the next fetch; if no batch is before it, the offset is `start` again.
        """
        pieces = self.pieces(data, topic=topic, partition=partition, start=start, stop=stop, aborted=aborted)
        batches: list[pa.RecordBatch] = []
        while True:
            try:
                batches.append(next(pieces))
            except StopIteration as end:
                return batches, end.value

    def pieces(
        self,
        data: Bytes,
        *,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        aborted: Iterable[tuple[int, int]] = (),
    ) -> Generator[pa.RecordBatch, None, int]:
        """The same as a generator: decompressed, a fetch may be a hundred times as large."""
        collector = self._implementation.RowCollector(self._collected, self._max_rows, self._max_bytes)
        transactions = AbortedTransactions(aborted)
        view = memoryview(data)
        position, end, following, held = 0, len(view), start, 0
        while end - position >= HEADER_SIZE and following < stop:
            header = read_header(view, position)
            # Each field is read once: with small batches this loop costs more than the records.
            base_offset, size = header.base_offset, header.length + LOG_OVERHEAD
            last_offset = base_offset + header.last_offset_delta
            if not is_plausible(header) or last_offset > _MAX_OFFSET:
                raise CorruptBatchError(topic, partition, following, _implausible(header, position))
            if size > end - position:
                break
            if base_offset >= stop:
                following = stop
                break
            hidden = transactions.hide(header)
            if last_offset >= start:
                if checksum(view, position, size) != header.crc:
                    raise CorruptBatchError(topic, partition, base_offset, "the checksum (CRC32C) is wrong")
                if not hidden and header.record_count:
                    _check_count(header, topic, partition)
                    try:
                        content = view[position + HEADER_SIZE : position + size]
                        records = self._decompressor.records(header.codec, content)
                        collector.add(
                            records,
                            count=header.record_count,
                            base_offset=base_offset,
                            last_offset_delta=header.last_offset_delta,
                            base_timestamp=header.base_timestamp,
                            append_time=header.max_timestamp if header.has_log_append_time else None,
                            start=start,
                            stop=stop,
                        )
                    except (MalformedRecordError, DecompressionFailedError) as error:
                        raise CorruptBatchError(topic, partition, base_offset, str(error), last_offset) from None
                    held += len(records)
                    if held > _MOST_HELD:
                        yield from self._assembled(collector, topic, partition)
                        held = 0
                following = stop if last_offset >= stop else max(following, last_offset + 1)
            position += size
        yield from self._assembled(collector, topic, partition)
        return following

    def _assembled(self, collector: Any, topic: str, partition: int) -> Iterator[pa.RecordBatch]:
        for count, columns in collector.take():
            yield self._assemble(count, columns, topic, partition)

    def _assemble(self, count: int, columns: dict[str, pa.Array], topic: str, partition: int) -> pa.RecordBatch:
        for name in self.schema.names:
            if name == "topic":
                columns[name] = self._topics.of(topic, count)
            elif name == "partition":
                columns[name] = self._partitions.of(partition, count)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


class _Constant:
    """A column of one value, cached and sliced while the value stays the same."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._value: object = None
        self._kept: pa.Array | None = None

    def of(self, value: object, count: int) -> pa.Array:
        if self._kept is None or self._value != value or len(self._kept) < count:
            self._value = value
            self._kept = pa.repeat(pa.scalar(value, self._kind), count)
        return self._kept if len(self._kept) == count else self._kept.slice(0, count)


class _Decompressor:
    """Decompresses records into one buffer that is reused: they are copied to columns anyway."""

    def __init__(self) -> None:
        self._room = bytearray()

    def records(self, number: int, content: memoryview) -> Bytes:
        if not number:
            return content
        try:
            codec = Codec(number)
        except ValueError:
            raise MalformedRecordError(f"there is no compression codec {number}") from None
        framed = _FRAMED.get(codec)
        if framed is not None:
            try:
                size = framed.decompress_into(content, self._room)
                return memoryview(self._room)[:size]
            except cramjam.DecompressionError:
                pass  # the buffer is too small, or the data is damaged: `decompress` below finds out
        records = decompress(codec, content)
        if framed is not None and len(self._room) < len(records) <= _MOST_ROOM:
            self._room = bytearray(min(_MOST_ROOM, 2 * len(records)))
        return records


def _check_count(header: BatchHeader, topic: str, partition: int) -> None:
    """Checks the number of records before memory is allocated for them."""
    if header.record_count > MOST_RECORDS:
        reason = f"it has {header.record_count} records, and at most {MOST_RECORDS} can be read"
        raise CorruptBatchError(topic, partition, header.base_offset, reason, header.last_offset)


def _implausible(header: BatchHeader, position: int) -> str:
    if header.magic in (0, 1):
        return (
            f"the messages have the old format v{header.magic}, which Kafka 4 has dropped; only record batches (v2) "
            "can be read"
        )
    wrong = f"magic {header.magic}" if header.magic != MAGIC_V2 else "impossible fields"
    return f"no record batch begins at byte {position} of the fetched data: {wrong}"
