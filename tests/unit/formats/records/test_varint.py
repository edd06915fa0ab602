"""Zig-zag varints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.varint import (
    MAX_INT_BYTES,
    MAX_LONG_BYTES,
    MalformedRecordError,
    append_varint,
    read_varint,
)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (63, b"\x7e"),
        (-64, b"\x7f"),
        (64, b"\x80\x01"),
        ((1 << 31) - 1, b"\xfe\xff\xff\xff\x0f"),
        (-(1 << 31), b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_known_values_are_encoded_and_decoded(value: int, encoded: bytes) -> None:
    out = bytearray()
    append_varint(out, value)
    assert out == encoded
    assert read_varint(encoded, 0) == (value, len(encoded))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=3))
def test_longs_come_back(value: int, before: bytes) -> None:
    out = bytearray(before)
    append_varint(out, value)
    assert read_varint(bytes(out), len(before), MAX_LONG_BYTES) == (value, len(out))


@pytest.mark.parametrize(
    ("data", "max_bytes"),
    [
        (b"", MAX_INT_BYTES),
        (b"\x80", MAX_INT_BYTES),
        (b"\x80" * 5 + b"\x00", MAX_INT_BYTES),
        (b"\xff\xff\xff\xff\x7f", MAX_INT_BYTES),
        (b"\xff" * 10, MAX_LONG_BYTES),
        (b"\xff" * 9 + b"\x7f", MAX_LONG_BYTES),
    ],
)
def test_numbers_without_end_or_too_large(data: bytes, max_bytes: int) -> None:
    with pytest.raises(MalformedRecordError):
        read_varint(data, 0, max_bytes)
