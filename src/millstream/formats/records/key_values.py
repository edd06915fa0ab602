"""Only the keys and values of a batch, quickly: to rebuild the state of a coordinator from its log.

The CRC was checked when the bytes were read from the disk. Lengths in the records are not checked: wrong ones give
wrong keys, or an IndexError. What a batch may become when it is opened is bounded.
"""

from collections.abc import Iterator

from millstream.formats.records.batch import BatchHeader, Bytes
from millstream.formats.records.opening import OpeningLimits, opened
from millstream.formats.records.varint import read_varint

KeyValue = tuple[bytes | None, bytes | None]
_MOST_COPIED = 1 << 20
"""Bytes are read more quickly than a view of them, but copying many of them holds the interpreter's lock for long."""


def iterate_key_values(header: BatchHeader, batch: Bytes, limits: OpeningLimits) -> Iterator[KeyValue]:
    """Key and value of each record, in order; `batch` begins with the header. Raises as `opened` does."""
    with opened(header, batch, limits) as content:
        yield from _key_values(bytes(content) if len(content) <= _MOST_COPIED else content, header.record_count)


def _key_values(data: Bytes, count: int) -> Iterator[KeyValue]:
    position = 0
    for _ in range(count):
        # Lengths of one byte are written out: most are, and the calls would cost more than all the rest.
        byte = data[position]
        if byte < 0x80:
            end = position + 1 + (byte >> 1)
            position += 2
        else:
            size, position = read_varint(data, position)
            end = position + size
            position += 1
        while data[position] >= 0x80:  # the time
            position += 1
        position += 1
        while data[position] >= 0x80:  # the offset
            position += 1
        position += 1
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1
            size = byte >> 1
        else:
            size, position = read_varint(data, position)
        key: bytes | None = None
        if size >= 0:
            key = bytes(data[position : position + size])
            position += size
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1
            size = byte >> 1
        else:
            size, position = read_varint(data, position)
        yield key, (bytes(data[position : position + size]) if size >= 0 else None)
        position = end
