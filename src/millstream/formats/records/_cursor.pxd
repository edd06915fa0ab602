"""A place in the bytes of records and the reader of numbers there, for all compiled walks over records.

There is no module of that name: what is here is compiled into each module that cimports it.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef enum NumberFault:
    """The first values of the faults of every walk; 0 is no fault."""
    NO_FAULT = 0
    NUMBER_WITHOUT_END = 1
    NUMBER_TOO_LARGE = 2


cdef struct Cursor:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end
    int fault
    int64_t value  # what is wrong


cdef inline int64_t read_varint(Cursor* cursor, int most_bytes) noexcept nogil:
    """A zig-zag number of at most 32 bits (5 bytes) or 64 (10); `cursor.fault` is set if there is none."""
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
