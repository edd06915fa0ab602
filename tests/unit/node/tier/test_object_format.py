"""The object of a segment: read as it was written, and refused if a byte is wrong."""

from uuid import UUID

import pytest
from crc32c import crc32c

from millstream.node.tier.core.object_format import (
    ABORTED,
    EPOCHS,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TRAILER_BYTES,
    TRANSACTION_INDEX,
    DamagedObjectError,
    Section,
    SegmentIdentity,
    decode_footer,
    decode_tail,
    encode_tail,
    footer_bytes,
)

LOG_BYTES = b"records" * 100
IDENTITY = SegmentIdentity("t", UUID(int=5), 3, 100, 200, 7, 1234)
PARTS = [
    (OFFSET_INDEX, b"i" * 16),
    (TIME_INDEX, b"t" * 24),
    (TRANSACTION_INDEX, b""),
    (SNAPSHOT, b"s" * 9),
    (EPOCHS, b"e" * 5),
    (ABORTED, b"a" * 34),
]


def whole() -> bytes:
    return LOG_BYTES + encode_tail(IDENTITY, Section(0, len(LOG_BYTES), crc32c(LOG_BYTES)), PARTS)


def test_the_tail_is_read_as_it_was_written() -> None:
    data = whole()
    tail = decode_tail(data[len(LOG_BYTES) :], len(data))
    assert tail.footer.identity == IDENTITY
    assert tail.footer.sections[LOG] == Section(0, len(LOG_BYTES), crc32c(LOG_BYTES))
    assert {name: bytes(part) for name, part in tail.parts.items()} == dict(PARTS)
    assert decode_footer(data[-footer_bytes(data[-TRAILER_BYTES:]) :]).identity == IDENTITY


def test_each_wrong_byte_of_the_tail_is_found() -> None:
    data = whole()
    for at in range(len(LOG_BYTES), len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 0x10
        with pytest.raises(DamagedObjectError):
            decode_tail(bytes(wrong[len(LOG_BYTES) :]), len(data))


def test_a_cut_object_is_found() -> None:
    data = whole()
    for size in (0, 5, TRAILER_BYTES, len(data) - 1):
        with pytest.raises(DamagedObjectError):
            decode_tail(data[:size], len(data))
