"""Varints: unsigned ones, for lengths in messages, and zig-zag ones, for numbers in records.

The only implementation in Python; `_cursor.pxd` is the one of the compiled modules.
"""

from typing import Final

MAX_INT_BYTES: Final = 5
MAX_LONG_BYTES: Final = 10


class MalformedRecordError(ValueError):
    """The bytes are not a record; the message says why."""


def append_unsigned(out: bytearray, value: int) -> None:
    """Appends a number that is not negative."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_unsigned(
    data: bytes | bytearray | memoryview, position: int, max_bytes: int = MAX_INT_BYTES
) -> tuple[int, int]:
    """The number at `position`, and the position after it. IndexError if it does not end in the data, or not within
    `max_bytes`."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value, shift = byte & 0x7F, 7
    while shift < 7 * max_bytes:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise IndexError(f"a varint is longer than {max_bytes} bytes")


def append_varint(out: bytearray, value: int) -> None:
    """Appends a number of up to 64 bits with a sign (zig-zag): small ones take one byte."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag <= 0x7F:
        out.append(zigzag)
    else:
        append_unsigned(out, zigzag)


def varint_size(value: int) -> int:
    """The number of bytes that `append_varint` appends for a number that is not negative."""
    size, rest = 1, value >> 6
    while rest:
        size += 1
        rest >>= 7
    return size


def read_varint(data: bytes | bytearray | memoryview, position: int, max_bytes: int = MAX_INT_BYTES) -> tuple[int, int]:
    """The number with a sign (zig-zag) at `position`, and the position after it."""
    if position < len(data) and (first := data[position]) < 0x80:  # nearly all numbers in records are that small
        return (first >> 1) ^ -(first & 1), position + 1
    try:
        zigzag, position = read_unsigned(data, position, max_bytes)
    except IndexError:
        raise MalformedRecordError("a number has no end") from None
    if zigzag >> (32 if max_bytes == MAX_INT_BYTES else 64):
        raise MalformedRecordError("a number is larger than its type")
    return (zigzag >> 1) ^ -(zigzag & 1), position
