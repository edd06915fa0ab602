"""Walks over the records of an opened batch without making an object of each: is the batch what its header says?

The plain version; `_walking.pyx` is the same, compiled, and holds no lock. `compiled` says which one is used.
"""

import time
from collections.abc import Sequence

from millstream.formats.records.batch import Bytes
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, read_varint

SCHEMA_PREFIX_BYTES = 5
"""A zero byte and the four bytes of an id, as Confluent's serializers write them."""
NO_ID = -1
"""In place of a schema id: the data does not begin with one."""
_STEP = 255
"""After so many records the interpreter's lock is offered to the event loop."""


def check_records(
    data: Bytes, position: int, end: int, count: int, last_offset_delta: int, needs_keys: bool, most: int
) -> list[int]:
    """Checks every length in `count` records from `position` to `end`; MalformedRecordError where one is wrong. Offset
    deltas must ascend up to the last one; so without a gap, if there are as many records as offsets.

    Returns which records have no key, if `needs_keys`: the first `most` of them, by number.
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
    """Passes over records whose offset delta is below `wanted`: where the next one begins, and its number."""
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        _, delta, following = _deltas(data, position, end, number)
        if delta >= wanted:
            return position, number
        position = following
    return position, count


def find_time(
    data: Bytes, position: int, end: int, count: int, least_time: int, least_offset: int
) -> tuple[int, int] | None:
    """Offset and time of the first record whose time is not below `least_time`, nor its offset below `least_offset`;
    all of them are deltas, as records have them."""
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        moment, offset, position = _deltas(data, position, end, number)
        if moment >= least_time and offset >= least_offset:
            return offset, moment
    return None


def latest_time(data: Bytes, position: int, end: int, count: int) -> tuple[int, int] | None:
    """Offset and time of the record with the greatest time, the one with the lowest offset if there are several."""
    latest: tuple[int, int] | None = None
    for number in range(count):
        if number & _STEP == _STEP:
            time.sleep(0)
        moment, offset, position = _deltas(data, position, end, number)
        if latest is None or (moment, -offset) > (latest[1], -latest[0]):
            latest = offset, moment
    return latest


def _deltas(data: Bytes, position: int, end: int, number: int) -> tuple[int, int, int]:
    """Time and offset of the record at `position`, and where the next one begins."""
    size, body = read_varint(data, position)
    if size < 1 or body + size > end:
        raise MalformedRecordError(f"record {number} of {size} bytes does not fit into its batch")
    moment, place = read_varint(data, body + 1, MAX_LONG_BYTES)
    offset, _ = read_varint(data, place)
    return moment, offset, body + size


def schema_faults(
    data: Bytes, position: int, count: int, of_keys: bool, known: Sequence[int], most: int
) -> tuple[list[tuple[int, int]], bool]:
    """Keys, or values, that do not begin with one of the schema ids in `known`, which is sorted: the first `most`, as
    number of the record and id (NO_ID if there is none); and whether all faults are ids that are not known.

    The records must have been checked. A null has no schema, and is no fault.
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
