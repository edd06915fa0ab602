"""Where the batches of a slice lie, from their headers alone: the records in between are not read."""

from collections.abc import Iterator
from typing import NamedTuple

from millstream.records.batch import HEADER_SIZE, is_plausible, read_header
from millstream.storage.slice import Slice

_CHUNK_BYTES = 16 << 10


class BatchPlace(NamedTuple):
    first: int
    last: int
    """First and last offset."""
    position: int
    """In the file."""
    size: int
    is_control: bool


def walk_batches(records: Slice) -> Iterator[BatchPlace]:
    """The whole batches of a slice that is ready."""
    position, end = records.position, records.position + records.length
    chunk, chunk_start = b"", position
    while end - position >= HEADER_SIZE:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = records.file.read_at(position, min(_CHUNK_BYTES, end - position)), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = read_header(chunk, at)
        if not is_plausible(header) or position + header.size > end:
            return
        yield BatchPlace(header.base_offset, header.last_offset, position, header.size, header.is_control)
        position += header.size
