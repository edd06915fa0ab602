"""Records as Arrow columns and back in plain Python, used if the compiled module was not built.

The same functions with the same results as `_fast`. Every length is checked before it is used, because the bytes may be
wrong.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.columnar.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, append_varint, read_varint

_MAX_MILLISECONDS = ((1 << 63) - 1) // 1000
"""The largest that fits into Arrow's microseconds; a timestamp beyond becomes null."""
_MOST_NUMBERS = 8
"""A record has that many numbers of one byte at most between two checks against its end."""
_NULL_LENGTH = 0x01
_NO_HEADERS = 0x00


class RowCollector:
    """Takes the records of one log batch after another and cuts their rows into chunks of columns."""

    def __init__(self, columns: frozenset[str], max_rows: int, max_bytes: int) -> None:
        self._columns = columns
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._finished: list[tuple[int, dict[str, pa.Array]]] = []
        self._begin()

    def _begin(self) -> None:
        self._bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps: list[int | None] = []
        self._timestamp_types: list[int] = []
        self._headers: list[list[dict[str, Any]] | None] = []

    def add(
        self,
        records: bytes | bytearray | memoryview,
        *,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        start: int,
        stop: int,
    ) -> None:
        """Rows of all records with start <= offset < stop; MalformedRecordError if these are not `count` records."""
        length = len(records)
        data = bytes(records) + bytes(_MOST_NUMBERS)
        with_headers = "headers" in self._columns
        timestamp_type = 0 if append_time is None else 1
        append_us = None if append_time is None else _microseconds(append_time)
        with_key, with_value = "key" in self._columns, "value" in self._columns
        position = 0
        for _ in range(count):
            # Numbers of one byte are read in place: most are, and the calls would cost more than all the rest. Zeros
            # after the data are read by a record that is too long; its end is then wrong, which is checked.
            size = data[position] >> 1
            if data[position] & 0x81:
                size, position = read_varint(data, position)
            else:
                position += 1
            end = position + size
            if size < 1 or end > length:
                raise MalformedRecordError(f"a record of {size} bytes does not fit into its batch")
            position += 1  # the record's attributes: none are defined
            timestamp_delta = data[position] >> 1
            if data[position] & 0x81:
                timestamp_delta, position = read_varint(data, position, MAX_LONG_BYTES)
            else:
                position += 1
            offset_delta = data[position] >> 1
            if data[position] & 0x81:
                offset_delta, position = read_varint(data, position)
            else:
                position += 1
            if not 0 <= offset_delta <= last_offset_delta:
                raise MalformedRecordError(f"offset delta {offset_delta} is outside of its batch")
            size = data[position] >> 1
            if data[position] & 0x81:
                size, position = read_varint(data, position)
            else:
                position += 1
            if size > end - position:
                raise MalformedRecordError(f"{size} bytes do not fit into their record")
            key = value = None
            if size >= 0:  # Kafka's own clients take any negative length for null
                key = data[position : position + size]
                position += size
            size = data[position] >> 1
            if data[position] & 0x81:
                size, position = read_varint(data, position)
            else:
                position += 1
            if size > end - position:
                raise MalformedRecordError(f"{size} bytes do not fit into their record")
            if size >= 0:
                value = data[position : position + size]
                position += size
            header_count, headers_at = read_varint(data, position)
            position = headers_at
            headers: list[dict[str, Any]] | None = None
            if header_count:
                headers, position = _read_headers(data, position, end, header_count)
            if position != end:
                raise MalformedRecordError(
                    f"a record does not end where its length says: {end - position} bytes are left"
                )
            offset = base_offset + offset_delta
            if not start <= offset < stop:
                continue
            taken = 0
            if with_key and key:
                taken += len(key)
            if with_value and value:
                taken += len(value)
            if with_headers:
                taken += end - headers_at
            if self._offsets and (len(self._offsets) == self._max_rows or self._bytes + taken > self._max_bytes):
                self._finish()
            self._bytes += taken
            self._keys.append(key)
            self._values.append(value)
            self._offsets.append(offset)
            self._timestamps.append(append_us if timestamp_type else _microseconds(base_timestamp + timestamp_delta))
            self._timestamp_types.append(timestamp_type)
            self._headers.append(headers)
        if position != length:
            raise MalformedRecordError(f"{length - position} bytes are left over after the last record")

    def take(self) -> list[tuple[int, dict[str, pa.Array]]]:
        """All rows since the last call, in order: chunks of (row count, column by name)."""
        if self._offsets:
            self._finish()
        finished, self._finished = self._finished, []
        return finished

    def _finish(self) -> None:
        build = {
            "key": lambda: pa.array(self._keys, pa.binary()),
            "value": lambda: pa.array(self._values, pa.binary()),
            "offset": lambda: pa.array(self._offsets, pa.int64()),
            "timestamp": lambda: pa.array(self._timestamps, pa.int64()).cast(TIMESTAMP_TYPE),
            "timestampType": lambda: pa.array(self._timestamp_types, pa.int32()),
            "headers": lambda: pa.array(self._headers, HEADERS_TYPE),
        }
        self._finished.append((len(self._offsets), {name: build[name]() for name in self._columns}))
        self._begin()


def encode_records(
    keys: pa.Array, values: pa.Array, headers: pa.Array | None, timestamps: pa.Array, max_bytes: int
) -> Iterator[tuple[bytearray, int, int, int]]:
    """Records sections of at most `max_bytes` each (one record may be larger): (bytes, record count, base timestamp,
    max timestamp). All arrays have the same length; timestamps are milliseconds without nulls."""
    rows = zip(
        keys.to_pylist(),
        values.to_pylist(),
        [None] * len(keys) if headers is None else headers.to_pylist(),
        timestamps.to_pylist(),
        strict=True,
    )
    body = bytearray()
    count = base_timestamp = max_timestamp = 0
    for key, value, row_headers, timestamp in rows:
        tail = _record_tail(key, value, row_headers)
        if not count:
            base_timestamp = max_timestamp = timestamp
        record = _record(timestamp - base_timestamp, count, tail)
        if count and len(body) + len(record) > max_bytes:
            yield body, count, base_timestamp, max_timestamp
            body = bytearray()
            count = 0
            base_timestamp = max_timestamp = timestamp
            record = _record(0, 0, tail)
        body += record
        count += 1
        max_timestamp = max(max_timestamp, timestamp)
    if count:
        yield body, count, base_timestamp, max_timestamp


def partition_by_key(keys: pa.Array, count: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    # Imported here: the client needs confluent-kafka, which the rest of this package does not.
    from millstream.client.partitioners import java_partition

    return np.array([-1 if key is None else java_partition(key, count) for key in keys.to_pylist()], np.int32)


def _microseconds(milliseconds: int) -> int | None:
    return milliseconds * 1000 if -_MAX_MILLISECONDS <= milliseconds <= _MAX_MILLISECONDS else None


def _read_nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:  # Kafka's own clients take any negative length for null
        return None, position
    if length > end - position:
        raise MalformedRecordError(f"{length} bytes do not fit into their record")
    return data[position : position + length], position + length


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[list[dict[str, Any]], int]:
    if not 0 <= count <= end - position:
        raise MalformedRecordError(f"{count} headers do not fit into their record")
    headers = []
    for _ in range(count):
        name, position = _read_nullable(data, position, end)
        if name is None:
            raise MalformedRecordError("a header has no name")
        value, position = _read_nullable(data, position, end)
        # What is no UTF-8 has replacement characters, as Java shows it.
        headers.append({"key": name.decode("utf-8", "replace"), "value": value})
    return headers, position


def _record(timestamp_delta: int, offset_delta: int, tail: bytearray) -> bytearray:
    head = bytearray(1)  # the record's attributes: none are defined
    append_varint(head, timestamp_delta)
    append_varint(head, offset_delta)
    record = bytearray()
    append_varint(record, len(head) + len(tail))
    return record + head + tail


def _record_tail(key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None) -> bytearray:
    """The part of a record that does not depend on its place in the batch."""
    tail = bytearray()
    _append_nullable(tail, key)
    _append_nullable(tail, value)
    if not headers:
        tail.append(_NO_HEADERS)
        return tail
    append_varint(tail, len(headers))
    for header in headers:
        name = header["key"].encode()
        append_varint(tail, len(name))
        tail += name
        _append_nullable(tail, header["value"])
    return tail


def _append_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(_NULL_LENGTH)
    else:
        append_varint(out, len(value))
        out += value
