from struct import pack

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.batch import (
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    has_valid_checksum,
    is_plausible,
    iterate_headers,
    read_header,
    seal,
)

FIELDS = {
    "base_offset": st.integers(0, (1 << 63) - 1),
    "leader_epoch": st.integers(-1, (1 << 31) - 1),
    "attributes": st.integers(0, 0x7F),
    "last_offset_delta": st.integers(0, (1 << 31) - 1),
    "base_timestamp": st.integers(-1, (1 << 63) - 1),
    "max_timestamp": st.integers(-1, (1 << 63) - 1),
    "producer_id": st.integers(-1, (1 << 63) - 1),
    "producer_epoch": st.integers(-1, (1 << 15) - 1),
    "base_sequence": st.integers(-1, (1 << 31) - 1),
    "record_count": st.integers(0, (1 << 31) - 1),
}
headers = st.fixed_dictionaries(FIELDS)


def build(fields: dict[str, int], records: bytes = b"records") -> bytearray:
    header = BatchHeader(length=HEADER_SIZE - 12 + len(records), magic=2, crc=0, **fields)
    data = bytearray(HEADER.pack(*header) + records)
    seal(data, 0, len(data))
    return data


def test_layout_is_kafkas() -> None:
    data = bytes(
        pack(">q", 5) + pack(">i", 49) + pack(">i", 2) + b"\x02" + pack(">I", 7) + pack(">h", 0x3C) + pack(">i", 9)
        + pack(">qq", 100, 200) + pack(">q", 11) + pack(">h", 12) + pack(">i", 13) + pack(">i", 10)
    )  # fmt: skip
    header = read_header(data)
    assert header == (5, 49, 2, 2, 7, 0x3C, 9, 100, 200, 11, 12, 13, 10)
    assert (header.size, header.last_offset, header.codec) == (61, 14, 4)
    assert header.is_control
    assert header.is_transactional
    assert header.has_log_append_time


@given(headers, st.binary(max_size=50))
def test_a_sealed_batch_has_a_valid_checksum(fields: dict[str, int], records: bytes) -> None:
    data = build(fields, records)
    header = read_header(data)
    assert is_plausible(header)
    assert has_valid_checksum(data, 0, header)
    assert header.crc == crc32c(data[21:])
    assert {name: getattr(header, name) for name in fields} == fields


@given(headers, st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_bit_shows(fields: dict[str, int], at: int, flip: int) -> None:
    data = build(fields)
    at = 21 + at % (len(data) - 21)
    data[at] ^= flip
    assert not has_valid_checksum(data, 0, read_header(data))


@given(st.lists(headers, max_size=5), st.binary(max_size=30), st.integers(0, 400))
def test_iteration_yields_whole_batches_only(batches: list[dict[str, int]], noise: bytes, cut: int) -> None:
    parts = [build(fields) for fields in batches]
    whole = b"".join(parts)
    found = list(iterate_headers(whole))
    assert [position for position, _ in found] == [len(parts[0]) * at for at in range(len(parts))]
    torn = whole[:cut]
    assert [header for _, header in iterate_headers(torn)] == [header for _, header in found][: len(torn) // 68]


@given(st.binary(max_size=300))
def test_junk_never_raises(data: bytes) -> None:
    list(iterate_headers(data))
