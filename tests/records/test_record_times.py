import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.records.batch import HEADER, HEADER_SIZE, BatchHeader
from millstream.records.compression import Codec, compress
from millstream.records.record_times import MalformedRecordsError, record_times


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def build(deltas: list[int], codec: Codec, value: bytes, attributes: int = 0) -> tuple[BatchHeader, bytes]:
    records = b""
    for at, delta in enumerate(deltas):
        body = b"\x00" + varint(delta) + varint(at) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    packed = compress(codec, records)
    last = len(deltas) - 1
    header = BatchHeader(
        100, HEADER_SIZE - 12 + len(packed), 0, 2, 0, attributes | codec, last, 5000, 9999, -1, -1, -1, len(deltas)
    )
    return header, HEADER.pack(*header) + packed


@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=20), st.sampled_from(list(Codec)), st.binary())
def test_offsets_and_timestamps(deltas: list[int], codec: Codec, value: bytes) -> None:
    header, batch = build(deltas, codec, value)
    assert list(record_times(header, batch)) == [(100 + at, 5000 + delta) for at, delta in enumerate(deltas)]


def test_log_append_time_is_the_batchs() -> None:
    header, batch = build([0, 7], Codec.NONE, b"v", attributes=0x08)
    assert list(record_times(header, batch)) == [(100, 9999), (101, 9999)]


@given(st.binary(max_size=60), st.sampled_from(list(Codec)), st.integers(1, 5))
def test_junk_is_told(junk: bytes, codec: Codec, count: int) -> None:
    header = BatchHeader(0, HEADER_SIZE - 12 + len(junk), 0, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count)
    try:
        list(record_times(header, HEADER.pack(*header) + junk))
    except MalformedRecordsError:
        pass


def test_fewer_records_than_promised() -> None:
    header, batch = build([0], Codec.NONE, b"v")
    with pytest.raises(MalformedRecordsError):
        list(record_times(header._replace(record_count=2), batch))
