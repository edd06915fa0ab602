"""Record batches for tests, made from scratch so that the code under test does not judge itself."""

from millstream.formats.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, seal
from millstream.formats.records.compression import Codec, compress

NOW = 1_700_000_000_000


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(offset_delta: int, timestamp_delta: int, value: bytes, key: bytes | None = None) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    *values: bytes,
    timestamps: list[int] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    count: int | None = None,
    delta: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    values = values or (b"value",)
    timestamps = timestamps or [NOW] * len(values)
    records = b"".join(record(at, timestamps[at] - timestamps[0], value) for at, value in enumerate(values))
    body = compress(codec, records)
    data = bytearray(HEADER_SIZE) + body
    HEADER.pack_into(
        data,
        0,
        base_offset,
        len(data) - LOG_OVERHEAD,
        leader_epoch,
        2,
        0,
        attributes | codec,
        len(values) - 1 if delta is None else delta,
        timestamps[0],
        max(timestamps) if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        sequence,
        len(values) if count is None else count,
    )
    seal(data, 0, len(data))
    return data
