# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Avro, Protobuf and JSON records to Arrow columns, compiled: all records of an array in one walk, without the GIL.

A reader takes the tree of a schema as `columns.py` describes it. It trusts no length, and judges nothing: a record that
it cannot read in full (another schema, damaged bytes, text that is not UTF-8, a number beyond its type) is only named in
the result, and the format reads it again by itself, and finds the reason.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc, strtod
from libc.string cimport memcmp, memcpy, memset

import pyarrow as pa

cdef enum:
    LEAST_ROOM = 1024
    MOST_PREFIXES = 16
    LONGEST_PREFIX = 64
    LONGEST_NUMBER = 63
    NUMBER_ROOM = 64
    LARGEST_EXPONENT = 300
    DEEPEST = 64

# As in `columns.Form`.
cdef enum Form:
    AVRO = 0
    PROTOBUF = 1
    JSON = 2

# As in `columns.Need`: what a JSON object must have.
cdef enum Need:
    NOTHING = 0
    PRESENT = 1
    NOT_NULL = 2

# As the names in `columns.KINDS`.
cdef enum Kind:
    BOOLEAN = 0
    INT = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    BYTES = 5
    STRING = 6
    ENUM = 7
    FIXED = 8
    DECIMAL = 9
    FIXED_DECIMAL = 10
    RECORD = 11
    ARRAY = 12
    MAP = 13
    TIMESTAMP = 14

# Types of Protobuf's fields, as descriptors number them.
cdef enum Type:
    T_DOUBLE = 1
    T_FLOAT = 2
    T_INT64 = 3
    T_UINT64 = 4
    T_INT32 = 5
    T_FIXED64 = 6
    T_FIXED32 = 7
    T_BOOL = 8
    T_STRING = 9
    T_MESSAGE = 11
    T_BYTES = 12
    T_UINT32 = 13
    T_ENUM = 14
    T_SFIXED32 = 15
    T_SFIXED64 = 16
    T_SINT32 = 17
    T_SINT64 = 18

cdef enum Wire:
    W_VARINT = 0
    W_64 = 1
    W_LENGTH = 2
    W_32 = 5

cdef struct Growing:
    uint8_t *data
    int64_t room
    int64_t used


cdef struct Mark:
    int64_t rows
    int64_t nulls
    int64_t used


cdef struct Node:
    Kind kind
    int null_branch  # of a union with null: the number of null; -1 if it is no union
    bint kept
    int64_t size  # of a fixed, the bytes; of an enum, the symbols
    int children  # the nodes of its children follow it, one tree after the other
    int after  # the node behind its tree
    uint32_t number  # of Protobuf: the field's number, type, and whether it can be unset
    Type type
    bint has_presence
    const uint8_t *name  # of JSON: the field's name, and what its object must have
    int64_t name_size
    Need need
    bint is_seen  # of the record that is read: whether the field was there, and its last value
    uint64_t scalar
    const uint8_t *data
    int64_t length
    int64_t rows
    int64_t nulls
    Growing values  # numbers, bits of booleans, bytes of texts
    Growing offsets
    Growing validity


cdef struct Prefixes:
    int count  # below 0: records have none
    int[MOST_PREFIXES] sizes
    uint8_t[MOST_PREFIXES][LONGEST_PREFIX] data


cdef struct Cursor:
    const uint8_t *at
    const uint8_t *end


cdef bint ensure(Growing *buffer, int64_t room) noexcept nogil:
    """Room for that many bytes in all. False if there is no memory."""
    cdef void *moved
    if room <= buffer.room:
        return True
    room = max(room, 2 * buffer.room, <int64_t>LEAST_ROOM)
    moved = realloc(buffer.data, room)
    if moved == NULL:
        return False
    buffer.data = <uint8_t *>moved
    buffer.room = room
    return True


cdef bint put(Growing *buffer, const void *data, int64_t size) noexcept nogil:
    if not ensure(buffer, buffer.used + size):
        return False
    if size:
        memcpy(buffer.data + buffer.used, data, size)
    buffer.used += size
    return True


cdef bint put_bit(Growing *buffer, int64_t row, bint bit) noexcept nogil:
    if not ensure(buffer, (row >> 3) + 1):
        return False
    if bit:
        buffer.data[row >> 3] |= <uint8_t>(1 << (row & 7))
    else:
        buffer.data[row >> 3] &= ~<uint8_t>(1 << (row & 7))
    return True


cdef bint put_valid(Node *node, bint valid) noexcept nogil:
    """The validity of the next row; the caller counts the row. Bits are written from the first null on."""
    if valid and not node.validity.room:
        return True
    if not node.validity.room:
        if node.rows < 0 or not ensure(&node.validity, (node.rows >> 3) + 1):
            return False
        memset(node.validity.data, 0xFF, (node.rows >> 3) + 1)
    if not valid:
        node.nulls += 1
    return put_bit(&node.validity, node.rows, valid)


cdef inline bint read_long(Cursor *cursor, int64_t *number) noexcept nogil:
    cdef uint64_t zigzag = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end and shift < 70:
        byte = cursor.at[0]
        cursor.at += 1
        if shift == 63 and byte > 1:
            return False
        zigzag |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = <int64_t>((zigzag >> 1) ^ (0 - (zigzag & 1)))
            return True
        shift += 7
    return False


cdef bint is_utf8(const uint8_t *at, int64_t size) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef uint64_t eight
    cdef uint32_t code
    cdef int more
    while at < end:
        if end - at >= 8:
            memcpy(&eight, at, 8)
            if not eight & <uint64_t>0x8080808080808080:
                at += 8
                continue
        if at[0] < 0x80:
            at += 1
            continue
        if at[0] >= 0xC2 and at[0] <= 0xDF:
            more, code = 1, at[0] & 0x1F
        elif at[0] & 0xF0 == 0xE0:
            more, code = 2, at[0] & 0x0F
        elif at[0] >= 0xF0 and at[0] <= 0xF4:
            more, code = 3, at[0] & 0x07
        else:
            return False
        if end - at <= more:
            return False
        at += 1
        for _ in range(more):
            if at[0] & 0xC0 != 0x80:
                return False
            code = (code << 6) | (at[0] & 0x3F)
            at += 1
        if more == 2 and (code < 0x800 or (code >= 0xD800 and code <= 0xDFFF)):
            return False
        if more == 3 and (code < 0x10000 or code > 0x10FFFF):
            return False
    return True


cdef bint put_offset(Node *node, int64_t offset) noexcept nogil:
    """Where the next row begins. Arrow's offsets have 32 bits."""
    cdef int32_t narrow = <int32_t>offset
    if offset > 0x7FFFFFFF:
        return False
    return put(&node.offsets, &narrow, 4)


cdef bint put_null(Node *nodes, int at) noexcept nogil:
    """A row of null, also in the children that have a row for each row of it."""
    cdef Node *node = &nodes[at]
    cdef int child, index
    cdef uint64_t zeros[2]
    zeros[0] = zeros[1] = 0
    if not node.kept:
        return True
    if not put_valid(node, False):
        return False
    if node.kind == RECORD:
        child = at + 1
        for index in range(node.children):
            if not put_null(nodes, child):
                return False
            child = nodes[child].after
    elif node.kind == BOOLEAN:
        if not put_bit(&node.values, node.rows, False):
            return False
    elif node.kind in (INT, FLOAT, ENUM):
        if not put(&node.values, zeros, 4):
            return False
    elif node.kind in (LONG, DOUBLE, TIMESTAMP):
        if not put(&node.values, zeros, 8):
            return False
    elif node.kind in (DECIMAL, FIXED_DECIMAL):
        if not put(&node.values, zeros, 16):
            return False
    elif node.kind in (ARRAY, MAP):
        if not put_offset(node, nodes[at + 1].rows):
            return False
    elif not put_offset(node, node.values.used):
        return False
    node.rows += 1
    return True


cdef bint read(Node *nodes, int at, Cursor *cursor) noexcept nogil:
    """Reads a value. Columns that are not kept are read past. False if it cannot be read."""
    cdef Node *node = &nodes[at]
    cdef int64_t number
    if node.null_branch >= 0:
        if not read_long(cursor, &number) or number < 0 or number > 1:
            return False
        if number == node.null_branch:
            return put_null(nodes, at)
    if node.kept and not put_valid(node, True):
        return False
    if not read_value(nodes, at, cursor):
        return False
    node.rows += 1
    return True


cdef bint read_value(Node *nodes, int at, Cursor *cursor) noexcept nogil:
    cdef Node *node = &nodes[at]
    cdef int64_t number
    cdef int32_t narrow
    cdef int child, index
    if node.kind == RECORD:
        child = at + 1
        for index in range(node.children):
            if not read(nodes, child, cursor):
                return False
            child = nodes[child].after
        return True
    if node.kind in (LONG, INT, ENUM):
        if not read_long(cursor, &number):
            return False
        if node.kind == LONG:
            return not node.kept or put(&node.values, &number, 8)
        narrow = <int32_t>number
        if narrow != number or (node.kind == ENUM and (number < 0 or number >= node.size)):
            return False
        return not node.kept or put(&node.values, &narrow, 4)
    if node.kind == BOOLEAN:
        if cursor.at >= cursor.end or cursor.at[0] > 1:
            return False
        cursor.at += 1
        return not node.kept or put_bit(&node.values, node.rows, (cursor.at - 1)[0])
    if node.kind in (FLOAT, DOUBLE):
        number = 4 if node.kind == FLOAT else 8
        if cursor.end - cursor.at < number:
            return False
        cursor.at += number
        return not node.kept or put(&node.values, cursor.at - number, number)
    if node.kind in (ARRAY, MAP):
        return read_items(nodes, at, cursor)
    if node.kind in (FIXED, FIXED_DECIMAL):
        number = node.size
    elif not read_long(cursor, &number):
        return False
    if number < 0 or number > cursor.end - cursor.at:
        return False
    cursor.at += number
    if node.kind == STRING and not is_utf8(cursor.at - number, number):
        return False
    if node.kind in (DECIMAL, FIXED_DECIMAL):
        return read_decimal(node, cursor.at - number, number)
    if not node.kept:
        return True
    return put_offset(node, node.values.used) and put(&node.values, cursor.at - number, number)


cdef bint read_decimal(Node *node, const uint8_t *data, int64_t size) noexcept nogil:
    """Big-endian, two's complement, of up to 16 bytes; Arrow has little-endian. The caller of `decode` checks the number
    of digits."""
    cdef uint8_t wide_bytes[16]
    cdef int64_t index
    cdef uint8_t sign = 0
    if size < 1 or size > 16:
        return False
    if data[0] & 0x80:
        sign = 0xFF
    for index in range(16):
        wide_bytes[index] = data[size - 1 - index] if index < size else sign
    return not node.kept or put(&node.values, wide_bytes, 16)


cdef bint read_items(Node *nodes, int at, Cursor *cursor) noexcept nogil:
    """The blocks of an array, or of a map, whose items are a key and a value."""
    cdef Node *node = &nodes[at]
    cdef int64_t count, size
    cdef int child
    if node.kept and not put_offset(node, nodes[at + 1].rows):
        return False
    while True:
        if not read_long(cursor, &count):
            return False
        if count == 0:
            return True
        if count < 0:
            if not read_long(cursor, &size) or count == -<int64_t>0x7FFFFFFFFFFFFFFF - 1:
                return False
            count = -count
        # Each item has a byte at least (`avro_columns.py` takes no others), so memory is bounded by the record.
        if count > cursor.end - cursor.at:
            return False
        while count:
            child = at + 1
            if not read(nodes, child, cursor):
                return False
            if node.kind == MAP and not read(nodes, nodes[child].after, cursor):
                return False
            count -= 1


# Protobuf


cdef inline bint read_varint(Cursor *cursor, uint64_t *number) noexcept nogil:
    cdef uint64_t found = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end and shift < 70:
        byte = cursor.at[0]
        cursor.at += 1
        if shift == 63 and byte > 1:
            return False
        found |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = found
            return True
        shift += 7
    return False


cdef bint read_length(Cursor *cursor, Cursor *content) noexcept nogil:
    """The bytes of a field with a length; the cursor is behind them then."""
    cdef uint64_t size
    if not read_varint(cursor, &size) or size > <uint64_t>(cursor.end - cursor.at):
        return False
    content.at = cursor.at
    cursor.at += size
    content.end = cursor.at
    return True


cdef bint read_scalar(Cursor *cursor, int wire, uint64_t *number) noexcept nogil:
    cdef uint32_t narrow
    if wire == W_VARINT:
        return read_varint(cursor, number)
    if wire == W_64 and cursor.end - cursor.at >= 8:
        memcpy(number, cursor.at, 8)
        cursor.at += 8
        return True
    if wire == W_32 and cursor.end - cursor.at >= 4:
        memcpy(&narrow, cursor.at, 4)
        number[0] = narrow
        cursor.at += 4
        return True
    return False


cdef int wire_of(Type type) noexcept nogil:
    if type in (T_DOUBLE, T_FIXED64, T_SFIXED64):
        return W_64
    if type in (T_FLOAT, T_FIXED32, T_SFIXED32):
        return W_32
    if type in (T_STRING, T_BYTES, T_MESSAGE):
        return W_LENGTH
    return W_VARINT


cdef bint put_scalar(Node *node, uint64_t number) noexcept nogil:
    """A value of a number's field, and the row."""
    cdef uint64_t pair[2]
    cdef uint32_t narrow = <uint32_t>number
    cdef bint is_put
    if not node.kept:
        return True
    if not put_valid(node, True):
        return False
    if node.type in (T_UINT64, T_FIXED64):
        pair[0], pair[1] = number, 0
        is_put = put(&node.values, pair, 16)
    elif node.type == T_BOOL:
        is_put = put_bit(&node.values, node.rows, number != 0)
    elif node.type in (T_INT32, T_ENUM, T_SFIXED32, T_FLOAT):
        is_put = put(&node.values, &narrow, 4)
    elif node.type == T_SINT32:
        narrow = (narrow >> 1) ^ (0 - (narrow & 1))
        is_put = put(&node.values, &narrow, 4)
    else:
        if node.type in (T_UINT32, T_FIXED32):
            number = narrow
        elif node.type == T_SINT64:
            number = (number >> 1) ^ (0 - (number & 1))
        is_put = put(&node.values, &number, 8)
    node.rows += 1
    return is_put


cdef bint put_content(Node *nodes, int at, Cursor *content) noexcept nogil:
    """A value of a field with a length, and the row."""
    cdef Node *node = &nodes[at]
    cdef int64_t size = content.end - content.at
    if node.type == T_STRING and not is_utf8(content.at, size):
        return False
    if node.kept and not put_valid(node, True):
        return False
    if node.kind == RECORD:
        if not read_message(nodes, at, content):
            return False
    elif node.kind == TIMESTAMP:
        if not read_timestamp(node, content):
            return False
    elif node.kept and not (put_offset(node, node.values.used) and put(&node.values, content.at, size)):
        return False
    node.rows += 1
    return True


cdef int64_t FIRST_SECOND = -62135596800
cdef int64_t LAST_SECOND = 253402300799


cdef bint read_timestamp(Node *node, Cursor *content) noexcept nogil:
    """google.protobuf.Timestamp, from the year 1 to 9999, in microseconds."""
    cdef uint64_t tag, number
    cdef int64_t seconds = 0, nanos = 0, micros
    while content.at < content.end:
        if not read_varint(content, &tag) or tag not in (0x08, 0x10) or not read_varint(content, &number):
            return False
        if tag == 0x08:
            seconds = <int64_t>number
        else:
            nanos = <int32_t>number
    if seconds < FIRST_SECOND or seconds > LAST_SECOND or nanos < 0 or nanos > 999999999:
        return False
    micros = seconds * 1000000 + nanos // 1000
    return not node.kept or put(&node.values, &micros, 8)


cdef int find_field(Node *nodes, int at, int hint, uint32_t number) noexcept nogil:
    """The node of a field; -1 if there is none. Fields mostly come in the order of their numbers."""
    cdef int child, index
    if hint < nodes[at].after and nodes[hint].number == number:
        return hint
    child = at + 1
    for index in range(nodes[at].children):
        if nodes[child].number == number:
            return child
        child = nodes[child].after
    return -1


cdef bint read_message(Node *nodes, int at, Cursor *cursor) noexcept nogil:
    """Reads the fields of a message. False if it cannot be read, or only in a way that is rare."""
    cdef int child = at + 1, index, wire, hint = at + 1
    cdef uint64_t tag
    cdef Cursor content
    for index in range(nodes[at].children):
        nodes[child].is_seen = False
        nodes[child].scalar = 0
        nodes[child].length = 0
        if nodes[child].kind == ARRAY and nodes[child].kept:
            if not put_valid(&nodes[child], True) or not put_offset(&nodes[child], nodes[child + 1].rows):
                return False
        child = nodes[child].after
    while cursor.at < cursor.end:
        if not read_varint(cursor, &tag) or tag >> 3 == 0 or tag >> 32:
            return False
        wire = tag & 7
        child = find_field(nodes, at, hint, <uint32_t>(tag >> 3))
        if child < 0:  # a newer schema has it
            if wire == W_LENGTH:
                if not read_length(cursor, &content):
                    return False
            elif not read_scalar(cursor, wire, &tag):
                return False
            continue
        hint = nodes[child].after
        if nodes[child].kind == ARRAY:
            hint = child
            if not read_repeated(nodes, child + 1, cursor, wire):
                return False
            continue
        if wire != wire_of(nodes[child].type):
            return False
        if wire == W_LENGTH:
            if nodes[child].is_seen and nodes[child].type == T_MESSAGE:
                return False  # both would have to be merged
            if not read_length(cursor, &content):
                return False
            nodes[child].data = content.at
            nodes[child].length = content.end - content.at
        elif not read_scalar(cursor, wire, &nodes[child].scalar):
            return False
        nodes[child].is_seen = True
    child = at + 1
    for index in range(nodes[at].children):
        if not put_field(nodes, child):
            return False
        child = nodes[child].after
    return True


cdef bint put_field(Node *nodes, int at) noexcept nogil:
    """The value of a field after its message was read."""
    cdef Node *node = &nodes[at]
    cdef Cursor content
    if node.kind == ARRAY:
        node.rows += 1
        return True
    if not node.is_seen and node.has_presence:
        return put_null(nodes, at)
    if wire_of(node.type) != W_LENGTH:
        return put_scalar(node, node.scalar)
    content.at = node.data
    content.end = content.at + node.length
    return put_content(nodes, at, &content)


cdef bint read_repeated(Node *nodes, int at, Cursor *cursor, int wire) noexcept nogil:
    """An item of a repeated field, or several packed ones."""
    cdef Node *node = &nodes[at]
    cdef int own = wire_of(node.type)
    cdef uint64_t number
    cdef Cursor content
    if own == W_LENGTH:
        return wire == own and read_length(cursor, &content) and put_content(nodes, at, &content)
    if wire == own:
        return read_scalar(cursor, wire, &number) and put_scalar(node, number)
    if wire != W_LENGTH or not read_length(cursor, &content):
        return False
    while content.at < content.end:
        if not read_scalar(&content, own, &number) or not put_scalar(node, number):
            return False
    return True


# JSON


cdef struct Number:
    const uint8_t *start
    uint64_t digits  # all digits as one number, if there are at most 19
    int count  # of the digits without leading zeros
    int exponent
    bint is_negative
    bint is_integer


cdef double[23] POWERS
POWERS[:] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]  # fmt: skip


cdef inline void skip_space(Cursor *cursor) noexcept nogil:
    while cursor.at < cursor.end and cursor.at[0] in (0x20, 0x09, 0x0A, 0x0D):
        cursor.at += 1


cdef inline bint take(Cursor *cursor, uint8_t byte) noexcept nogil:
    if cursor.at >= cursor.end or cursor.at[0] != byte:
        return False
    cursor.at += 1
    return True


cdef bint take_word(Cursor *cursor, const char *word, int64_t size) noexcept nogil:
    if cursor.end - cursor.at < size or memcmp(cursor.at, word, size):
        return False
    cursor.at += size
    return True


cdef inline bint take_digits(Cursor *cursor, Number *number) noexcept nogil:
    """One digit or more."""
    cdef const uint8_t *start = cursor.at
    while cursor.at < cursor.end and cursor.at[0] >= c'0' and cursor.at[0] <= c'9':
        if number.count or cursor.at[0] != c'0':
            number.count += 1
            if number.count <= 19:
                number.digits = 10 * number.digits + (cursor.at[0] - c'0')
        cursor.at += 1
    return cursor.at > start


cdef bint take_number(Cursor *cursor, Number *number) noexcept nogil:
    cdef const uint8_t *start
    cdef int exponent = 0
    cdef bint is_negative = False
    number.start = cursor.at
    number.digits = 0
    number.count = number.exponent = 0
    number.is_integer = True
    number.is_negative = take(cursor, c'-')
    start = cursor.at
    if not take_digits(cursor, number) or (start[0] == c'0' and cursor.at - start > 1):
        return False
    if take(cursor, c'.'):
        number.is_integer = False
        start = cursor.at
        if not take_digits(cursor, number):
            return False
        if cursor.at - start > LONGEST_NUMBER:
            return False
        number.exponent = -<int>(cursor.at - start)
    if cursor.at < cursor.end and cursor.at[0] in (c'e', c'E'):
        number.is_integer = False
        cursor.at += 1
        if take(cursor, c'-'):
            is_negative = True
        else:
            take(cursor, c'+')
        start = cursor.at
        while cursor.at < cursor.end and cursor.at[0] >= c'0' and cursor.at[0] <= c'9':
            if exponent > 10000:
                return False
            exponent = 10 * exponent + (cursor.at[0] - c'0')
            cursor.at += 1
        if cursor.at == start:
            return False
        number.exponent += -exponent if is_negative else exponent
    return number.count + number.exponent <= LARGEST_EXPONENT


cdef bint as_long(const Number *number, int64_t *found) noexcept nogil:
    cdef uint64_t most = <uint64_t>0x7FFFFFFFFFFFFFFF + number.is_negative
    if not number.is_integer or number.count > 19 or number.digits > most:
        return False
    found[0] = <int64_t>(0 - number.digits) if number.is_negative else <int64_t>number.digits
    return True


cdef bint as_double(const Number *number, const uint8_t *end, double *found) noexcept nogil:
    """The nearest double."""
    cdef char text[NUMBER_ROOM]
    cdef char *stop
    cdef int64_t size = end - number.start
    if number.count <= 19 and number.digits <= <uint64_t>1 << 53 and -22 <= number.exponent <= 22:
        # Both are exact as doubles, so the result is rounded once.
        found[0] = <double>number.digits
        if number.exponent < 0:
            found[0] /= POWERS[-number.exponent]
        else:
            found[0] *= POWERS[number.exponent]
        if number.is_negative:
            found[0] = -found[0]
        return True
    if size > LONGEST_NUMBER:
        return False
    memcpy(text, number.start, size)
    text[size] = 0
    found[0] = strtod(text, &stop)
    # In a locale with another decimal point it does not read all of it. The difference is not a number if it is infinite.
    return stop == text + size and found[0] - found[0] == 0


cdef bint take_unit(Cursor *cursor, uint32_t *unit) noexcept nogil:
    """The four digits of an escaped character."""
    cdef int index
    cdef uint8_t byte
    if cursor.end - cursor.at < 4:
        return False
    unit[0] = 0
    for index in range(4):
        byte = cursor.at[index]
        if byte >= c'0' and byte <= c'9':
            byte -= c'0'
        elif byte >= c'a' and byte <= c'f':
            byte -= c'a' - 10
        elif byte >= c'A' and byte <= c'F':
            byte -= c'A' - 10
        else:
            return False
        unit[0] = unit[0] << 4 | byte
    cursor.at += 4
    return True


cdef bint take_escape(Cursor *cursor, uint8_t *text, int *size) noexcept nogil:
    """What follows a backslash, as UTF-8."""
    cdef uint8_t byte
    cdef uint32_t code, low
    if cursor.at >= cursor.end:
        return False
    byte = cursor.at[0]
    cursor.at += 1
    size[0] = 1
    if byte in (c'"', c'\\', c'/'):
        text[0] = byte
    elif byte == c'b':
        text[0] = 0x08
    elif byte == c'f':
        text[0] = 0x0C
    elif byte == c'n':
        text[0] = 0x0A
    elif byte == c'r':
        text[0] = 0x0D
    elif byte == c't':
        text[0] = 0x09
    elif byte != c'u' or not take_unit(cursor, &code):
        return False
    elif code < 0x80:
        text[0] = <uint8_t>code
    elif code < 0x800:
        size[0] = 2
        text[0] = <uint8_t>(0xC0 | code >> 6)
        text[1] = <uint8_t>(0x80 | code & 0x3F)
    elif code >= 0xDC00 and code <= 0xDFFF:
        return False
    elif code >= 0xD800 and code <= 0xDBFF:
        if not take(cursor, c'\\') or not take(cursor, c'u') or not take_unit(cursor, &low):
            return False
        if low < 0xDC00 or low > 0xDFFF:
            return False
        code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00))
        size[0] = 4
        text[0] = <uint8_t>(0xF0 | code >> 18)
        text[1] = <uint8_t>(0x80 | code >> 12 & 0x3F)
        text[2] = <uint8_t>(0x80 | code >> 6 & 0x3F)
        text[3] = <uint8_t>(0x80 | code & 0x3F)
    else:
        size[0] = 3
        text[0] = <uint8_t>(0xE0 | code >> 12)
        text[1] = <uint8_t>(0x80 | code >> 6 & 0x3F)
        text[2] = <uint8_t>(0x80 | code & 0x3F)
    return True


cdef inline const uint8_t *plain_text(Cursor *cursor) noexcept nogil:
    """Goes on to the next quote, backslash or control character; where it began."""
    cdef const uint8_t *start = cursor.at
    while cursor.at < cursor.end and cursor.at[0] >= 0x20 and cursor.at[0] != c'"' and cursor.at[0] != c'\\':
        cursor.at += 1
    return start


cdef bint read_text(Node *node, Cursor *cursor) noexcept nogil:
    """A string; the cursor is behind its first quote. NULL: it is read past."""
    cdef const uint8_t *start
    cdef uint8_t escaped[4]
    cdef int size
    while True:
        start = plain_text(cursor)
        if node != NULL and not put(&node.values, start, cursor.at - start):
            return False
        if take(cursor, c'"'):
            return True
        if not take(cursor, c'\\') or not take_escape(cursor, escaped, &size):
            return False
        if node != NULL and not put(&node.values, escaped, size):
            return False


cdef bint skip_json(Cursor *cursor, int depth) noexcept nogil:
    """Reads past a value, which must be right."""
    cdef Number number
    cdef uint8_t first
    if cursor.at >= cursor.end or depth > DEEPEST:
        return False
    first = cursor.at[0]
    if first == c'"':
        cursor.at += 1
        return read_text(NULL, cursor)
    if first == c't':
        return take_word(cursor, b"true", 4)
    if first == c'f':
        return take_word(cursor, b"false", 5)
    if first == c'n':
        return take_word(cursor, b"null", 4)
    if first != c'{' and first != c'[':
        return take_number(cursor, &number)
    cursor.at += 1
    skip_space(cursor)
    if take(cursor, c'}' if first == c'{' else c']'):
        return True
    while True:
        if first == c'{':
            if not take(cursor, c'"') or not read_text(NULL, cursor):
                return False
            skip_space(cursor)
            if not take(cursor, c':'):
                return False
            skip_space(cursor)
        if not skip_json(cursor, depth + 1):
            return False
        skip_space(cursor)
        if take(cursor, c','):
            skip_space(cursor)
            continue
        return take(cursor, c'}' if first == c'{' else c']')


cdef bint read_json(Node *nodes, int at, Cursor *cursor, bint is_closed) noexcept nogil:
    """Reads a value. `is_closed`: an object with other fields than those of the tree is not read."""
    cdef Node *node = &nodes[at]
    cdef Number number
    cdef int64_t wide
    cdef int32_t narrow
    cdef double real
    cdef bint is_read = False
    if cursor.at < cursor.end and cursor.at[0] == c'n':
        return node.need != NOT_NULL and take_word(cursor, b"null", 4) and put_null(nodes, at)
    if not node.kept:
        return skip_json(cursor, 0)
    if not put_valid(node, True):
        return False
    if node.kind == STRING:
        is_read = take(cursor, c'"') and put_offset(node, node.values.used) and read_text(node, cursor)
    elif node.kind == RECORD:
        is_read = take(cursor, c'{') and read_object(nodes, at, cursor, is_closed)
    elif node.kind == ARRAY:
        is_read = take(cursor, c'[') and read_elements(nodes, at, cursor, is_closed)
    elif node.kind == BOOLEAN:
        if take_word(cursor, b"true", 4):
            is_read = put_bit(&node.values, node.rows, True)
        else:
            is_read = take_word(cursor, b"false", 5) and put_bit(&node.values, node.rows, False)
    elif take_number(cursor, &number):
        if node.kind == DOUBLE:
            is_read = as_double(&number, cursor.at, &real) and put(&node.values, &real, 8)
        elif as_long(&number, &wide):
            narrow = <int32_t>wide
            if node.kind == LONG:
                is_read = put(&node.values, &wide, 8)
            elif node.kind == INT and narrow == wide:
                is_read = put(&node.values, &narrow, 4)
    node.rows += 1
    return is_read


cdef int find_name(Node *nodes, int at, int hint, const uint8_t *name, int64_t size) noexcept nogil:
    """The node of a field; -1 if there is none. Fields mostly come in the same order."""
    cdef int child, index
    if hint < nodes[at].after and nodes[hint].name_size == size and not memcmp(nodes[hint].name, name, size):
        return hint
    child = at + 1
    for index in range(nodes[at].children):
        if nodes[child].name_size == size and not memcmp(nodes[child].name, name, size):
            return child
        child = nodes[child].after
    return -1


cdef bint read_object(Node *nodes, int at, Cursor *cursor, bint is_closed) noexcept nogil:
    """The fields of an object; the cursor is behind its brace. A name with an escape, or twice, is rare: not read."""
    cdef int child = at + 1, index, hint = at + 1
    cdef const uint8_t *name
    cdef int64_t size
    for index in range(nodes[at].children):
        nodes[child].is_seen = False
        child = nodes[child].after
    skip_space(cursor)
    if not take(cursor, c'}'):
        while True:
            if not take(cursor, c'"'):
                return False
            name = plain_text(cursor)
            size = cursor.at - name
            if not take(cursor, c'"'):
                return False
            skip_space(cursor)
            if not take(cursor, c':'):
                return False
            skip_space(cursor)
            child = find_name(nodes, at, hint, name, size)
            if child < 0:
                if is_closed or not skip_json(cursor, 0):
                    return False
            else:
                if nodes[child].is_seen or not read_json(nodes, child, cursor, is_closed):
                    return False
                nodes[child].is_seen = True
                hint = nodes[child].after
            skip_space(cursor)
            if take(cursor, c','):
                skip_space(cursor)
                continue
            if not take(cursor, c'}'):
                return False
            break
    child = at + 1
    for index in range(nodes[at].children):
        if not nodes[child].is_seen and (nodes[child].need != NOTHING or not put_null(nodes, child)):
            return False
        child = nodes[child].after
    return True


cdef bint read_elements(Node *nodes, int at, Cursor *cursor, bint is_closed) noexcept nogil:
    """The elements of an array; the cursor is behind its bracket."""
    if not put_offset(&nodes[at], nodes[at + 1].rows):
        return False
    skip_space(cursor)
    if take(cursor, c']'):
        return True
    while True:
        if not read_json(nodes, at + 1, cursor, is_closed):
            return False
        skip_space(cursor)
        if take(cursor, c','):
            skip_space(cursor)
            continue
        return take(cursor, c']')


cdef bint read_json_record(Node *nodes, Cursor *cursor, bint is_closed) noexcept nogil:
    if not is_utf8(cursor.at, cursor.end - cursor.at):
        return False
    skip_space(cursor)
    if cursor.at >= cursor.end or cursor.at[0] != c'{' or not read_json(nodes, 0, cursor, is_closed):
        return False
    skip_space(cursor)
    return cursor.at == cursor.end


cdef class ColumnReader:
    """Reads records of one schema. Not thread safe; it runs without the GIL."""

    cdef Node *nodes
    cdef Mark *marks
    cdef int count
    cdef Form form
    cdef bint is_closed
    cdef list tree  # it has the names

    def __cinit__(self, list tree, int form, bint is_closed=False):
        """`tree`: the fields of `columns.Node` for each node, a record first."""
        cdef bytes name
        self.form = <Form>form
        self.is_closed = is_closed
        self.tree = tree
        self.count = len(tree)
        self.nodes = <Node *>calloc(self.count, sizeof(Node))
        self.marks = <Mark *>calloc(self.count, sizeof(Mark))
        if self.nodes == NULL or self.marks == NULL:
            raise MemoryError
        for index, (
            kind, null_branch, kept, size, children, after, number, type, has_presence, name, need
        ) in enumerate(tree):
            self.nodes[index].kind = kind
            self.nodes[index].null_branch = null_branch
            self.nodes[index].kept = kept
            self.nodes[index].size = size
            self.nodes[index].children = children
            self.nodes[index].after = after
            self.nodes[index].number = number
            self.nodes[index].type = type
            self.nodes[index].has_presence = has_presence
            self.nodes[index].name = <const uint8_t *><const char *>name
            self.nodes[index].name_size = len(name)
            self.nodes[index].need = need

    def __dealloc__(self):
        cdef int index
        if self.nodes != NULL:
            for index in range(self.count):
                free(self.nodes[index].values.data)
                free(self.nodes[index].offsets.data)
                free(self.nodes[index].validity.data)
        free(self.nodes)
        free(self.marks)

    def decode(self, values, prefixes):
        """Reads `values`, a binary array. `prefixes`: what records of this schema begin with, None for records without
        a prefix. Returns the places of the records that could not be read, as a list: they are null now, as null values
        are. `column` then has the columns."""
        cdef int64_t length = len(values), offset = values.offset, done = 0
        cdef const uint8_t *data = NULL
        cdef const uint8_t *valid = NULL
        cdef const int32_t *offsets
        cdef list unread = []
        cdef Prefixes accepted
        cdef int outcome
        cdef bytes prefix
        accepted.count = -1
        if prefixes is not None:
            accepted.count = 0
            for prefix in prefixes[:MOST_PREFIXES]:
                if len(prefix) <= LONGEST_PREFIX:
                    accepted.sizes[accepted.count] = len(prefix)
                    memcpy(accepted.data[accepted.count], <const char *>prefix, len(prefix))
                    accepted.count += 1
        self.clear()
        if not length:
            return unread
        buffers = values.buffers()
        if buffers[0] is not None:
            valid = <const uint8_t *><uintptr_t>buffers[0].address
        offsets = <const int32_t *><uintptr_t>buffers[1].address
        if buffers[2] is not None:
            data = <const uint8_t *><uintptr_t>buffers[2].address
        while done < length:
            with nogil:
                outcome = self.walk(data, valid, offsets, offset, length, &accepted, &done)
            if outcome < 0:
                self.clear()
                raise MemoryError
            if outcome:
                unread.append(done - 1)
        return unread

    cdef int walk(
        self,
        const uint8_t *data,
        const uint8_t *valid,
        const int32_t *offsets,
        int64_t offset,
        int64_t length,
        const Prefixes *accepted,
        int64_t *done,
    ) noexcept nogil:
        """Reads on from row `done`: 0 at the end, 1 after a row that could not be read, -1 without memory."""
        cdef Cursor cursor
        cdef int64_t place
        cdef bint is_read
        while done[0] < length:
            place = offset + done[0]
            done[0] += 1
            if valid != NULL and not (valid[place >> 3] >> (place & 7)) & 1:
                if not put_null(self.nodes, 0):
                    return -1
                continue
            cursor.at = data + offsets[place]
            cursor.end = data + offsets[place + 1]
            is_read = accepted.count < 0 or takes_prefix(&cursor, accepted)
            if is_read:
                self.mark()
                if self.form == PROTOBUF:
                    is_read = put_content(self.nodes, 0, &cursor)
                elif self.form == JSON:
                    is_read = read_json_record(self.nodes, &cursor, self.is_closed)
                else:
                    is_read = read(self.nodes, 0, &cursor) and cursor.at == cursor.end
                if not is_read:
                    self.undo()
            if not is_read:
                return 1 if put_null(self.nodes, 0) else -1
        return 0

    cdef void mark(self) noexcept nogil:
        cdef int index
        for index in range(self.count):
            self.marks[index].rows = self.nodes[index].rows
            self.marks[index].nulls = self.nodes[index].nulls
            self.marks[index].used = self.nodes[index].values.used

    cdef void undo(self) noexcept nogil:
        """Removes what was read of the last record."""
        cdef int index
        cdef Node *node
        for index in range(self.count):
            node = &self.nodes[index]
            node.rows = self.marks[index].rows
            node.nulls = self.marks[index].nulls
            node.values.used = self.marks[index].used
            if node.offsets.room:
                node.offsets.used = 4 * node.rows

    cdef void clear(self) noexcept:
        cdef int index
        for index in range(self.count):
            self.marks[index].rows = self.marks[index].nulls = self.marks[index].used = 0
        self.undo()
        for index in range(self.count):
            free(self.nodes[index].validity.data)
            memset(&self.nodes[index].validity, 0, sizeof(Growing))

    def column(self, int at):
        """(rows, nulls, validity, offsets, values) of a node; buffers that it does not have are None."""
        cdef Node *node = &self.nodes[at]
        cdef int64_t size
        cdef int32_t last
        validity = offsets = values = None
        if node.nulls:
            validity = taken(&node.validity, (node.rows + 7) // 8)
        if node.kind in (BYTES, STRING, FIXED, ARRAY, MAP) and node.kept:
            size = self.nodes[at + 1].rows if node.kind in (ARRAY, MAP) else node.values.used
            last = <int32_t>size
            if size > 0x7FFFFFFF or not put(&node.offsets, &last, 4):
                raise MemoryError
            offsets = taken(&node.offsets, node.offsets.used)
        if node.kind == BOOLEAN:
            values = taken(&node.values, (node.rows + 7) // 8)
        elif node.kind not in (RECORD, ARRAY, MAP):
            values = taken(&node.values, node.values.used)
        return node.rows, node.nulls, validity, offsets, values


cdef bint takes_prefix(Cursor *cursor, const Prefixes *accepted) noexcept nogil:
    """Whether the record begins with one of them; the cursor is behind it then."""
    cdef int index
    for index in range(accepted.count):
        if cursor.end - cursor.at >= accepted.sizes[index]:
            if not memcmp(cursor.at, accepted.data[index], accepted.sizes[index]):
                cursor.at += accepted.sizes[index]
                return True
    return False


cdef taken(Growing *buffer, int64_t size):
    made = pa.allocate_buffer(size)
    if size:
        memcpy(<void *><uintptr_t>made.address, buffer.data, size)
    return made
