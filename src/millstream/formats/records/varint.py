"""Zig-zag varints, the numbers inside records: small ones, negative too, take one byte."""

from millstream.formats.records.batch import Bytes

MAX_INT_BYTES = 5
MAX_LONG_BYTES = 10


class MalformedRecordError(ValueError):
    """The bytes are no record; the text says why."""


def append_varint(out: bytearray, value: int) -> None:
    """Appends a number of up to 64 bits."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(data: Bytes, position: int, max_bytes: int = MAX_INT_BYTES) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    if position < len(data) and (first := data[position]) < 0x80:  # nearly all numbers in records are that small
        return (first >> 1) ^ -(first & 1), position + 1
    zigzag = shift = 0
    for index in range(position, min(position + max_bytes, len(data))):
        byte = data[index]
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            if zigzag >> (32 if max_bytes == MAX_INT_BYTES else 64):
                raise MalformedRecordError("a number is larger than its type")
            return (zigzag >> 1) ^ -(zigzag & 1), index + 1
        shift += 7
    raise MalformedRecordError("a number has no end")
