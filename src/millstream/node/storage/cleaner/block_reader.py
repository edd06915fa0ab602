"""The batches of a segment, block by block: each whole and with a checksum that holds.

Headers stay unnamed tuples, in the order of `BatchHeader`: where batches are small, naming them would be a third of the
work.
"""

from collections.abc import Iterator

from crc32c import crc32c

from millstream.formats.records.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, MINIMUM_LENGTH
from millstream.node.storage.cleaner.errors import UncleanableError
from millstream.node.storage.disk import File

Located = tuple[int, int, tuple[int, ...]]
"""Where in its block a batch begins and ends, and its header."""

STRETCH_BYTES = 32 << 10

_unpack_from = HEADER.unpack_from


def read_blocks(file: File, start: int, end: int, block_bytes: int) -> Iterator[tuple[bytes, list[Located]]]:
    """Blocks with some of their batches each time, from `start` to `end`, which are batch boundaries; UncleanableError
    where one is damaged.

    A batch that is larger than a block comes alone.
    """
    position = start
    wanted = max(block_bytes, HEADER_SIZE)
    while position < end:
        block = file.read_at(position, min(wanted, end - position))
        found, needed = _batches(block, position, end, file.path)
        if found:
            for some in _stretches(found):
                yield block, some
            position += found[-1][1]
            wanted = max(block_bytes, HEADER_SIZE)
        elif needed > len(block):
            wanted = needed
        else:
            raise UncleanableError(f"{file.path} ends at byte {position + len(block)}, not at {end}")


def _stretches(found: list[Located]) -> Iterator[list[Located]]:
    """As many batches at once as take a short time."""
    first = 0
    for at, (_, after, _) in enumerate(found):
        if after - found[first][0] >= STRETCH_BYTES:
            yield found[first : at + 1]
            first = at + 1
    if first < len(found):
        yield found[first:]


def _batches(block: bytes, start: int, end: int, path: str) -> tuple[list[Located], int]:
    """The whole batches of a block, and how many bytes the next one needs."""
    found: list[Located] = []
    view = memoryview(block)
    at, length, room = 0, len(block), end - start
    while at < length:
        if length - at < HEADER_SIZE:
            if at + HEADER_SIZE > room:
                raise UncleanableError(f"no batch fits at byte {start + at} of {path}")
            return found, HEADER_SIZE
        header = _unpack_from(block, at)
        after = at + header[1] + LOG_OVERHEAD
        if (
            header[3] != MAGIC_V2
            or header[1] < MINIMUM_LENGTH
            or after > room
            or header[0] < 0
            or header[6] < 0
            or header[12] < 0
        ):
            raise UncleanableError(f"no batch begins at byte {start + at} of {path}")
        if after > length:
            return found, after - at
        if crc32c(view[at + CRC_START : after]) != header[4]:
            raise UncleanableError(f"the batch at byte {start + at} of {path} is damaged")
        found.append((at, after, header))
        at = after
    return found, 0
