# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The same as `walking`, compiled: it works without the interpreter's lock, so that the event loop goes on meanwhile."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.records.varint import MalformedRecordError

cdef enum Fault:
    FINE
    RECORD_TOO_LONG
    NUMBER_WITHOUT_END
    NUMBER_TOO_LARGE
    WRONG_OFFSET
    TOO_MANY_HEADERS
    HEADER_WITHOUT_NAME
    WRONG_END

cdef dict _TEXTS = {
    RECORD_TOO_LONG: "record %d of %d bytes does not fit into its batch",
    NUMBER_WITHOUT_END: "a number in record %d has no end (%d)",
    NUMBER_TOO_LARGE: "a number in record %d is larger than its type (%d)",
    WRONG_OFFSET: "record %d has offset delta %d, outside of its batch",
    TOO_MANY_HEADERS: "record %d has %d headers, which do not fit into it",
    HEADER_WITHOUT_NAME: "record %d has a header without a name (%d)",
    WRONG_END: "the fields of record %d do not end where it does (%d)",
}


cdef struct Cursor:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end
    Fault fault
    int64_t value  # what is wrong


cdef inline int64_t read_varint(Cursor* cursor, int most_bytes) noexcept nogil:
    cdef uint64_t zigzag = 0
    cdef int index
    cdef uint8_t byte
    for index in range(most_bytes):
        if cursor.at >= cursor.end:
            cursor.fault = NUMBER_WITHOUT_END
            return 0
        byte = cursor.data[cursor.at]
        cursor.at += 1
        if index == 9 and byte > 1:
            cursor.fault = NUMBER_WITHOUT_END if byte >= 0x80 else NUMBER_TOO_LARGE
            return 0
        zigzag |= <uint64_t>(byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if most_bytes == 5 and zigzag >> 32:
                cursor.fault = NUMBER_TOO_LARGE
                return 0
            return <int64_t>(zigzag >> 1) ^ -<int64_t>(zigzag & 1)
    cursor.fault = NUMBER_WITHOUT_END
    return 0


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


cdef inline int64_t check_record(Cursor* cursor, int64_t last_offset_delta) noexcept nogil:
    """Checks the record at the cursor, which goes to its end; the length of its key."""
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
    cursor.at, cursor.end, cursor.fault, cursor.value = position, end, FINE, 0
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
    cdef Py_ssize_t* keyless = <Py_ssize_t*>malloc(max(1, most) * sizeof(Py_ssize_t))
    if keyless == NULL:
        raise MemoryError
    try:
        with nogil:
            while number < count:
                if check_record(&cursor, last_offset_delta) < 0 and needs_keys and found < most:
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


def seek_offset(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, int64_t wanted):
    """See `walking.seek_offset`."""
    cdef Cursor cursor = cursor_over(data, position, end)
    cdef Py_ssize_t number = 0, begin = position, stop
    cdef int64_t size, delta
    with nogil:
        while number < count:
            begin = cursor.at
            size = read_varint(&cursor, 5)
            if cursor.fault:
                break
            if size < 1 or size > cursor.end - cursor.at:
                cursor.fault, cursor.value = RECORD_TOO_LONG, size
                break
            stop = cursor.at + size
            cursor.at += 1
            read_varint(&cursor, 10)
            if cursor.fault:
                break
            delta = read_varint(&cursor, 5)
            if cursor.fault or delta >= wanted:
                break
            cursor.at = begin = stop
            number += 1
    if cursor.fault:
        raise MalformedRecordError(_TEXTS[cursor.fault] % (number, cursor.value))
    return begin, number


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
