"""Primitive types of Kafka's messages, for the compiled codecs (`Cursor`) and for the ones written by hand.

The bytes are not trusted: a `Cursor` never reads past the end, and a length or a count that cannot be true allocates no
memory. Invalid bytes raise `MalformedMessage`. The functions over a buffer and a position read compact lengths and
tagged fields; an IndexError there means that the buffer ended. `NodeEndpoint` is where a node listens, in the responses
to clients that sent to another node (KIP-951).
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from millstream.formats.records.varint import append_unsigned, read_unsigned

ITEM_BUDGET = 1_000_000
"""Limit of the array items in one message: far above what clients send."""

MAX_TEXT_BYTES: Final = (1 << 16) - 1
"""Limit of a string in a request, in bytes. Kafka's limit is half of it, and closes the connection too. Here, a string
that is a little too long gets an error response."""

MAX_TAGS: Final = 64
"""Limit of the tagged fields in one structure, ten times what Kafka's messages have."""

_UNBOUNDED: Final = 1 << 31
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class MalformedMessage(Exception):
    """The bytes do not match the schema of the message."""


class Cursor:
    """A position in a buffer, and the remaining budget of array items."""

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
        """Skips `count` bytes and returns their position."""
        start = self.position
        if count < 0 or count > self.end - start:
            raise MalformedMessage(f"{count} bytes expected at {start}, {self.end - start} left")
        self.position = start + count
        return start

    def take_bytes(self, count: int) -> bytes:
        start = self.take(count)
        return bytes(self.buffer[start : start + count])

    def array_count(self, count: int) -> int:
        """Checks an array's length against the remaining bytes and the budget."""
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


def read_unsigned_varint(cursor: Cursor) -> int:
    try:
        value, position = read_unsigned(cursor.buffer, cursor.position)
    except IndexError:
        raise MalformedMessage(f"the varint at {cursor.position} does not end") from None
    if position > cursor.end:
        raise MalformedMessage(f"the varint at {cursor.position} ends after the message")
    cursor.position = position
    return value


def read_tag_count(cursor: Cursor) -> int:
    """The number of tagged fields, limited to MAX_TAGS."""
    count = read_unsigned_varint(cursor)
    if count > MAX_TAGS:
        raise MalformedMessage(f"{count} tagged fields in one structure; the limit is {MAX_TAGS}")
    return count


def read_tag(cursor: Cursor) -> tuple[int, Cursor]:
    """The number of a tagged field, and a cursor over its bytes; moves `cursor` after them."""
    tag = read_unsigned_varint(cursor)
    size = read_unsigned_varint(cursor)
    start = cursor.take(size)
    inner = Cursor(cursor.buffer, start, start + size, most_items=cursor.most_items, longest_text=cursor.longest_text)
    inner.budget = cursor.budget
    return tag, inner


def read_length_int16(cursor: Cursor) -> int:
    length: int = _INT16.unpack_from(cursor.buffer, cursor.take(2))[0]
    return length


def read_length_int32(cursor: Cursor) -> int:
    length: int = _INT32.unpack_from(cursor.buffer, cursor.take(4))[0]
    return length


def read_length_compact(cursor: Cursor) -> int:
    return read_unsigned_varint(cursor) - 1


def write_length_int32(out: bytearray, length: int) -> None:
    out += _INT32.pack(length)


def write_length_compact(out: bytearray, length: int) -> None:
    append_unsigned(out, length + 1)


def skip_tags(buffer: bytes | bytearray | memoryview, position: int, end: int) -> int:
    """The position after a section of tagged fields."""
    count, position = read_unsigned(buffer, position)
    if count > MAX_TAGS:
        raise MalformedMessage(f"{count} tagged fields in one structure; the limit is {MAX_TAGS}")
    for _ in range(count):
        _, position = read_unsigned(buffer, position)
        size, position = read_unsigned(buffer, position)
        position += size
        if position > end:
            raise MalformedMessage("tagged field runs past the end")
    return position


MAX_PRODUCED_PARTITIONS: Final = 10_000
MAX_FETCHED_PARTITIONS: Final = 20_000
"""Limits of the partitions in one Produce or Fetch, which are handled in one turn of the event loop. A request of a
Java producer (1 MB) has no room for more; a fetch session can grow by several requests."""
MAX_PARTITIONS = 100_000
"""The same for the response to a follower."""


def plausible_partitions(count: int, position: int, end: int, budget: int) -> int:
    """The remaining budget after an array of partitions; refuses an invalid or too large count."""
    if count < 0 or count > end - position:
        raise MalformedMessage(f"array of {count} items in {end - position} bytes")
    left = budget - count
    if left < 0:
        raise MalformedMessage(f"{-left} partitions above the limit of one request; send several")
    return left


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


Locate = Callable[[Iterable[int], str], Sequence[NodeEndpoint]]
"""Finds the endpoints of nodes, for clients of the listener with this name."""


def append_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Appends tagged fields with only the endpoints."""
    content = bytearray()
    append_unsigned(content, len(endpoints) + 1)
    for endpoint in endpoints:
        content += endpoint.node_id.to_bytes(4, "big", signed=True)
        append_text(content, endpoint.host)
        content += endpoint.port.to_bytes(4, "big", signed=True)
        append_text(content, endpoint.rack)
        content.append(0)
    out += b"\x01\x00"
    append_unsigned(out, len(content))
    out += content


def append_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = text.encode()
    append_unsigned(out, len(encoded) + 1)
    out += encoded
