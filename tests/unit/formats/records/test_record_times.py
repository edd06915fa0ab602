import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import HEADER, HEADER_SIZE, BatchHeader
from millstream.formats.records.compression import Codec, compress
from millstream.formats.records.opening import WIDEST, BeyondLimitsError, OpeningLimits, first_record_at, latest_record


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


@given(
    st.lists(st.integers(-(1 << 40), 1 << 40) | st.integers(-3, 3), min_size=1, max_size=20),
    st.sampled_from(list(Codec)),
    st.binary(),
    st.integers(-10, 10_010) | st.integers(-(1 << 41), 1 << 41),
    st.integers(95, 125),
)
def test_the_first_record_at_a_time_is_found(
    deltas: list[int], codec: Codec, value: bytes, wanted: int, least: int
) -> None:
    header, batch = build(deltas, codec, value)
    times = [(100 + at, 5000 + delta) for at, delta in enumerate(deltas)]
    right = [time for time in times if time[1] >= wanted and time[0] >= least]
    assert first_record_at(header, batch, wanted, least, WIDEST) == (right[0] if right else None)
    assert latest_record(header, batch, WIDEST) == max(times, key=lambda time: (time[1], -time[0]))


def test_log_append_time_is_the_batchs() -> None:
    header, batch = build([0, 7], Codec.NONE, b"v", attributes=0x08)
    assert first_record_at(header, batch, 9999, 0, WIDEST) == (100, 9999)
    assert first_record_at(header, batch, 9999, 101, WIDEST) == (101, 9999)
    assert first_record_at(header, batch, 10_000, 0, WIDEST) is None
    assert latest_record(header, batch, WIDEST) == (100, 9999)


@given(st.binary(max_size=60), st.sampled_from(list(Codec)), st.integers(1, 5))
def test_junk_is_told(junk: bytes, codec: Codec, count: int) -> None:
    header = BatchHeader(0, HEADER_SIZE - 12 + len(junk), 0, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count)
    try:
        latest_record(header, HEADER.pack(*header) + junk, WIDEST)
    except KafkaError:
        pass


def test_fewer_records_than_promised() -> None:
    header, batch = build([0], Codec.NONE, b"value")
    with pytest.raises(KafkaError):
        latest_record(header._replace(record_count=2), batch, WIDEST)
    with pytest.raises(KafkaError):
        first_record_at(header._replace(record_count=2), batch, 1 << 60, 0, WIDEST)


@pytest.mark.parametrize("limits", [OpeningLimits(1000, 1000), OpeningLimits(1 << 20, 2)])
def test_more_than_the_limits(limits: OpeningLimits) -> None:
    header, batch = build([0, 1, 2], Codec.ZSTD, bytes(500))
    with pytest.raises(BeyondLimitsError):
        first_record_at(header, batch, 0, 0, limits)
    with pytest.raises(BeyondLimitsError):
        latest_record(header, batch, limits)
