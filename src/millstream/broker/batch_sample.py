"""A few records out of one batch, keys and sizes only, at a cost that does not grow with the batch's values.

For statistics, in a thread: records before the wanted ones are stepped over by their length, and nothing is copied but
the keys. The CRC is the log's to check; whatever cannot be taken apart is no sample.
"""

import time
from typing import NamedTuple

from millstream.model.errors import KafkaError
from millstream.records.batch import HEADER_SIZE, is_plausible, read_header
from millstream.records.compression import Codec, DecompressionFailedError, decompress
from millstream.records.varint import MAX_LONG_BYTES, MalformedRecordError, read_varint

BLOCK_RECORDS = 64
"""A batch is seen as blocks of so many records; one block is a sample."""
MAX_DECOMPRESSED_BYTES = 32 << 20
MOST_RECORDS = 1_000_000
"""A batch with more is no sample: stepping over them would take too long."""
_STEP = 200
"""Records stepped over before the interpreter lock is offered to the event loop."""


class Sample(NamedTuple):
    """The records of one block: key and bytes of each."""

    records: list[tuple[bytes | None, int]]


def sample_block(data: bytes, offset: int) -> Sample | None:
    """The block that holds `offset`, out of the batch with which `data` begins; None if there is no such thing."""
    if len(data) < HEADER_SIZE:
        return None
    header = read_header(data)
    if not is_plausible(header) or header.size > len(data) or header.is_control or header.record_count > MOST_RECORDS:
        return None
    try:
        codec = Codec(header.codec)
        position = HEADER_SIZE
        if codec is not Codec.NONE:
            data = decompress(codec, memoryview(data)[HEADER_SIZE : header.size], MAX_DECOMPRESSED_BYTES)
            position = 0
        first = (offset - header.base_offset) // BLOCK_RECORDS * BLOCK_RECORDS
        return _block(data, _after(data, position, first), min(BLOCK_RECORDS, header.record_count - first))
    except (DecompressionFailedError, MalformedRecordError, KafkaError, ValueError, IndexError):
        return None


def _after(content: bytes, position: int, count: int) -> int:
    """The position behind `count` records: nothing is looked at but their sizes."""
    for index in range(count):
        low = content[position]
        if low < 0x80:
            position += 1 + (low >> 1)
        elif (high := content[position + 1]) < 0x80:  # nearly all records are smaller than 8 KB
            position += 2 + ((low & 0x7F | high << 7) >> 1)
        else:
            size, position = read_varint(content, position)
            if size < 1:
                raise MalformedRecordError("a record without a size")
            position += size
        if index % _STEP == _STEP - 1:
            time.sleep(0)
    return position


def _block(content: bytes, position: int, count: int) -> Sample | None:
    records = []
    for _ in range(count):
        size, position = read_varint(content, position)
        end = position + size
        if size < 1 or end > len(content):
            return None
        _, at = read_varint(content, position + 1, MAX_LONG_BYTES)
        _, at = read_varint(content, at)
        length, at = read_varint(content, at)
        if length > end - at:
            return None
        records.append((None if length < 0 else bytes(content[at : at + length]), size))
        position = end
    return Sample(records) if records else None
