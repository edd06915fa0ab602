"""A few records out of one batch, keys and sizes only, at a cost that does not grow with the batch's values.

For statistics, in a thread: records before the wanted ones are stepped over by their length, and nothing is copied but
the keys. The CRC is the log's to check; whatever cannot be taken apart is no sample.
"""

from typing import NamedTuple

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import HEADER_SIZE, is_plausible, read_header
from millstream.formats.records.compiled import seek_offset
from millstream.formats.records.opening import OpeningLimits, opened
from millstream.formats.records.varint import MAX_LONG_BYTES, MalformedRecordError, read_varint

BLOCK_RECORDS = 64
"""A batch is seen as blocks of so many records; one block is a sample."""
MOST = OpeningLimits(max_bytes=32 << 20, max_records=1_000_000)
"""A batch that is more is no sample, also where the settings would allow it."""


class Sample(NamedTuple):
    """The records of one block: key and bytes of each."""

    records: list[tuple[bytes | None, int]]


def sample_block(data: bytes, offset: int, limits: OpeningLimits = MOST) -> Sample | None:
    """The block that holds `offset`, out of the batch with which `data` begins; None if there is no such thing."""
    if len(data) < HEADER_SIZE:
        return None
    header = read_header(data)
    if not is_plausible(header) or header.size > len(data) or header.is_control:
        return None
    first = (offset - header.base_offset) // BLOCK_RECORDS * BLOCK_RECORDS
    try:
        with opened(header, data, limits) as content:
            position, number = seek_offset(content, 0, len(content), header.record_count, first)
            return _block(content, position, min(BLOCK_RECORDS, header.record_count - number))
    except (MalformedRecordError, KafkaError):
        return None


def _block(content: memoryview, position: int, count: int) -> Sample | None:
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
