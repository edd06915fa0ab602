"""Single records: builds a batch from records, and decodes a batch into records.

The codec of v2 batches in plain Python, for code that works on each record: the metadata log, the cleaner, tools and
tests. The hot path does not use it. Invalid bytes raise KafkaError, and decompression has a limit.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    has_valid_checksum,
    is_plausible,
    read_header,
    seal,
)
from millstream.formats.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    DecompressionFailedError,
    compress,
    decompress,
)
from millstream.formats.records.varint import (
    MAX_LONG_BYTES,
    MalformedRecordError,
    append_varint,
    read_varint,
    varint_size,
)

Header = tuple[str, bytes | None]

NO_OFFSET = -1
_NULL_LENGTH = 0x01
"""-1 as a zig-zag varint."""
_NO_ATTRIBUTES_SAME_TIME = b"\x00\x00"


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp: int = NO_TIMESTAMP
    """Milliseconds since 1970."""
    offset: int = NO_OFFSET
    """The offset in its log. When a batch is built, -1 means: the next offset."""


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
) -> bytearray:
    """A batch with its CRC, writable so that a log can set its offset. `records` must not be empty."""
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp
    max_timestamp = max(record.timestamp for record in records) if log_append_time is None else log_append_time
    body = bytearray()
    offset_delta = -1
    for record in records:
        offset_delta = offset_delta + 1 if record.offset == NO_OFFSET else record.offset - base_offset
        _append_record(body, record, offset_delta, record.timestamp - base_timestamp)
    attributes = int(codec)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_BIT
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    content = compress(codec, bytes(body), level)
    size = HEADER_SIZE + len(content)
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch, 0, base_offset, size - LOG_OVERHEAD, leader_epoch, MAGIC_V2, 0, attributes, offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    batch += content
    seal(batch, 0, size)
    return batch


def build_key_value_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    timestamp: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> bytearray:
    """As `build_batch`, for records without headers that have one timestamp, and in one pass: coordinators write such
    batches all the time."""
    assert records, "a batch has at least one record"
    batch = bytearray(HEADER_SIZE)
    delta = 0
    for key, value in records:
        key_length, value_length = len(key), 0 if value is None else len(value)
        # Attributes, timestamp delta and the number of headers are a zero byte each.
        size = 3 + varint_size(delta) + varint_size(key_length) + key_length
        size += 1 if value is None else varint_size(value_length) + value_length
        append_varint(batch, size)
        batch += _NO_ATTRIBUTES_SAME_TIME
        append_varint(batch, delta)
        append_varint(batch, key_length)
        batch += key
        if value is None:
            batch.append(_NULL_LENGTH)
        else:
            append_varint(batch, value_length)
            batch += value
        batch.append(0)
        delta += 1
    size = len(batch)
    HEADER.pack_into(
        batch, 0, 0, size - LOG_OVERHEAD, -1, MAGIC_V2, 0, TRANSACTIONAL_BIT if transactional else 0, delta - 1,
        timestamp, timestamp, producer_id, producer_epoch, NO_SEQUENCE, delta,
    )  # fmt: skip
    seal(batch, 0, size)
    return batch


def read_batches(data: Bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Each batch of `data` with its records. An incomplete batch at the end is left out, as in a fetch response."""
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = read_header(data, position)
        if not is_plausible(header):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"No record batch begins at byte {position}.")
        if header.size > end - position:
            return
        if not has_valid_checksum(data, position, header):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The batch at offset {header.base_offset} has a wrong CRC.")
        yield header, list(iterate_records(header, memoryview(data)[position : position + header.size], limit))
        position += header.size


def iterate_records(header: BatchHeader, batch: Bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """The records of one batch, which begins with its header. The caller checks the CRC.

    INVALID_RECORD if the records do not match the header, CORRUPT_MESSAGE if they cannot be decompressed.
    """
    try:
        codec = Codec(header.codec)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"There is no compression codec {header.codec}."
        ) from None
    try:
        data = decompress(codec, memoryview(batch)[HEADER_SIZE : header.size], limit)
    except DecompressionFailedError as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"The batch at offset {header.base_offset} cannot be decompressed: {error}."
        ) from None
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _read_record(data, position, header)
            yield record
        if position != len(data):
            raise MalformedRecordError(f"{len(data) - position} bytes are left over after the last record")
    except MalformedRecordError as error:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"The batch at offset {header.base_offset} has a malformed record: {error}."
        ) from None


def read_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    """The record at `position` of an opened batch, and where the next one begins.

    MalformedRecordError if there is none.
    """
    return _read_record(data, position, header)


def _append_record(body: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    out = bytearray(1)  # the record's attributes: none are defined
    append_varint(out, timestamp_delta)
    append_varint(out, offset_delta)
    _append_nullable(out, record.key)
    _append_nullable(out, record.value)
    append_varint(out, len(record.headers))
    for name, value in record.headers:
        encoded = name.encode("utf-8", "surrogateescape")
        append_varint(out, len(encoded))
        out += encoded
        _append_nullable(out, value)
    append_varint(body, len(out))
    body += out


def _append_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(_NULL_LENGTH)
    else:
        append_varint(out, len(value))
        out += value


def _read_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    size, position = read_varint(data, position)
    end = position + size
    if size < 1 or end > len(data):
        raise MalformedRecordError(f"a record of {size} bytes does not fit into its batch")
    timestamp_delta, position = read_varint(data, position + 1, MAX_LONG_BYTES)
    offset_delta, position = read_varint(data, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise MalformedRecordError(f"offset delta {offset_delta} is outside of its batch")
    key, position = _read_nullable(data, position, end)
    value, position = _read_nullable(data, position, end)
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:  # a header has at least two bytes, so the count is bounded
        raise MalformedRecordError(f"{count} headers do not fit into their record")
    headers = []
    for _ in range(count):
        name, position = _read_nullable(data, position, end)
        if name is None:
            raise MalformedRecordError("a header has no name")
        header_value, position = _read_nullable(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), header_value))
    if position != end:
        raise MalformedRecordError(f"a record of {size} bytes holds {size - (end - position)}")
    timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + timestamp_delta
    return Record(key, value, tuple(headers), timestamp, header.base_offset + offset_delta), end


def _read_nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:  # as Kafka's clients do: any negative length is null
        return None, position
    if length > end - position:
        raise MalformedRecordError(f"{length} bytes do not fit into their record")
    return data[position : position + length], position + length
