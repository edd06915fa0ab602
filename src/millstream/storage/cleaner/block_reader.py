"""The batches of a segment, block by block: each whole and with a checksum that holds."""

from collections.abc import Iterator

from crc32c import crc32c

from millstream.records.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, is_plausible
from millstream.storage.cleaner.records import UncleanableError
from millstream.storage.disk import File

Located = tuple[int, BatchHeader]
"""Where in its block a batch begins, and its header."""

_unpack_from = HEADER.unpack_from
_make = BatchHeader._make


def read_blocks(file: File, start: int, end: int, block_bytes: int) -> Iterator[tuple[bytes, list[Located]]]:
    """Blocks of whole batches from `start` to `end`, which are batch boundaries; UncleanableError where one is damaged.

    A batch that is larger than a block comes alone.
    """
    position = start
    wanted = max(block_bytes, HEADER_SIZE)
    while position < end:
        block = file.read_at(position, min(wanted, end - position))
        found, used, larger = _batches(block, position, end, file.path)
        if found:
            yield block, found
            position += used
            wanted = max(block_bytes, HEADER_SIZE)
        elif larger > len(block):
            wanted = larger
        else:
            raise UncleanableError(f"{file.path} ends at byte {position + len(block)}, not at {end}")


def _batches(block: bytes, start: int, end: int, path: str) -> tuple[list[Located], int, int]:
    """The whole batches of a block, the bytes they take, and how many bytes the next one needs."""
    found: list[Located] = []
    view = memoryview(block)
    at, length = 0, len(block)
    while at < length:
        if length - at < HEADER_SIZE:
            if start + at + HEADER_SIZE > end:
                raise UncleanableError(f"no batch fits at byte {start + at} of {path}")
            return found, at, HEADER_SIZE
        header = _make(_unpack_from(block, at))
        size = header.length + LOG_OVERHEAD
        if not is_plausible(header) or start + at + size > end:
            raise UncleanableError(f"no batch begins at byte {start + at} of {path}")
        if at + size > length:
            return found, at, size
        if crc32c(view[at + CRC_START : at + size]) != header.crc:
            raise UncleanableError(f"the batch at byte {start + at} of {path} is damaged")
        found.append((at, header))
        at += size
    return found, at, 0
