# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Arrow columns to records, and keys to partitions, compiled: the twin of what `_pure` has for it.

The arrays are the caller's own and were cast to the types that are read here. What is written is measured first.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

import numpy as np


cdef struct Column:
    const uint8_t *validity
    const int32_t *offsets
    const uint8_t *bytes
    int64_t first


cdef Column column_of(array):
    """The buffers of a binary or string array; the caller keeps the array alive."""
    cdef Column column
    validity, offsets, data = array.buffers()
    column.validity = NULL
    if array.null_count and validity is not None:
        column.validity = <const uint8_t *><uintptr_t>validity.address
    column.offsets = <const int32_t *><uintptr_t>offsets.address if offsets is not None else NULL
    column.bytes = <const uint8_t *><uintptr_t>data.address if data is not None else NULL
    column.first = array.offset
    return column


cdef inline int64_t size_at(const Column *column, int64_t row) noexcept nogil:
    """Bytes of the value in a row, -1 for null."""
    row += column.first
    if column.validity != NULL and not (column.validity[row >> 3] >> (row & 7)) & 1:
        return -1
    return column.offsets[row + 1] - column.offsets[row]


cdef inline int64_t varint_size(int64_t value) noexcept nogil:
    cdef uint64_t zigzag = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int64_t size = 1
    while zigzag > 0x7F:
        zigzag >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *out, int64_t value) noexcept nogil:
    cdef uint64_t zigzag = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while zigzag > 0x7F:
        out[0] = <uint8_t>(zigzag & 0x7F) | 0x80
        out += 1
        zigzag >>= 7
    out[0] = <uint8_t>zigzag
    return out + 1


cdef inline int64_t nullable_size(const Column *column, int64_t row) noexcept nogil:
    cdef int64_t size = size_at(column, row)
    return 1 if size < 0 else varint_size(size) + size


cdef inline uint8_t *write_nullable(uint8_t *out, const Column *column, int64_t row) noexcept nogil:
    cdef int64_t size = size_at(column, row)
    out = write_varint(out, size)
    if size > 0:
        memcpy(out, column.bytes + column.offsets[column.first + row], size)
        out += size
    return out


@cython.final
cdef class Sections:
    """Rows of one partition, written as one records section after another."""

    cdef object kept  # the arrays whose memory is pointed to
    cdef Column keys, values, header_names, header_values
    cdef const int64_t *timestamps
    cdef const int32_t *header_lists
    cdef const uint8_t *header_validity
    cdef int64_t header_first
    cdef int64_t row, rows, max_bytes

    def __init__(self, keys, values, headers, timestamps, int64_t max_bytes):
        self.kept = [keys, values, headers, timestamps]
        self.row = 0
        self.rows = len(keys)
        self.max_bytes = max_bytes
        self.keys = column_of(keys)
        self.values = column_of(values)
        self.timestamps = <const int64_t *><uintptr_t>timestamps.buffers()[1].address + <int64_t>timestamps.offset
        self.header_lists = NULL
        self.header_validity = NULL
        self.header_first = 0
        if headers is not None:
            pairs = headers.values
            names, values = pairs.field("key"), pairs.field("value")
            self.kept += [pairs, names, values]
            self.header_names = column_of(names)
            self.header_values = column_of(values)
            validity, lists = headers.buffers()[:2]
            self.header_lists = <const int32_t *><uintptr_t>lists.address
            self.header_first = headers.offset
            if headers.null_count and validity is not None:
                self.header_validity = <const uint8_t *><uintptr_t>validity.address

    cdef inline int64_t header_range(self, int64_t row, int64_t *first) noexcept nogil:
        """How many headers a row has, and which is the first."""
        first[0] = 0
        if self.header_lists == NULL:
            return 0
        row += self.header_first
        if self.header_validity != NULL and not (self.header_validity[row >> 3] >> (row & 7)) & 1:
            return 0
        first[0] = self.header_lists[row]
        return self.header_lists[row + 1] - first[0]

    cdef inline int64_t size_of(self, int64_t row, int64_t timestamp_delta, int64_t offset_delta) noexcept nogil:
        """Bytes of a record without its length."""
        cdef int64_t first, index
        cdef int64_t headers = self.header_range(row, &first)
        cdef int64_t size = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
        size += nullable_size(&self.keys, row) + nullable_size(&self.values, row) + varint_size(headers)
        for index in range(first, first + headers):
            size += nullable_size(&self.header_names, index) + nullable_size(&self.header_values, index)
        return size

    cdef int64_t measure(self, int64_t *stop, int64_t *max_timestamp) noexcept nogil:
        """How many bytes the next section has, the row behind it and its largest timestamp."""
        cdef int64_t row = self.row
        cdef int64_t base = self.timestamps[row]
        cdef int64_t total = 0
        cdef int64_t size
        max_timestamp[0] = base
        while row < self.rows:
            size = self.size_of(row, self.timestamps[row] - base, row - self.row)
            size += varint_size(size)
            if row > self.row and total + size > self.max_bytes:
                break
            total += size
            if self.timestamps[row] > max_timestamp[0]:
                max_timestamp[0] = self.timestamps[row]
            row += 1
        stop[0] = row
        return total

    cdef void write(self, uint8_t *out, int64_t stop) noexcept nogil:
        cdef int64_t base = self.timestamps[self.row]
        cdef int64_t row, first, index, headers, timestamp_delta, offset_delta
        for row in range(self.row, stop):
            timestamp_delta = self.timestamps[row] - base
            offset_delta = row - self.row
            out = write_varint(out, self.size_of(row, timestamp_delta, offset_delta))
            out[0] = 0  # the record's attributes: none are defined
            out = write_varint(out + 1, timestamp_delta)
            out = write_varint(out, offset_delta)
            out = write_nullable(out, &self.keys, row)
            out = write_nullable(out, &self.values, row)
            headers = self.header_range(row, &first)
            out = write_varint(out, headers)
            for index in range(first, first + headers):
                out = write_nullable(out, &self.header_names, index)
                out = write_nullable(out, &self.header_values, index)

    def __iter__(self):
        return self

    def __next__(self):
        cdef int64_t total, stop, max_timestamp, base
        cdef uint8_t *out
        if self.row >= self.rows:
            raise StopIteration
        base = self.timestamps[self.row]
        with nogil:
            total = self.measure(&stop, &max_timestamp)
        section = PyByteArray_FromStringAndSize(NULL, total)
        out = <uint8_t *>PyByteArray_AS_STRING(section)
        with nogil:
            self.write(out, stop)
        count = stop - self.row
        self.row = stop
        return section, count, base, max_timestamp


def encode_records(keys, values, headers, timestamps, int64_t max_bytes):
    return Sections(keys, values, headers, timestamps, max_bytes)


cdef inline uint32_t murmur2(const uint8_t *data, int64_t size) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t value = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t word
    cdef int64_t at = 0
    while size - at >= 4:
        word = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        at += 4
        word *= multiplier
        word = (word ^ word >> 24) * multiplier
        value = value * multiplier ^ word
    if at < size:
        word = data[at]
        if size - at > 1:
            word |= <uint32_t>data[at + 1] << 8
        if size - at > 2:
            word |= <uint32_t>data[at + 2] << 16
        value = (value ^ word) * multiplier
    value = (value ^ value >> 13) * multiplier
    return value ^ value >> 15


def partition_by_key(keys, int32_t count):
    cdef Column column = column_of(keys)
    cdef int64_t row, size
    cdef int64_t rows = len(keys)
    found = np.empty(rows, np.int32)
    cdef int32_t[::1] partitions = found
    with nogil:
        for row in range(rows):
            size = size_at(&column, row)
            if size < 0:
                partitions[row] = -1
            else:
                partitions[row] = <int32_t>(
                    (murmur2(column.bytes + column.offsets[column.first + row], size) & 0x7FFFFFFF) % <uint32_t>count
                )
    return found
