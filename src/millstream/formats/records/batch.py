"""The header of a v2 record batch: 61 bytes with everything that the hot path needs.

No function here reads single records, and none copies the batch. Layout, offsets and the CRC rule are Kafka's (KIP-98).
Records are in `record`, codecs in `compression`.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

Bytes = bytes | bytearray | memoryview

HEADER: Final = Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp, max timestamp, producer
id, producer epoch, base sequence, record count."""

HEADER_SIZE: Final = HEADER.size
LOG_OVERHEAD: Final = 12
"""Base offset and length: the part of a batch that its own length field does not count."""
MINIMUM_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
"""The smallest value of the length field: a batch without records."""

PLACEMENT: Final = Struct(">qii")
"""Base offset, length, leader epoch: the broker sets them. They are not covered by the CRC."""
CRC_START: Final = 21
"""The CRC covers everything from the attributes to the end of the batch."""
CRC_FIELD: Final = Struct(">I")
CRC_FIELD_START: Final = 17
ATTRIBUTES: Final = Struct(">h")
ATTRIBUTES_START: Final = 21
MAX_TIMESTAMP: Final = Struct(">q")
MAX_TIMESTAMP_START: Final = 35
MAGIC_START: Final = 16
MAGIC_V2: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 0x7FFFFFFF

assert HEADER_SIZE == 61


class BatchHeader(NamedTuple):
    """The header's fields in wire order; `HEADER.unpack_from` yields the same tuple without the names."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)


def read_header(data: Bytes, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller checks that there are 61 bytes."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def is_plausible(header: BatchHeader) -> bool:
    """Whether the fields that frame a batch are valid; to be checked before the length is used."""
    return (
        header.magic == MAGIC_V2
        and header.length >= MINIMUM_LENGTH
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
        and header.record_count >= 0
    )


def iterate_headers(data: Bytes) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole, plausible batch; stops at the first byte that is not one."""
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = read_header(data, position)
        if not is_plausible(header) or position + header.size > end:
            return
        yield position, header
        position += header.size


def is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another; sequences wrap around to 0."""
    return 0 < (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2


def checksum(data: Bytes, position: int, size: int) -> int:
    """CRC32C of the batch of `size` bytes at `position`."""
    return crc32c(memoryview(data)[position + CRC_START : position + size])


def has_valid_checksum(data: Bytes, position: int, header: BatchHeader) -> bool:
    return checksum(data, position, header.size) == header.crc


def seal(data: bytearray | memoryview, position: int, size: int) -> None:
    """Writes the CRC of a batch that was changed in place."""
    CRC_FIELD.pack_into(data, position + CRC_FIELD_START, checksum(data, position, size))
