"""Opens batches within limits, and reads their records: by offset, by timestamp, keys and values.

All code of the broker that reads inside a batch uses this module. The record count is checked against the bytes and the
limits first, decompression stops at its limit, and the walk over the records is compiled if that was built. Small
batches may be opened on the event loop; others in a thread.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, Bytes
from millstream.formats.records.compiled import IS_COMPILED, check_records, find_time, latest_time, seek_offset
from millstream.formats.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    MOST_GROWTH,
    Codec,
    DecompressionFailedError,
    TooLargeError,
    decompressed,
)
from millstream.formats.records.record import Record, read_record
from millstream.formats.records.varint import MalformedRecordError, read_varint
from millstream.formats.records.walking import read_deltas, record_bounds

MINIMUM_RECORD_BYTES = 7
"""Length, attributes and deltas of one byte each; no key, no value, no headers."""
SMALL_BYTES = 64 << 10
"""Decompressed: up to here a batch may be opened on the event loop."""
SMALL_RECORDS = 10_000 if IS_COMPILED else 500
_STEP = 255


class OpeningLimits(NamedTuple):
    max_bytes: int = MAX_DECOMPRESSED_BYTES
    """Of the records, decompressed."""
    max_records: int = MAX_DECOMPRESSED_BYTES // MINIMUM_RECORD_BYTES


WIDEST = OpeningLimits()


class BeyondLimitsError(KafkaError):
    """The batch is more than the limits allow."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


def is_possible_count(header: BatchHeader) -> bool:
    """Whether the batch can have as many records as its header says."""
    most = min((header.size - HEADER_SIZE) * MOST_GROWTH[header.codec], MAX_DECOMPRESSED_BYTES)
    return 0 <= header.record_count * MINIMUM_RECORD_BYTES <= most


@contextmanager
def opened(header: BatchHeader, batch: Bytes, limits: OpeningLimits) -> Iterator[memoryview]:
    """The records of a batch as bytes, decompressed, while the context lasts; `batch` begins with the header.

    BeyondLimitsError above the limits, KafkaError for an invalid batch. Lengths in the records are not checked: `check`
    does that.
    """
    if not is_possible_count(header):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records cannot be in {header.size - HEADER_SIZE} bytes",
        )
    if header.record_count > limits.max_records:
        raise BeyondLimitsError(
            f"the batch has {header.record_count} records; {limits.max_records} are allowed where the broker opens"
            " batches (millstream.batch.max.records): send smaller batches"
        )
    try:
        codec = Codec(header.codec)
    except ValueError:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {header.codec}") from None
    content = memoryview(batch)[HEADER_SIZE : header.size]
    if codec is Codec.NONE:
        yield content  # no copy
        return
    try:
        with decompressed(codec, content, limits.max_bytes) as records:
            yield records
    except TooLargeError:
        raise BeyondLimitsError(
            f"the batch has more than {limits.max_bytes} bytes when it is decompressed, which is the most where the"
            " broker opens batches (millstream.batch.max.decompressed.bytes): send smaller batches"
        ) from None
    except DecompressionFailedError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the records cannot be decompressed: {error}") from None


def records_between(header: BatchHeader, batch: Bytes, first: int, last: int, limits: OpeningLimits) -> list[Record]:
    """The records of a batch with offsets from `first` to `last`, at most one for each offset. Earlier records are
    skipped, later ones not read. Raises as `opened` does, and INVALID_RECORD."""
    found: list[Record] = []
    most = last - first + 1
    try:
        with opened(header, batch, limits) as content:
            count = header.record_count
            position, number = seek_offset(content, 0, len(content), count, first - header.base_offset)
            while number < count and len(found) < most:
                if len(found) & _STEP == _STEP:
                    time.sleep(0)  # lets other threads run
                _, stop = record_bounds(content, position, len(content), number)
                record, _ = read_record(bytes(content[position:stop]), 0, header)
                if record.offset > last:
                    break
                if record.offset >= first:
                    found.append(record)
                position = stop
                number += 1
    except MalformedRecordError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the records are not what their batch says: {error}") from None
    return found


def check(header: BatchHeader, records: memoryview, *, needs_keys: bool = False, most: int = 1) -> list[int]:
    """Checks the records against their header; INVALID_RECORD if they are malformed.

    With `needs_keys`, returns the numbers of the first `most` records without a key.
    """
    try:
        return check_records(records, 0, len(records), header.record_count, header.last_offset_delta, needs_keys, most)
    except MalformedRecordError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the records are not what their batch says: {error}") from None


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def first_record_at(
    header: BatchHeader, batch: Bytes, timestamp: int, least_offset: int, limits: OpeningLimits
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record that is neither before `timestamp` nor below `least_offset`.

    `batch` begins with the header. Raises as `opened` does, and INVALID_RECORD.
    """
    if header.has_log_append_time:
        if header.max_timestamp < timestamp:
            return None
        least_time = _LEAST
    else:
        least_time = max(_LEAST, min(_MOST, timestamp - header.base_timestamp))
    least_delta = max(_LEAST, least_offset - header.base_offset)
    try:
        with opened(header, batch, limits) as content:
            found = find_time(content, 0, len(content), header.record_count, least_time, least_delta)
    except MalformedRecordError as error:
        raise _malformed(error) from None
    return None if found is None else _absolute(header, *found)


def latest_record(header: BatchHeader, batch: Bytes, limits: OpeningLimits) -> tuple[int, int] | None:
    """Offset and timestamp of the first record that has the greatest timestamp; None if there is no record."""
    if header.has_log_append_time:
        return first_record_at(header, batch, header.max_timestamp, header.base_offset, limits)
    try:
        with opened(header, batch, limits) as content:
            found = latest_time(content, 0, len(content), header.record_count)
    except MalformedRecordError as error:
        raise _malformed(error) from None
    return None if found is None else _absolute(header, *found)


def records_outside(
    header: BatchHeader, batch: Bytes, earliest: int, latest: int, limits: OpeningLimits
) -> list[tuple[int, int]]:
    """Number and timestamp of each record outside of the range; -1 means no timestamp, and is valid.

    In plain Python, for batches that are refused: give it small limits. Raises as `opened` does, and INVALID_RECORD.
    """
    found = []
    position = 0
    try:
        with opened(header, batch, limits) as content:
            for number in range(header.record_count):
                delta, _, position = read_deltas(content, position, len(content), number)
                timestamp = header.base_timestamp + delta
                if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                    found.append((number, timestamp))
    except MalformedRecordError as error:
        raise _malformed(error) from None
    return found


def _absolute(header: BatchHeader, offset_delta: int, time_delta: int) -> tuple[int, int]:
    timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + time_delta
    return header.base_offset + offset_delta, timestamp


def _malformed(error: MalformedRecordError) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"the records are not what their batch says: {error}")


KeyValue = tuple[bytes | None, bytes | None]
_MOST_COPIED = 1 << 20
"""Bytes are read faster than a memoryview, but a large copy holds the interpreter's lock for long."""


def iterate_key_values(header: BatchHeader, batch: Bytes, limits: OpeningLimits) -> Iterator[KeyValue]:
    """Key and value of each record, in order; `batch` begins with the header. Raises as `opened` does.

    To rebuild a coordinator from its log, whose CRCs were checked. Records that overlap, or do not fit into the batch,
    are an IndexError: else a few bytes could say that each of a million records has the key of the whole batch.
    """
    with opened(header, batch, limits) as content:
        yield from _key_values(bytes(content) if len(content) <= _MOST_COPIED else content, header.record_count)


def _key_values(data: Bytes, count: int) -> Iterator[KeyValue]:
    position = 0
    length = len(data)
    for _ in range(count):
        # Most lengths have one byte. They are decoded inline: calls would cost more than the rest.
        byte = data[position]
        if byte < 0x80:
            end = position + 1 + (byte >> 1)
            position += 2
        else:
            size, position = read_varint(data, position)
            end = position + size
            position += 1
        if not position <= end <= length:
            raise IndexError(f"a record ends at {end} of {length} bytes and goes on at {position}")
        while data[position] >= 0x80:  # the time
            position += 1
        position += 1
        while data[position] >= 0x80:  # the offset
            position += 1
        position += 1
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1
            size = byte >> 1
        else:
            size, position = read_varint(data, position)
        key: bytes | None = None
        if size >= 0:
            if position + size > end:
                raise IndexError("a key goes beyond its record")
            key = bytes(data[position : position + size])
            position += size
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1
            size = byte >> 1
        else:
            size, position = read_varint(data, position)
        if position + size > end:
            raise IndexError("a value goes beyond its record")
        yield key, (bytes(data[position : position + size]) if size >= 0 else None)
        position = end
