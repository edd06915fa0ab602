# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The inner loops of the cleaner, compiled: the same as `key_map.KeyMap` and `records.kept_records`.

All of it works without the interpreter's lock, so that produce and fetch do not wait for a pass. Keys are known by 128
bits of SipHash under a secret of this process; a key takes 20 bytes of a table that is three quarters full at most.
"""

import os

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from millstream.formats.records._cursor cimport NO_FAULT, NUMBER_TOO_LARGE, NUMBER_WITHOUT_END, Cursor, read_varint

from millstream.node.storage.cleaner.errors import UncleanableError

cdef extern from *:
    """
    static inline uint64_t share_of(uint64_t hash, uint64_t count) {
        return (uint64_t)(((unsigned __int128)hash * count) >> 64);
    }
    """
    uint64_t share_of(uint64_t hash, uint64_t count) nogil

cdef enum:
    DEAD = 1
    TOMBSTONE = 2
    SLOT_BYTES = 20

cdef enum Fault:
    OVERRUN = 10
    KEY_TOO_LONG
    WRONG_END

cdef dict _TEXTS = {
    OVERRUN: "a record is malformed: it reaches past the end of its batch",
    NUMBER_TOO_LARGE: "a record is malformed: a number is larger than its type",
    NUMBER_WITHOUT_END: "a record is malformed: a number has no end",
    KEY_TOO_LONG: "a key reaches past the end of its record",
    WRONG_END: "the records of a batch do not end where it does",
}

cdef uint64_t SECRET_0 = int.from_bytes(os.urandom(8), "little")
cdef uint64_t SECRET_1 = int.from_bytes(os.urandom(8), "little")


cdef Cursor cursor_over(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end) except *:
    cdef Cursor cursor
    if position < 0 or end > data.shape[0] or position > end:
        raise UncleanableError(_TEXTS[OVERRUN])
    cursor.data = &data[0] if data.shape[0] else NULL
    cursor.at, cursor.end, cursor.fault, cursor.value = position, end, NO_FAULT, 0
    return cursor


cdef inline void skip_number(Cursor* cursor) noexcept nogil:
    while cursor.at < cursor.end and cursor.data[cursor.at] >= 0x80:
        cursor.at += 1
    cursor.at += 1
    if cursor.at >= cursor.end:
        cursor.fault = OVERRUN


cdef struct Located:
    const uint8_t* key
    Py_ssize_t key_bytes  # negative: none
    Py_ssize_t end
    bint is_tombstone


cdef inline void locate(Cursor* cursor, Located* found) noexcept nogil:
    """The next record's key; the cursor goes to the end of the record."""
    cdef int64_t size = read_varint(cursor, 5)
    if cursor.fault:
        return
    if size < 4 or size > cursor.end - cursor.at:
        cursor.fault = OVERRUN
        return
    found.end = cursor.at + size
    cursor.at += 1  # attributes
    skip_number(cursor)  # the time
    if cursor.fault:
        return
    skip_number(cursor)  # the offset
    if cursor.fault:
        return
    size = read_varint(cursor, 5)
    if cursor.fault:
        return
    found.key_bytes = size
    if size >= 0:
        if size >= found.end - cursor.at:
            cursor.fault = KEY_TOO_LONG
            return
        found.key = cursor.data + cursor.at
        cursor.at += size
        found.is_tombstone = read_varint(cursor, 5) < 0
        if cursor.fault:
            return
    cursor.at = found.end


cdef inline uint64_t rotated(uint64_t value, int bits) noexcept nogil:
    return value << bits | value >> (64 - bits)


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[0] = rotated(v[0], 32)
    v[2] += v[3]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[2] = rotated(v[2], 32)


cdef inline void sip_hash(const uint8_t* data, Py_ssize_t size, uint64_t* out) noexcept nogil:
    """SipHash-2-4 with 128 bits."""
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef Py_ssize_t at = 0
    cdef int index
    v[0] = SECRET_0 ^ <uint64_t>0x736F6D6570736575
    v[1] = SECRET_1 ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v[2] = SECRET_0 ^ <uint64_t>0x6C7967656E657261
    v[3] = SECRET_1 ^ <uint64_t>0x7465646279746573
    while at + 8 <= size:
        memcpy(&word, data + at, 8)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
        at += 8
    word = <uint64_t>(size & 0xFF) << 56
    for index in range(size - at):
        word |= <uint64_t>data[at + index] << (8 * index)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for index in range(4):
        sip_round(v)
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for index in range(4):
        sip_round(v)
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef class KeyMap:
    """See `key_map.KeyMap`."""

    cdef uint64_t* _digests
    cdef uint32_t* _numbers  # of the latest record of the key, plus one; 0: the slot is free
    cdef uint64_t _slots
    cdef readonly Py_ssize_t key_count
    cdef Py_ssize_t _limit_bytes
    cdef public bytearray fates
    cdef public int64_t next_offset

    def __cinit__(self, Py_ssize_t limit_bytes, int64_t start_offset, int64_t most_records):
        self._limit_bytes = limit_bytes
        self.next_offset = start_offset
        self.fates = bytearray()
        # A table for as many keys as there may be, or as large as leaves a quarter for the fates of records.
        cdef uint64_t affordable = max(16, limit_bytes * 3 // 4 // SLOT_BYTES)
        self._make_room(min(affordable, <uint64_t>max(12, most_records) * 4 // 3 + 1))

    def __dealloc__(self):
        free(self._digests)
        free(self._numbers)

    @property
    def used_bytes(self):
        return self._slots * SLOT_BYTES + len(self.fates)

    def has_room(self, Py_ssize_t records, Py_ssize_t content_bytes):
        if not self.fates:
            return True
        if self.used_bytes + records > self._limit_bytes or len(self.fates) + records >= 0xFFFFFFFF:
            return False
        return (self.key_count + records) * 4 <= <Py_ssize_t>self._slots * 3

    def map_records(self, const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t content_end, Py_ssize_t count):
        cdef Py_ssize_t number = len(self.fates), last = number + count
        cdef Cursor cursor = cursor_over(data, position, content_end)
        cdef Located found
        cdef uint64_t[2] hashed
        cdef uint64_t slot
        cdef uint8_t* fates
        # More records than bytes: refused before memory is taken for them.
        if count > content_end - position:
            raise UncleanableError(_TEXTS[OVERRUN])
        if (self.key_count + count) * 4 > <Py_ssize_t>self._slots * 3:
            self._make_room(<uint64_t>(self.key_count + count) * 4 // 3 + 1)  # only ever for the first batch
        self.fates.extend(bytes(count))
        fates = <uint8_t*><char*>self.fates
        with nogil:
            while number < last:
                locate(&cursor, &found)
                if cursor.fault:
                    break
                if found.key_bytes < 0:
                    fates[number] = DEAD  # compaction knows no place for a record without a key
                else:
                    sip_hash(found.key, found.key_bytes, hashed)
                    slot = self._find(hashed)
                    if self._numbers[slot]:
                        fates[self._numbers[slot] - 1] = DEAD
                    else:
                        self._digests[2 * slot], self._digests[2 * slot + 1] = hashed[0], hashed[1]
                        self.key_count += 1
                    self._numbers[slot] = <uint32_t>(number + 1)
                    if found.is_tombstone:
                        fates[number] = TOMBSTONE
                number += 1
        if not cursor.fault and cursor.at != content_end:
            cursor.fault = WRONG_END
        if cursor.fault:
            raise UncleanableError(_TEXTS[cursor.fault])

    def fates_by_key(self, const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t content_end, Py_ssize_t count):
        cdef Py_ssize_t number = 0
        cdef Cursor cursor = cursor_over(data, position, content_end)
        cdef Located found
        cdef uint64_t[2] hashed
        cdef bytearray result
        cdef uint8_t* fates
        if count > content_end - position:
            raise UncleanableError(_TEXTS[OVERRUN])
        result = bytearray(count)
        fates = <uint8_t*><char*>result
        with nogil:
            while number < count:
                locate(&cursor, &found)
                if cursor.fault:
                    break
                if found.key_bytes < 0:
                    fates[number] = DEAD
                else:
                    sip_hash(found.key, found.key_bytes, hashed)
                    if self._numbers[self._find(hashed)]:
                        fates[number] = DEAD
                    elif found.is_tombstone:
                        fates[number] = TOMBSTONE
                number += 1
        if not cursor.fault and cursor.at != content_end:
            cursor.fault = WRONG_END
        if cursor.fault:
            raise UncleanableError(_TEXTS[cursor.fault])
        return result

    def forget(self, yield_interpreter):
        """Free the memory."""
        free(self._digests)
        free(self._numbers)
        self._digests = NULL
        self._numbers = NULL
        self._slots = 0
        self.key_count = 0
        self._make_room(16)

    cdef inline uint64_t _find(self, uint64_t* hashed) noexcept nogil:
        """The slot of a key: where it is, or where it would go."""
        cdef uint64_t slot = share_of(hashed[0], self._slots)
        while self._numbers[slot] and (
            self._digests[2 * slot] != hashed[0] or self._digests[2 * slot + 1] != hashed[1]
        ):
            slot += 1
            if slot == self._slots:
                slot = 0
        return slot

    cdef int _make_room(self, uint64_t slots) except -1:
        cdef uint64_t* digests = self._digests
        cdef uint32_t* numbers = self._numbers
        cdef uint64_t before = self._slots, slot, at
        self._digests = <uint64_t*>calloc(slots, 2 * sizeof(uint64_t))
        self._numbers = <uint32_t*>calloc(slots, sizeof(uint32_t))
        if self._digests == NULL or self._numbers == NULL:
            free(self._digests)
            free(self._numbers)
            self._digests, self._numbers = digests, numbers
            raise MemoryError
        self._slots = slots
        for slot in range(before):
            if numbers[slot]:
                at = self._find(digests + 2 * slot)
                self._digests[2 * at], self._digests[2 * at + 1] = digests[2 * slot], digests[2 * slot + 1]
                self._numbers[at] = numbers[slot]
        free(digests)
        free(numbers)
        return 0


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t body
    Py_ssize_t timestamp_end
    Py_ssize_t end
    int64_t timestamp_delta


cdef inline int varint_bytes(int64_t value) noexcept nogil:
    cdef uint64_t zigzag = <uint64_t>(value << 1) ^ <uint64_t>(value >> 63)
    cdef int count = 1
    while zigzag > 0x7F:
        zigzag >>= 7
        count += 1
    return count


cdef inline uint8_t* put_varint(uint8_t* out, int64_t value) noexcept nogil:
    cdef uint64_t zigzag = <uint64_t>(value << 1) ^ <uint64_t>(value >> 63)
    while zigzag > 0x7F:
        out[0] = <uint8_t>(zigzag & 0x7F | 0x80)
        zigzag >>= 7
        out += 1
    out[0] = <uint8_t>zigzag
    return out + 1


def kept_records(const uint8_t[::1] data, Py_ssize_t position, fates, bint drops_tombstones, int64_t shift_ms):
    """See `records.kept_records`."""
    cdef const uint8_t[::1] fate_of = fates
    cdef Py_ssize_t count = fate_of.shape[0], number, kept = 0, size = 0, new_size
    cdef int64_t greatest = 0, length
    cdef Cursor cursor = cursor_over(data, position, data.shape[0])
    cdef Span* spans
    cdef Span* span
    cdef bytearray out
    cdef uint8_t* target
    cdef Py_ssize_t start
    spans = <Span*>malloc(max(1, count) * sizeof(Span))
    if spans == NULL:
        raise MemoryError
    try:
        with nogil:
            for number in range(count):
                start = cursor.at
                length = read_varint(&cursor, 5)
                if cursor.fault:
                    break
                if length < 2 or length > cursor.end - cursor.at:
                    cursor.fault = OVERRUN
                    break
                if fate_of[number] == DEAD or (drops_tombstones and fate_of[number] == TOMBSTONE):
                    cursor.at += length
                    continue
                span = &spans[kept]
                span.start, span.body, span.end = start, cursor.at, cursor.at + length
                cursor.at += 1
                span.timestamp_delta = read_varint(&cursor, 10)
                if cursor.fault:
                    break
                if cursor.at > span.end:
                    cursor.fault = OVERRUN
                    break
                span.timestamp_end = cursor.at
                cursor.at = span.end
                if kept == 0 or span.timestamp_delta > greatest:
                    greatest = span.timestamp_delta
                kept += 1
                if shift_ms == 0:
                    size += span.end - span.start
                else:
                    new_size = 1 + varint_bytes(span.timestamp_delta - shift_ms) + span.end - span.timestamp_end
                    size += varint_bytes(new_size) + new_size
        if cursor.fault:
            raise UncleanableError(_TEXTS[cursor.fault])
        # Not `bytearray(size)`: that writes zeros, with the interpreter's lock held.
        out = PyByteArray_FromStringAndSize(NULL, size)
        target = <uint8_t*><char*>out
        with nogil:
            for number in range(kept):
                span = &spans[number]
                if shift_ms == 0:
                    memcpy(target, cursor.data + span.start, span.end - span.start)
                    target += span.end - span.start
                else:
                    new_size = 1 + varint_bytes(span.timestamp_delta - shift_ms) + span.end - span.timestamp_end
                    target = put_varint(target, new_size)
                    target[0] = cursor.data[span.body]
                    target = put_varint(target + 1, span.timestamp_delta - shift_ms)
                    memcpy(target, cursor.data + span.timestamp_end, span.end - span.timestamp_end)
                    target += span.end - span.timestamp_end
        return out, kept, greatest
    finally:
        free(spans)
