"""Iteration over the batches of a log file: headers only, or with every checksum.

Reads in blocks, so small batches do not cost a system call each, and large ones are skipped when only headers matter.
"""

from collections.abc import Iterator

from crc32c import crc32c

from millstream.formats.records.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, is_plausible
from millstream.node.storage.disk import File

HEADER_BLOCK_BYTES = 16 * 1024
CHECKSUM_BLOCK_BYTES = 1024 * 1024

_unpack_from = HEADER.unpack_from


def walk_headers(
    file: File, start: int, end: int, *, block_bytes: int = HEADER_BLOCK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches in [start, end); stops at the first that is not whole, or has an implausible
    header."""
    position, block_start, block = start, start, b""
    while end - position >= HEADER_SIZE:
        at = position - block_start
        if at + HEADER_SIZE > len(block):
            block = file.read_at(position, min(block_bytes, end - position))
            block_start, at = position, 0
            if len(block) < HEADER_SIZE:
                return
        header = BatchHeader._make(_unpack_from(block, at))
        size = header.length + LOG_OVERHEAD
        if not is_plausible(header) or position + size > end:
            return
        yield position, header
        position += size


def header_at(file: File, position: int) -> BatchHeader | None:
    """The header at `position`; None if it is not plausible."""
    if position < 0:
        return None
    data = file.read_at(position, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        return None
    header = BatchHeader._make(_unpack_from(data))
    return header if is_plausible(header) else None


def walk_checked(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader, bool]]:
    """(position, header, whether the checksum is right) of the batches in [start, end); stops at the first that has an
    implausible header."""
    position, block_start, block = start, start, b""
    view = memoryview(block)
    while end - position >= HEADER_SIZE:
        at = position - block_start
        if at + HEADER_SIZE > len(block):
            block = file.read_at(position, min(CHECKSUM_BLOCK_BYTES, end - position))
            view = memoryview(block)
            block_start, at = position, 0
            if len(block) < HEADER_SIZE:
                return
        header = BatchHeader._make(_unpack_from(block, at))
        size = header.length + LOG_OVERHEAD
        if not is_plausible(header) or position + size > end:
            return
        if at + size > len(block):
            block = file.read_at(position, max(size, min(CHECKSUM_BLOCK_BYTES, end - position)))
            view = memoryview(block)
            block_start, at = position, 0
            if len(block) < size:
                return
        yield position, header, crc32c(view[at + CRC_START : at + size]) == header.crc
        position += size
