# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The same as `walking`, compiled: it works without the interpreter's lock, so that the event loop goes on meanwhile."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from millstream.formats.records._cursor cimport NO_FAULT, NUMBER_TOO_LARGE, NUMBER_WITHOUT_END, Cursor, read_varint

from millstream.formats.records.varint import MalformedRecordError

cdef enum Fault:
    RECORD_TOO_LONG = 10
    WRONG_OFFSET
    WRONG_ORDER
    TOO_MANY_HEADERS
    HEADER_WITHOUT_NAME
    WRONG_END

cdef dict _TEXTS = {
    RECORD_TOO_LONG: "record %d of %d bytes does not fit into its batch",
    NUMBER_WITHOUT_END: "a number in record %d has no end (%d)",
    NUMBER_TOO_LARGE: "a number in record %d is larger than its type (%d)",
    WRONG_OFFSET: "record %d has offset delta %d, outside of its batch",
    WRONG_ORDER: "record %d has offset delta %d, not above the one before it",
    TOO_MANY_HEADERS: "record %d has %d headers, which do not fit into it",
    HEADER_WITHOUT_NAME: "record %d has a header without a name (%d)",
    WRONG_END: "the fields of record %d do not end where it does (%d)",
}


cdef inline int64_t skip_bytes(Cursor* cursor, Py_ssize_t stop) noexcept nogil:
    """Passes over a nullable field of a record that ends at `stop`; its length."""
    cdef int64_t length
    if cursor.at >= stop:
        cursor.fault = WRONG_END
        return 0
    length = read_varint(cursor, 5)
    if cursor.fault:
        return 0
    if length > 0:
        if length > stop - cursor.at:
            cursor.fault = WRONG_END
            return 0
        cursor.at += length
    elif cursor.at > stop:
        cursor.fault = WRONG_END
    return length


cdef inline int64_t check_record(Cursor* cursor, int64_t last_offset_delta, int64_t* before) noexcept nogil:
    """Checks the record at the cursor, which goes to its end; the length of its key. `before` is the offset delta of
    the record before, and becomes that of this one."""
    cdef int64_t size = read_varint(cursor, 5), number, index, key
    cdef Py_ssize_t stop
    if cursor.fault:
        return 0
    if size < 1 or size > cursor.end - cursor.at:
        cursor.fault, cursor.value = RECORD_TOO_LONG, size
        return 0
    stop = cursor.at + size
    cursor.at += 1
    read_varint(cursor, 10)
    if cursor.fault:
        return 0
    number = read_varint(cursor, 5)
    if cursor.fault:
        return 0
    if number < 0 or number > last_offset_delta:
        cursor.fault, cursor.value = WRONG_OFFSET, number
        return 0
    if number <= before[0]:
        cursor.fault, cursor.value = WRONG_ORDER, number
        return 0
    before[0] = number
    key = skip_bytes(cursor, stop)
    if cursor.fault:
        return 0
    skip_bytes(cursor, stop)
    if cursor.fault:
        return 0
    if cursor.at >= stop:
        cursor.fault = WRONG_END
        return 0
    number = read_varint(cursor, 5)
    if cursor.fault:
        return 0
    if number < 0 or number > stop - cursor.at:
        cursor.fault, cursor.value = TOO_MANY_HEADERS, number
        return 0
    for index in range(number):
        if skip_bytes(cursor, stop) < 0:
            cursor.fault = HEADER_WITHOUT_NAME
        if cursor.fault:
            return 0
        skip_bytes(cursor, stop)
        if cursor.fault:
            return 0
    if cursor.at != stop:
        cursor.fault = WRONG_END
    return key


cdef Cursor cursor_over(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end) except *:
    cdef Cursor cursor
    if position < 0 or end > data.shape[0] or position > end:
        raise MalformedRecordError("the records are not inside of their bytes")
    cursor.data = &data[0] if data.shape[0] else NULL
    cursor.at, cursor.end, cursor.fault, cursor.value = position, end, NO_FAULT, 0
    return cursor


def check_records(
    const uint8_t[::1] data,
    Py_ssize_t position,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t last_offset_delta,
    bint needs_keys,
    Py_ssize_t most,
):
    """See `walking.check_records`."""
    cdef Cursor cursor = cursor_over(data, position, end)
    cdef Py_ssize_t number = 0, found = 0
    cdef int64_t before = -1
    cdef Py_ssize_t* keyless = <Py_ssize_t*>malloc(max(1, most) * sizeof(Py_ssize_t))
    if keyless == NULL:
        raise MemoryError
    try:
        with nogil:
            while number < count:
                if check_record(&cursor, last_offset_delta, &before) < 0 and needs_keys and found < most:
                    keyless[found] = number
                    found += 1
                if cursor.fault:
                    break
                number += 1
        if cursor.fault:
            raise MalformedRecordError(_TEXTS[cursor.fault] % (number, cursor.value))
        if cursor.at != end:
            raise MalformedRecordError(f"{end - cursor.at} bytes are left over after the last record")
        return [keyless[number] for number in range(found)]
    finally:
        free(keyless)


cdef struct Deltas:
    int64_t time
    int64_t offset


cdef inline Py_ssize_t read_deltas(Cursor* cursor, Deltas* found) noexcept nogil:
    """Time and offset of the record at the cursor; where it ends."""
    cdef int64_t size = read_varint(cursor, 5)
    cdef Py_ssize_t stop
    if cursor.fault:
        return 0
    if size < 1 or size > cursor.end - cursor.at:
        cursor.fault, cursor.value = RECORD_TOO_LONG, size
        return 0
    stop = cursor.at + size
    cursor.at += 1
    found.time = read_varint(cursor, 10)
    if not cursor.fault:
        found.offset = read_varint(cursor, 5)
    return stop


def seek_offset(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t wanted):
    """See `walking.seek_offset`."""
    cdef Cursor cursor = cursor_over(data, position, end)
    cdef Py_ssize_t number = 0, begin = position, stop
    cdef Deltas found
    with nogil:
        while number < count:
            begin = cursor.at
            stop = read_deltas(&cursor, &found)
            if cursor.fault or found.offset >= wanted:
                break
            cursor.at = begin = stop
            number += 1
    if cursor.fault:
        raise MalformedRecordError(_TEXTS[cursor.fault] % (number, cursor.value))
    return begin, number


def find_time(
    const uint8_t[::1] data,
    Py_ssize_t position,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t least_time,
    int64_t least_offset,
):
    """See `walking.find_time`."""
    cdef Cursor cursor = cursor_over(data, position, end)
    cdef Py_ssize_t number = 0, stop
    cdef Deltas found
    with nogil:
        while number < count:
            stop = read_deltas(&cursor, &found)
            if cursor.fault or (found.time >= least_time and found.offset >= least_offset):
                break
            cursor.at = stop
            number += 1
    if cursor.fault:
        raise MalformedRecordError(_TEXTS[cursor.fault] % (number, cursor.value))
    return (found.offset, found.time) if number < count else None


def latest_time(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count):
    """See `walking.latest_time`."""
    cdef Cursor cursor = cursor_over(data, position, end)
    cdef Py_ssize_t number = 0, stop
    cdef Deltas found, latest
    latest.time = latest.offset = 0
    with nogil:
        while number < count:
            stop = read_deltas(&cursor, &found)
            if cursor.fault:
                break
            if number == 0 or found.time > latest.time or (found.time == latest.time and found.offset < latest.offset):
                latest = found
            cursor.at = stop
            number += 1
    if cursor.fault:
        raise MalformedRecordError(_TEXTS[cursor.fault] % (number, cursor.value))
    return (latest.offset, latest.time) if count > 0 else None


cdef inline bint is_known(const uint32_t* known, Py_ssize_t size, uint32_t wanted) noexcept nogil:
    cdef Py_ssize_t low = 0, high = size, middle
    while low < high:
        middle = (low + high) >> 1
        if known[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < size and known[low] == wanted


def schema_faults(
    const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t count, bint of_keys, known, Py_ssize_t most
):
    """See `walking.schema_faults`."""
    cdef Cursor cursor = cursor_over(data, position, data.shape[0])
    cdef Py_ssize_t number = 0, found = 0, size = len(known), stop, index
    cdef int64_t length
    cdef uint32_t schema_id
    cdef bint has_id, only_unknown = True
    cdef uint32_t* ids = <uint32_t*>malloc(max(1, size) * sizeof(uint32_t))
    cdef int64_t* faults = <int64_t*>malloc(2 * max(1, most) * sizeof(int64_t))
    try:
        if ids == NULL or faults == NULL:
            raise MemoryError
        for index in range(size):
            ids[index] = known[index]
        with nogil:
            while number < count:
                length = read_varint(&cursor, 5)
                stop = cursor.at + length
                if cursor.fault or length < 1 or stop > cursor.end:
                    break
                cursor.at += 1
                read_varint(&cursor, 10)
                read_varint(&cursor, 5)
                length = read_varint(&cursor, 5)
                if not of_keys:
                    if length > 0:
                        cursor.at += length
                    length = read_varint(&cursor, 5)
                if cursor.fault or length > stop - cursor.at:
                    break
                if length >= 0:
                    has_id = length >= 5 and cursor.data[cursor.at] == 0
                    schema_id = 0
                    if has_id:
                        schema_id = (
                            <uint32_t>cursor.data[cursor.at + 1] << 24 | <uint32_t>cursor.data[cursor.at + 2] << 16
                            | <uint32_t>cursor.data[cursor.at + 3] << 8 | cursor.data[cursor.at + 4]
                        )
                    if not has_id or not is_known(ids, size, schema_id):
                        only_unknown = only_unknown and has_id
                        if found < most:
                            faults[2 * found] = number
                            faults[2 * found + 1] = schema_id if has_id else -1
                            found += 1
                cursor.at = stop
                number += 1
        if number < count:
            raise MalformedRecordError(f"record {number} does not fit into its batch")
        return [(faults[2 * index], faults[2 * index + 1]) for index in range(found)], bool(only_unknown)
    finally:
        free(ids)
        free(faults)
