"""Batches with a right checksum whose records are not what the header says; for tests."""

from millstream.formats.records.batch import CODEC_MASK, HEADER, HEADER_SIZE, LOG_OVERHEAD, seal
from millstream.formats.records.compression import Codec, compress
from millstream.formats.records.record import Record, build_batch
from millstream.formats.records.varint import append_varint
from tests.wire import now_ms

GARBAGE = b"\xff\x13garbage" * 20


def sealed(records: bytes, count: int = 3, codec: Codec = Codec.NONE, *, is_compressed: bool = False) -> bytes:
    """A batch of `count` records, if one believes its header, and of these bytes behind it."""
    content = records if is_compressed else compress(codec, records)
    whole = build_batch([Record(None, b"value", timestamp=now_ms())] * count)[:HEADER_SIZE]
    fields = list(HEADER.unpack_from(whole))
    fields[1] = HEADER_SIZE + len(content) - LOG_OVERHEAD
    fields[5] = fields[5] & ~CODEC_MASK | codec
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(batch, 0, *fields)
    batch += content
    seal(batch, 0, len(batch))
    return bytes(batch)


def records_with(*offset_deltas: int) -> bytes:
    """Records as they are in a batch, with these offset deltas."""
    content = bytearray()
    for delta in offset_deltas:
        record = bytearray(2)  # attributes, and no difference in time
        append_varint(record, delta)
        for field in (b"key", b"value"):
            append_varint(record, len(field))
            record += field
        append_varint(record, 0)
        append_varint(content, len(record))
        content += record
    return bytes(content)


def unreadable(codec: Codec = Codec.GZIP) -> bytes:
    """Three records, says the header; compressed, so that it is not seen when it is sent."""
    return sealed(GARBAGE, 3, codec)
