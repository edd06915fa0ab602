"""The records inside a batch, for people who look: O(records), and far from the broker's hot path."""

import base64
from collections.abc import Iterator
from typing import Any

from millstream.records.batch import HEADER_SIZE, BatchHeader
from millstream.records.compression import Codec, decompress


class UnreadableRecordsError(ValueError):
    """The records section does not hold what the header promises."""


def records_of(header: BatchHeader, batch: memoryview) -> Iterator[dict[str, Any]]:
    """Offset, timestamp, key, value and headers of each record; bytes that are not UTF-8 are shown as base64."""
    try:
        data = decompress(Codec(header.codec), batch[HEADER_SIZE : header.size])
        position = 0
        for _ in range(header.count):
            size, position = _varint(data, position)
            end = position + size
            if size < 0 or end > len(data):
                raise UnreadableRecordsError("a record reaches past the end of its batch")
            yield _record(header, data, position)
            position = end
        if position != len(data):
            raise UnreadableRecordsError(f"{len(data) - position} bytes follow the last record")
    except (IndexError, ValueError) as error:
        if isinstance(error, UnreadableRecordsError):
            raise
        raise UnreadableRecordsError(str(error) or type(error).__name__) from error


def _record(header: BatchHeader, data: bytes, position: int) -> dict[str, Any]:
    timestamp_delta, position = _varint(data, position + 1)  # the first byte is the attributes, of which none are used
    offset_delta, position = _varint(data, position)
    key, position = _field(data, position)
    value, position = _field(data, position)
    count, position = _varint(data, position)
    headers = []
    for _ in range(count):
        name, position = _field(data, position)
        content, position = _field(data, position)
        headers.append([_text(name), _text(content)])
    return {
        "kind": "record",
        "offset": header.base_offset + offset_delta,
        "timestamp": header.max_timestamp if header.has_log_append_time else header.base_timestamp + timestamp_delta,
        "key": _text(key),
        "value": _text(value),
        "headers": headers,
    }


def _field(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise UnreadableRecordsError("a field reaches past the end of its batch")
    return data[position : position + size], position + size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise UnreadableRecordsError("a number has more than ten bytes")


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(content or b'').decode()}"
