"""Reading and writing the primitive types of Kafka's wire.

A `Cursor` walks over bytes that a stranger sent: it never reads past the end, and never lets a length or a count that
cannot be true turn into memory. What is wrong with the bytes is a `MalformedMessage`; nothing else escapes.

Compact lengths and tagged fields over a buffer and a position, for the codecs that are written by hand.

Where nodes listen, as the answers to Produce and Fetch tell it to clients that came to the wrong one (KIP-951).
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

ITEM_BUDGET = 1_000_000
"""How many array items one message may hold: far above what real clients send, far below what hurts."""

LONGEST_TEXT = (1 << 16) - 1
"""How many bytes a string of a request may have. Kafka's bound is half of it, and it closes the connection too. What
is a little too long has a response here that says so."""

MOST_TAGS = 64
"""Tagged fields of one structure. No message of Kafka has a tenth of it."""

_UNBOUNDED = 1 << 31
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class MalformedMessage(Exception):
    """The bytes are not what the message's schema says."""


class Cursor:
    """A position in a buffer, and how many array items may still be made from it."""

    __slots__ = ("budget", "buffer", "end", "longest_text", "most_items", "position")

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview,
        position: int = 0,
        end: int | None = None,
        *,
        most_items: int = ITEM_BUDGET,
        longest_text: int = _UNBOUNDED,
    ) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer) if end is None else end
        self.budget = self.most_items = most_items
        self.longest_text = longest_text

    def take(self, count: int) -> int:
        """Moves over `count` bytes and returns where they start."""
        start = self.position
        if count < 0 or count > self.end - start:
            raise MalformedMessage(f"{count} bytes expected at {start}, {self.end - start} left")
        self.position = start + count
        return start

    def take_bytes(self, count: int) -> bytes:
        start = self.take(count)
        return bytes(self.buffer[start : start + count])

    def array_count(self, count: int) -> int:
        """Accepts an array's length only if the bytes that are left could hold it."""
        if count > self.end - self.position:
            raise MalformedMessage(f"array of {count} items in {self.end - self.position} bytes")
        self.budget -= count
        if self.budget < 0:
            raise MalformedMessage(f"more than {self.most_items} array items in one message; send several")
        return count

    def text_length(self, length: int) -> int:
        if length > self.longest_text:
            raise MalformedMessage(f"string of {length} bytes; the limit is {self.longest_text}")
        return length


Reader = Callable[[Cursor], Any]
Writer = Callable[[bytearray, Any], None]


def fixed_reader(code: str) -> Reader:
    layout = struct.Struct(">" + code)
    size, unpack_from = layout.size, layout.unpack_from

    def read(cursor: Cursor) -> Any:
        return unpack_from(cursor.buffer, cursor.take(size))[0]

    return read


def fixed_writer(code: str) -> Writer:
    pack = struct.Struct(">" + code).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def read_unsigned_varint(cursor: Cursor) -> int:
    value = shift = 0
    while True:
        byte = cursor.buffer[cursor.take(1)]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
        if shift > 28:
            raise MalformedMessage("varint longer than five bytes")


def write_unsigned_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_tag_count(cursor: Cursor) -> int:
    """How many tagged fields follow; each of them is work, so that there may not be many."""
    count = read_unsigned_varint(cursor)
    if count > MOST_TAGS:
        raise MalformedMessage(f"{count} tagged fields in one structure; the limit is {MOST_TAGS}")
    return count


def read_tag(cursor: Cursor) -> tuple[int, Cursor]:
    """The number of a tagged field, and a cursor over its bytes; `cursor` is behind them then."""
    tag = read_unsigned_varint(cursor)
    size = read_unsigned_varint(cursor)
    start = cursor.take(size)
    inner = Cursor(cursor.buffer, start, start + size, most_items=cursor.most_items, longest_text=cursor.longest_text)
    inner.budget = cursor.budget
    return tag, inner


def read_uuid(cursor: Cursor) -> UUID:
    return UUID(bytes=cursor.take_bytes(16))


def write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def read_length_int16(cursor: Cursor) -> int:
    length: int = _INT16.unpack_from(cursor.buffer, cursor.take(2))[0]
    return length


def read_length_int32(cursor: Cursor) -> int:
    length: int = _INT32.unpack_from(cursor.buffer, cursor.take(4))[0]
    return length


def read_length_compact(cursor: Cursor) -> int:
    return read_unsigned_varint(cursor) - 1


def write_length_int16(out: bytearray, length: int) -> None:
    out += _INT16.pack(length)


def write_length_int32(out: bytearray, length: int) -> None:
    out += _INT32.pack(length)


def write_length_compact(out: bytearray, length: int) -> None:
    write_unsigned_varint(out, length + 1)


def text_reader(read_length: Callable[[Cursor], int], nullable: bool) -> Reader:
    def read(cursor: Cursor) -> str | None:
        length = read_length(cursor)
        if length < 0:
            if nullable and length == -1:
                return None
            raise MalformedMessage("null or negative length where a string is required")
        try:
            return cursor.take_bytes(cursor.text_length(length)).decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"string is not UTF-8: {error.reason}") from None

    return read


def bytes_reader(read_length: Callable[[Cursor], int], nullable: bool) -> Reader:
    def read(cursor: Cursor) -> bytes | None:
        length = read_length(cursor)
        if length < 0:
            if nullable and length == -1:
                return None
            raise MalformedMessage("null or negative length where bytes are required")
        return cursor.take_bytes(length)

    return read


def text_writer(write_length: Callable[[bytearray, int], None], nullable: bool) -> Writer:
    def write(out: bytearray, value: str | None) -> None:
        if value is None:
            assert nullable, "null in a string field that cannot be null in this version"
            write_length(out, -1)
            return
        encoded = value.encode()
        write_length(out, len(encoded))
        out += encoded

    return write


def bytes_writer(write_length: Callable[[bytearray, int], None], nullable: bool) -> Writer:
    def write(out: bytearray, value: bytes | None) -> None:
        if value is None:
            assert nullable, "null in a bytes field that cannot be null in this version"
            write_length(out, -1)
            return
        write_length(out, len(value))
        out += value

    return write


def array_reader(read_length: Callable[[Cursor], int], read_item: Reader, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> list[Any] | None:
        count = read_length(cursor)
        if count < 0:
            if nullable and count == -1:
                return None
            raise MalformedMessage("null or negative length where an array is required")
        return [read_item(cursor) for _ in range(cursor.array_count(count))]

    return read


def array_writer(write_length: Callable[[bytearray, int], None], write_item: Writer, nullable: bool) -> Writer:
    def write(out: bytearray, items: Any) -> None:
        if items is None:
            assert nullable, "null in an array field that cannot be null in this version"
            write_length(out, -1)
            return
        write_length(out, len(items))
        for item in items:
            write_item(out, item)

    return write


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


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


Locate = Callable[[Iterable[int], str], Sequence[NodeEndpoint]]
"""Where nodes listen, for clients that came by the listener of this name."""


def append_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Appends a section of tagged fields that holds the endpoints and nothing else."""
    content = bytearray()
    append_varint(content, len(endpoints) + 1)
    for endpoint in endpoints:
        content += endpoint.node_id.to_bytes(4, "big", signed=True)
        append_text(content, endpoint.host)
        content += endpoint.port.to_bytes(4, "big", signed=True)
        append_text(content, endpoint.rack)
        content.append(0)
    out += b"\x01\x00"
    append_varint(out, len(content))
    out += content


def append_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = text.encode()
    append_varint(out, len(encoded) + 1)
    out += encoded
