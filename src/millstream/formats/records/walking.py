"""The walker of records: checks and searches the records of an opened batch without an object for each.

The version in plain Python; `_walking.pyx` is the same, compiled, and releases the interpreter's lock. `compiled`
selects one of them.
"""

import time
from collections.abc import Sequence

from millstream.formats.records.batch import Bytes
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, read_varint

SCHEMA_PREFIX_BYTES = 5
"""A zero byte and the four bytes of an id, as Confluent's serializers write them."""
NO_ID = -1
"""In place of a schema id: the data has none."""
_STEP = 255
"""After this many records the interpreter's lock is released for the event loop."""


def check_records(
    data: Bytes, position: int, end: int, count: int, last_offset_delta: int, needs_keys: bool, most: int
) -> list[int]:
    """Checks every length in `count` records from `position` to `end`; MalformedRecordError if one is wrong. Offset
    deltas must ascend and not exceed the last one.

    With `needs_keys`, returns the numbers of the first `most` records without a key.
    """
    keyless: list[int] = []
    before = -1
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        size, position = read_varint(data, position)
        stop = position + size
        if size < 1 or stop > end:
            raise MalformedRecordError(f"record {number} of {size} bytes does not fit into its batch")
        _, position = read_varint(data, position + 1, MAX_LONG_BYTES)
        offset_delta, position = read_varint(data, position)
        if not 0 <= offset_delta <= last_offset_delta:
            raise MalformedRecordError(f"record {number} has offset delta {offset_delta}, outside of its batch")
        if offset_delta <= before:
            raise MalformedRecordError(f"record {number} has offset delta {offset_delta}, not above the one before it")
        before = offset_delta
        length, position = read_varint(data, position)
        if length < 0:
            if needs_keys and len(keyless) < most:
                keyless.append(number)
        else:
            position += length
        length, position = _length(data, position, stop, number)
        position += max(0, length)
        headers, position = _length(data, position, stop, number)
        if not 0 <= headers <= stop - position:
            raise MalformedRecordError(f"record {number} has {headers} headers, which do not fit into it")
        for _ in range(headers):
            length, position = _length(data, position, stop, number)
            if length < 0:
                raise MalformedRecordError(f"record {number} has a header without a name")
            length, position = _length(data, position + length, stop, number)
            position += max(0, length)
        if position != stop:
            raise MalformedRecordError(f"the fields of record {number} do not end where it does")
    if position != end:
        raise MalformedRecordError(f"{end - position} bytes are left over after the last record")
    return keyless


def _length(data: Bytes, position: int, stop: int, number: int) -> tuple[int, int]:
    if position >= stop:
        raise MalformedRecordError(f"the fields of record {number} do not end where it does")
    return read_varint(data, position)


def seek_offset(data: Bytes, position: int, end: int, count: int, wanted: int) -> tuple[int, int]:
    """Skips records whose offset delta is below `wanted`; the position and the number of the next one."""
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        _, delta, following = read_deltas(data, position, end, number)
        if delta >= wanted:
            return position, number
        position = following
    return position, count


def find_time(
    data: Bytes, position: int, end: int, count: int, least_time: int, least_offset: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record with both at or above the given ones. All of them are deltas."""
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        moment, offset, position = read_deltas(data, position, end, number)
        if moment >= least_time and offset >= least_offset:
            return offset, moment
    return None


def latest_time(data: Bytes, position: int, end: int, count: int) -> tuple[int, int] | None:
    """Offset and timestamp of the record with the greatest timestamp; the first of several."""
    latest: tuple[int, int] | None = None
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        moment, offset, position = read_deltas(data, position, end, number)
        if latest is None or (moment, -offset) > (latest[1], -latest[0]):
            latest = offset, moment
    return latest


def record_bounds(data: Bytes, position: int, end: int, number: int) -> tuple[int, int]:
    """Where the record at `position` begins, after its length, and ends; `number` is for the error message."""
    size, body = read_varint(data, position)
    if size < 1 or body + size > end:
        raise MalformedRecordError(f"record {number} of {size} bytes does not fit into its batch")
    return body, body + size


def read_deltas(data: Bytes, position: int, end: int, number: int) -> tuple[int, int, int]:
    """Timestamp and offset of the record at `position`, and the position of the next one."""
    body, stop = record_bounds(data, position, end, number)
    moment, after = read_varint(data, body + 1, MAX_LONG_BYTES)
    offset, _ = read_varint(data, after)
    return moment, offset, stop


def schema_faults(
    data: Bytes, position: int, count: int, of_keys: bool, known: Sequence[int], most: int
) -> tuple[list[tuple[int, int]], bool]:
    """Keys, or values, that do not begin with a schema id in `known`, which is sorted: the first `most`, as number of
    the record and id (NO_ID if there is none); and whether all faults are unknown ids.

    The records must have been checked. A null has no schema and is valid.
    """
    faults: list[tuple[int, int]] = []
    only_unknown = True
    ids = frozenset(known)
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        size, position = read_varint(data, position)
        stop = position + size
        _, position = read_varint(data, position + 1, MAX_LONG_BYTES)
        _, position = read_varint(data, position)
        length, position = read_varint(data, position)
        if not of_keys:
            length, position = read_varint(data, position + max(0, length))
        if length >= 0:
            found = NO_ID
            if length >= SCHEMA_PREFIX_BYTES and data[position] == 0:
                found = int.from_bytes(data[position + 1 : position + SCHEMA_PREFIX_BYTES])
            if found not in ids:
                only_unknown = only_unknown and found != NO_ID
                if len(faults) < most:
                    faults.append((number, found))
        position = stop
    return faults, only_unknown
