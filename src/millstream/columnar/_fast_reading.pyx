# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records to Arrow columns, compiled: the twin of `_pure.RowCollector`, which says what each method promises.

The walk over the records holds no Python object and no GIL. It trusts no length: each is held against what is left of
its record before a byte is read, and room in the buffers is asked for before a byte is written.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

import pyarrow as pa

from millstream.columnar.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from millstream.formats.records.varint import MalformedRecordError

cdef enum:
    LEAST_RECORD_BYTES = 7  # length, attributes, two deltas, null key, null value, no headers
    LEAST_ROOM = 4096

# What a walk comes back with.
cdef enum Outcome:
    DONE
    CHUNK_FULL
    NEEDS_ROOM
    NO_END
    TOO_LARGE
    RECORD_MISFIT
    DELTA_OUTSIDE
    BYTES_MISFIT
    HEADERS_MISFIT
    NO_HEADER_NAME
    RECORD_REST
    BATCH_REST

_REASONS = {
    NO_END: "a number has no end",
    TOO_LARGE: "a number is larger than its type",
    RECORD_MISFIT: "a record of {} bytes does not fit into its batch",
    DELTA_OUTSIDE: "offset delta {} is outside of its batch",
    BYTES_MISFIT: "{} bytes do not fit into their record",
    HEADERS_MISFIT: "{} headers do not fit into their record",
    NO_HEADER_NAME: "a header has no name",
    RECORD_REST: "a record does not end where its length says: {} bytes are left",
    BATCH_REST: "{} bytes are left over after the last record",
}

cdef int64_t MAX_MILLISECONDS = 9223372036854775

cdef extern from *:
    """
    static inline int add_overflows(int64_t a, int64_t b, int64_t *sum) { return __builtin_add_overflow(a, b, sum); }
    """
    bint add_overflows(int64_t a, int64_t b, int64_t *sum) noexcept nogil


cdef struct Cursor:
    const uint8_t *data
    int64_t at
    int64_t end
    Outcome fault


cdef inline int64_t read_int(Cursor *cursor) noexcept nogil:
    """A zig-zag number of at most 32 bits; `cursor.fault` is set if there is none."""
    cdef uint8_t byte
    if cursor.at < cursor.end:
        byte = cursor.data[cursor.at]
        if byte < 0x80:  # nearly all numbers in records are that small
            cursor.at += 1
            return <int64_t>(byte >> 1) ^ -<int64_t>(byte & 1)
    return read_large_int(cursor)


cdef int64_t read_large_int(Cursor *cursor) noexcept nogil:
    cdef uint64_t zigzag = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end and shift < 35:
        byte = cursor.data[cursor.at]
        cursor.at += 1
        zigzag |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            if zigzag >> 32:
                cursor.fault = TOO_LARGE
                return 0
            return <int64_t>(zigzag >> 1) ^ -<int64_t>(zigzag & 1)
        shift += 7
    cursor.fault = NO_END
    return 0


cdef inline int64_t read_long(Cursor *cursor) noexcept nogil:
    """A zig-zag number of at most 64 bits."""
    cdef uint64_t zigzag = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end and shift < 70:
        byte = cursor.data[cursor.at]
        cursor.at += 1
        if shift == 63 and byte > 1 and byte < 0x80:
            cursor.fault = TOO_LARGE
            return 0
        zigzag |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return <int64_t>((zigzag >> 1) ^ (0 - (zigzag & 1)))
        shift += 7
    cursor.fault = NO_END
    return 0


@cython.final
cdef class Growing:
    """A buffer of Arrow's own memory that grows; its bytes are handed over without a copy."""

    cdef object buffer
    cdef uint8_t *data
    cdef int64_t room
    cdef int64_t used

    def __cinit__(self):
        self.buffer = None
        self.data = NULL
        self.room = 0
        self.used = 0

    cdef reserve(self, int64_t room):
        """Room for that many bytes in all."""
        if room <= self.room:
            return
        room = max(room, 2 * self.room, <int64_t>LEAST_ROOM)
        if self.buffer is None:
            self.buffer = pa.allocate_buffer(room, resizable=True)
        else:
            self.buffer.resize(room)
        self.data = <uint8_t *><uintptr_t>self.buffer.address
        self.room = room

    cdef hand_over(self, int64_t used):
        if self.buffer is None:
            self.reserve(1)
        taken = self.buffer.slice(0, used)
        self.buffer = None
        self.data = NULL
        self.room = 0
        self.used = 0
        return taken


@cython.final
cdef class Bits:
    """A validity bitmap; one bit a row, set where there is a value."""

    cdef Growing bytes
    cdef int64_t nulls

    def __cinit__(self):
        self.bytes = Growing()
        self.nulls = 0

    cdef reserve(self, int64_t rows):
        self.bytes.reserve((rows + 7) // 8)

    cdef inline void put(self, int64_t row, bint valid) noexcept nogil:
        # Most columns have no nulls: nothing is written before the first.
        if not valid or self.nulls:
            self.put_bit(row, valid)

    cdef void put_bit(self, int64_t row, bint valid) noexcept nogil:
        cdef uint8_t *byte = self.bytes.data + (row >> 3)
        if not self.nulls:
            memset(self.bytes.data, 0xFF, (row >> 3) + 1)
        if not row & 7:
            byte[0] = 0xFF
        if not valid:
            byte[0] &= ~<uint8_t>(1 << (row & 7))
            self.nulls += 1

    cdef hand_over(self, int64_t rows):
        """(buffer, null count); None for the buffer where nothing is null."""
        nulls, self.nulls = self.nulls, 0
        taken = self.bytes.hand_over((rows + 7) // 8)
        return (taken if nulls else None), nulls


@cython.final
cdef class Binaries:
    """A column of byte strings: offsets, bytes, validity."""

    cdef Growing offsets
    cdef Growing bytes
    cdef Bits validity

    def __cinit__(self):
        self.offsets = Growing()
        self.bytes = Growing()
        self.validity = Bits()

    cdef reserve_rows(self, int64_t rows):
        self.offsets.reserve(4 * (rows + 1))
        self.validity.reserve(rows)

    cdef inline void put(self, int64_t row, const uint8_t *data, int64_t size) noexcept nogil:
        """A size below 0 is null; the caller has made room."""
        cdef int32_t *offsets = <int32_t *>self.offsets.data
        offsets[row] = <int32_t>self.bytes.used
        self.validity.put(row, size >= 0)
        if size > 0:
            memcpy(self.bytes.data + self.bytes.used, data, size)
            self.bytes.used += size

    cdef hand_over(self, int64_t rows):
        self.reserve_rows(rows)
        (<int32_t *>self.offsets.data)[rows] = <int32_t>self.bytes.used
        validity, nulls = self.validity.hand_over(rows)
        data = self.bytes.hand_over(self.bytes.used)
        return pa.Array.from_buffers(
            pa.binary(), rows, [validity, self.offsets.hand_over(4 * (rows + 1)), data], nulls
        )


cdef struct Record:
    int64_t timestamp_delta
    int64_t offset_delta
    int64_t key_at
    int64_t key_size
    int64_t value_at
    int64_t value_size
    int64_t headers
    int64_t headers_at
    int64_t header_bytes
    int64_t next


@cython.final
cdef class RowCollector:
    cdef bint with_key, with_value, with_offset, with_timestamp, with_type, with_headers
    cdef int64_t max_rows, max_bytes, rows, bytes
    cdef Binaries keys, values, header_names, header_values
    cdef Growing row_offsets, timestamps, types, header_lists
    cdef Bits timestamp_validity, header_validity
    cdef int64_t header_count
    cdef uint8_t name_bits
    cdef int64_t fault_number
    cdef list finished

    def __init__(self, columns, int64_t max_rows, int64_t max_bytes):
        self.with_key = "key" in columns
        self.with_value = "value" in columns
        self.with_offset = "offset" in columns
        self.with_timestamp = "timestamp" in columns
        self.with_type = "timestampType" in columns
        self.with_headers = "headers" in columns
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.keys = Binaries()
        self.values = Binaries()
        self.header_names = Binaries()
        self.header_values = Binaries()
        self.row_offsets = Growing()
        self.timestamps = Growing()
        self.types = Growing()
        self.header_lists = Growing()
        self.timestamp_validity = Bits()
        self.header_validity = Bits()
        self.rows = self.bytes = self.header_count = self.fault_number = 0
        self.name_bits = 0
        self.finished = []

    def add(
        self,
        const uint8_t[::1] records not None,
        *,
        int64_t count,
        int64_t base_offset,
        int64_t last_offset_delta,
        int64_t base_timestamp,
        append_time,
        int64_t start,
        int64_t stop,
    ):
        cdef Cursor cursor
        cdef Record record
        cdef Outcome outcome
        cdef int64_t done = 0
        cdef bint appended = append_time is not None
        cdef int64_t batch_time = append_time if appended else base_timestamp
        cdef int64_t rest
        cursor.data = &records[0] if records.shape[0] else NULL
        cursor.at = 0
        cursor.end = records.shape[0]
        cursor.fault = DONE
        while True:
            # No more rows can come of this batch than its bytes have room for, whatever its header says.
            rest = min(count - done, (cursor.end - cursor.at) // LEAST_RECORD_BYTES + 1)
            self.reserve_rows(min(self.max_rows, self.rows + rest))
            with nogil:
                outcome = self.walk(
                    &cursor, &record, &done, count, base_offset, last_offset_delta, batch_time, appended, start, stop
                )
            if outcome == DONE:
                return
            if outcome == CHUNK_FULL:
                self.finish()
            elif outcome == NEEDS_ROOM:
                self.reserve_bytes(&record, cursor.end - cursor.at)
            else:
                raise MalformedRecordError(_REASONS[outcome].format(self.fault_number))

    def take(self):
        if self.rows:
            self.finish()
        finished, self.finished = self.finished, []
        return finished

    cdef Outcome walk(
        self,
        Cursor *cursor,
        Record *record,
        int64_t *done,
        int64_t count,
        int64_t base_offset,
        int64_t last_offset_delta,
        int64_t batch_time,
        bint appended,
        int64_t start,
        int64_t stop,
    ) noexcept nogil:
        """Rows of the records from the cursor on, until all are done or something else has to happen first; then the
        cursor stands before the record that could not be taken."""
        cdef Outcome outcome
        cdef int64_t offset, taken
        while done[0] < count:
            outcome = self.parse(cursor, record, last_offset_delta)
            if outcome != DONE:
                return outcome
            offset = base_offset + record.offset_delta
            if start <= offset < stop:
                taken = 0
                if self.with_key and record.key_size > 0:
                    taken += record.key_size
                if self.with_value and record.value_size > 0:
                    taken += record.value_size
                if self.with_headers:
                    taken += record.header_bytes
                if self.rows == self.max_rows or (self.rows and self.bytes + taken > self.max_bytes):
                    return CHUNK_FULL
                if not self.has_room(record):
                    return NEEDS_ROOM
                self.put(cursor.data, record, offset, batch_time, appended)
                self.bytes += taken
                self.rows += 1
            cursor.at = record.next
            done[0] += 1
        if cursor.at != cursor.end:
            self.fault_number = cursor.end - cursor.at
            return BATCH_REST
        return DONE

    cdef inline Outcome parse(self, const Cursor *before, Record *record, int64_t last_offset_delta) noexcept nogil:
        """Where the parts of the record at the cursor lie; the cursor itself does not move."""
        cdef Cursor cursor = before[0]
        cdef int64_t size, index
        size = read_int(&cursor)
        if cursor.fault != DONE:
            return cursor.fault
        if size < 1 or size > cursor.end - cursor.at:
            self.fault_number = size
            return RECORD_MISFIT
        cursor.end = cursor.at + size
        cursor.at += 1
        record.next = cursor.end
        record.timestamp_delta = read_long(&cursor)
        if cursor.fault != DONE:
            return cursor.fault
        record.offset_delta = read_int(&cursor)
        if cursor.fault != DONE:
            return cursor.fault
        if record.offset_delta < 0 or record.offset_delta > last_offset_delta:
            self.fault_number = record.offset_delta
            return DELTA_OUTSIDE
        record.key_size = self.skip(&cursor, &record.key_at)
        record.value_size = self.skip(&cursor, &record.value_at)
        record.headers = read_int(&cursor)
        if cursor.fault != DONE:
            return cursor.fault
        if record.headers < 0 or record.headers > cursor.end - cursor.at:
            self.fault_number = record.headers
            return HEADERS_MISFIT
        record.headers_at = cursor.at
        record.header_bytes = 0
        for _ in range(record.headers):
            if self.skip(&cursor, &index) < 0 and cursor.fault == DONE:
                return NO_HEADER_NAME
            self.skip(&cursor, &index)
            if cursor.fault != DONE:
                return cursor.fault
        record.header_bytes = cursor.at - record.headers_at
        if cursor.at != cursor.end:
            self.fault_number = cursor.end - cursor.at
            return RECORD_REST
        return DONE

    cdef inline int64_t skip(self, Cursor *cursor, int64_t *at) noexcept nogil:
        """Passes over a nullable byte string: its size (below 0: null), and where it begins."""
        cdef int64_t size
        at[0] = cursor.at
        if cursor.fault != DONE:
            return -1
        size = read_int(cursor)
        if cursor.fault != DONE:
            return -1
        at[0] = cursor.at
        if size > cursor.end - cursor.at:
            self.fault_number = size
            cursor.fault = BYTES_MISFIT
            return -1
        if size > 0:
            cursor.at += size
        return size

    cdef inline bint has_room(self, const Record *record) noexcept nogil:
        if self.with_key and record.key_size > self.keys.bytes.room - self.keys.bytes.used:
            return False
        if self.with_value and record.value_size > self.values.bytes.room - self.values.bytes.used:
            return False
        if self.with_headers and record.headers:
            return (
                4 * (self.header_count + record.headers + 1) <= self.header_names.offsets.room
                and 4 * (self.header_count + record.headers + 1) <= self.header_values.offsets.room
                and 8 * self.header_names.validity.bytes.room >= self.header_count + record.headers
                and 8 * self.header_values.validity.bytes.room >= self.header_count + record.headers
                and record.header_bytes <= self.header_names.bytes.room - self.header_names.bytes.used
                and record.header_bytes <= self.header_values.bytes.room - self.header_values.bytes.used
            )
        return True

    cdef inline void put(
        self, const uint8_t *data, const Record *record, int64_t offset, int64_t batch_time, bint appended
    ) noexcept nogil:
        cdef int64_t row = self.rows
        cdef int64_t time = batch_time
        cdef bint valid = True
        if self.with_key:
            self.keys.put(row, data + record.key_at, record.key_size)
        if self.with_value:
            self.values.put(row, data + record.value_at, record.value_size)
        if self.with_offset:
            (<int64_t *>self.row_offsets.data)[row] = offset
        if self.with_timestamp:
            if not appended:
                valid = not add_overflows(batch_time, record.timestamp_delta, &time)
            valid = valid and -MAX_MILLISECONDS <= time <= MAX_MILLISECONDS
            (<int64_t *>self.timestamps.data)[row] = 1000 * time if valid else 0
            self.timestamp_validity.put(row, valid)
        if self.with_type:
            (<int32_t *>self.types.data)[row] = 1 if appended else 0
        if self.with_headers:
            (<int32_t *>self.header_lists.data)[row] = <int32_t>self.header_count
            self.header_validity.put(row, record.headers > 0)
            if record.headers:
                self.put_headers(data, record)

    cdef void put_headers(self, const uint8_t *data, const Record *record) noexcept nogil:
        """The headers were walked before: here they are known to be whole."""
        cdef Cursor cursor
        cdef int64_t size, at, index
        cursor.data = data
        cursor.at = record.headers_at
        cursor.end = record.next
        cursor.fault = DONE
        for _ in range(record.headers):
            size = self.skip(&cursor, &at)
            self.header_names.put(self.header_count, data + at, size)
            for index in range(at, at + size):
                self.name_bits |= data[index]
            size = self.skip(&cursor, &at)
            self.header_values.put(self.header_count, data + at, size)
            self.header_count += 1

    cdef reserve_rows(self, int64_t rows):
        if self.with_key:
            self.keys.reserve_rows(rows)
        if self.with_value:
            self.values.reserve_rows(rows)
        if self.with_offset:
            self.row_offsets.reserve(8 * rows)
        if self.with_timestamp:
            self.timestamps.reserve(8 * rows)
            self.timestamp_validity.reserve(rows)
        if self.with_type:
            self.types.reserve(4 * rows)
        if self.with_headers:
            self.header_lists.reserve(4 * (rows + 1))
            self.header_validity.reserve(rows)

    cdef reserve_bytes(self, const Record *record, int64_t rest):
        """Room for this record, and by the look of it for those behind it in the batch."""
        cdef int64_t likely = min(rest, self.max_bytes - self.bytes)
        if self.with_key and record.key_size > 0:
            self.keys.bytes.reserve(self.keys.bytes.used + record.key_size)
        if self.with_value and record.value_size > 0:
            self.values.bytes.reserve(self.values.bytes.used + max(record.value_size, likely))
        if self.with_headers and record.headers:
            self.header_names.reserve_rows(self.header_count + record.headers)
            self.header_values.reserve_rows(self.header_count + record.headers)
            self.header_names.bytes.reserve(self.header_names.bytes.used + record.header_bytes)
            self.header_values.bytes.reserve(self.header_values.bytes.used + record.header_bytes)

    cdef finish(self):
        cdef int64_t rows = self.rows
        columns = {}
        if self.with_key:
            columns["key"] = self.keys.hand_over(rows)
        if self.with_value:
            columns["value"] = self.values.hand_over(rows)
        if self.with_offset:
            columns["offset"] = pa.Array.from_buffers(
                pa.int64(), rows, [None, self.row_offsets.hand_over(8 * rows)], 0
            )
        if self.with_timestamp:
            validity, nulls = self.timestamp_validity.hand_over(rows)
            columns["timestamp"] = pa.Array.from_buffers(
                TIMESTAMP_TYPE, rows, [validity, self.timestamps.hand_over(8 * rows)], nulls
            )
        if self.with_type:
            columns["timestampType"] = pa.Array.from_buffers(
                pa.int32(), rows, [None, self.types.hand_over(4 * rows)], 0
            )
        if self.with_headers:
            columns["headers"] = self.finish_headers(rows)
        self.finished.append((rows, columns))
        self.rows = self.bytes = 0

    cdef finish_headers(self, int64_t rows):
        cdef int64_t count = self.header_count
        self.header_lists.reserve(4 * (rows + 1))
        (<int32_t *>self.header_lists.data)[rows] = <int32_t>count
        names = _text(self.header_names.hand_over(count), self.name_bits)
        pairs = pa.Array.from_buffers(
            HEADERS_TYPE.value_type, count, [None], 0, children=[names, self.header_values.hand_over(count)]
        )
        validity, nulls = self.header_validity.hand_over(rows)
        self.header_count = 0
        self.name_bits = 0
        return pa.Array.from_buffers(
            HEADERS_TYPE, rows, [validity, self.header_lists.hand_over(4 * (rows + 1))], nulls, children=[pairs]
        )


cdef _text(names, uint8_t bits):
    """Header names as strings; what is no UTF-8 has replacement characters, as Java shows it."""
    if bits >= 0x80:
        try:
            return names.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
    _, offsets, data = names.buffers()
    return pa.Array.from_buffers(pa.string(), len(names), [None, offsets, data], 0)
