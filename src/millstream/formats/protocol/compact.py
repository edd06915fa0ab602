"""Compact lengths and tagged fields over a buffer and a position, for the codecs that are written by hand."""

from millstream.formats.protocol.primitives import MOST_TAGS, MalformedMessage


def read_varint(buffer: bytes | bytearray, position: int) -> tuple[int, int]:
    """An unsigned varint and the position after it; an IndexError means that the buffer ended."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value, shift = byte & 0x7F, 7
    while shift <= 28:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedMessage("varint longer than five bytes")


def append_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def skip_tags(buffer: bytes | bytearray, position: int, end: int) -> int:
    """The position after a section of tagged fields."""
    count, position = read_varint(buffer, position)
    if count > MOST_TAGS:
        raise MalformedMessage(f"{count} tagged fields in one structure; the limit is {MOST_TAGS}")
    for _ in range(count):
        _, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        position += size
        if position > end:
            raise MalformedMessage("tagged field runs past the end")
    return position


MOST_PRODUCED = 10_000
MOST_FETCHED = 20_000
"""How many partitions one produce or fetch may speak of. They are handled in one turn of the event loop. A request of a
Java producer (1 MB) has no room for more; a fetch session can grow by several requests."""
MAX_PARTITIONS = 100_000
"""The same for the response to a follower."""


def plausible_partitions(count: int, position: int, end: int, budget: int) -> int:
    """What is left of the budget after an array of partitions, refused if it cannot be true or is too much."""
    left = budget - plausible_count(count, position, end)
    if left < 0:
        raise MalformedMessage(f"{-left} partitions more than one request may have; send several")
    return left


def plausible_count(count: int, position: int, end: int) -> int:
    """An array's length, refused if the bytes that are left could not hold it."""
    if count < 0 or count > end - position:
        raise MalformedMessage(f"array of {count} items in {end - position} bytes")
    return count
