"""What the cleaner writes: batches with fewer records, with a time to be deleted at, or with none at all.

Base offset, last offset and sequence stay as they were (KIP-98), so that consumers find their place and a producer's
last sequence is not forgotten. The delete horizon (KIP-534) stands in the place of the base timestamp, and attribute
bit 6 says so; record times are told relative to it.
"""

from millstream.formats.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    seal,
)
from millstream.formats.records.compression import Codec, compress
from millstream.node.storage.cleaner import compiled

DELETE_HORIZON_BIT = 0x40


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without its records, as Kafka writes it."""
    kept = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _assemble(header, b"", kept, NO_TIMESTAMP, header.max_timestamp, 0)


def rebuilt_batch(
    header: BatchHeader,
    data: Bytes,
    first: int,
    fates: bytes | bytearray,
    *,
    drops_tombstones: bool,
    horizon_ms: int | None,
) -> bytearray:
    """The batch with those of its records that stay, which lie in `data` from `first` on; with `horizon_ms`, they may
    be forgotten then."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, horizon_ms
    shift_ms = base_timestamp - header.base_timestamp
    content, count, greatest = compiled.kept_records(data, first, fates, drops_tombstones, shift_ms)
    max_timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + greatest
    codec = Codec(attributes & CODEC_MASK)
    if codec is not Codec.NONE:
        content = compress(codec, content)
    return _assemble(header, content, attributes, base_timestamp, max_timestamp, count)


def _assemble(
    header: BatchHeader, content: Bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    size = HEADER_SIZE + len(content)
    HEADER.pack_into(
        batch, 0, header.base_offset, size - LOG_OVERHEAD, header.leader_epoch, header.magic, 0, attributes,
        header.last_offset_delta, base_timestamp, max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, count,
    )  # fmt: skip
    batch += content
    seal(batch, 0, size)
    return batch
