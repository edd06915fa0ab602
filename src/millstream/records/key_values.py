"""Only the keys and values of a batch, quickly: for whoever reads a whole log to rebuild what it tells.

The bytes are trusted: their CRC was checked when they were read from the disk, and it was our own log that took them.
"""

from collections.abc import Iterator

from millstream.records.batch import HEADER_SIZE, BatchHeader, Bytes
from millstream.records.compression import Codec, decompress
from millstream.records.varint import read_varint

KeyValue = tuple[bytes | None, bytes | None]


def iterate_key_values(header: BatchHeader, batch: Bytes) -> Iterator[KeyValue]:
    """Key and value of each record, in order; `batch` begins with the header."""
    content = memoryview(batch)[HEADER_SIZE : header.size]
    data = bytes(content) if header.codec == Codec.NONE else decompress(Codec(header.codec), content)
    position = 0
    for _ in range(header.record_count):
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
            key = data[position : position + size]
            position += size
        byte = data[position]
        if byte < 0x80 and not byte & 1:
            position += 1
            size = byte >> 1
        else:
            size, position = read_varint(data, position)
        yield key, (data[position : position + size] if size >= 0 else None)
        position = end
