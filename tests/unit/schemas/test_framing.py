"""The prefix of registered records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.schemas import framing


@given(st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_the_schema_id_is_written_and_read(schema_id: int, payload: bytes) -> None:
    assert framing.split(framing.prefix(schema_id) + payload) == (schema_id, payload)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5).map(tuple), st.binary(max_size=20))
def test_message_indexes_are_written_and_read(indexes: tuple[int, ...], payload: bytes) -> None:
    assert framing.split_indexes(framing.indexes_prefix(indexes) + payload) == (indexes, payload)


def test_the_first_message_is_one_byte() -> None:
    assert framing.indexes_prefix((0,)) == b"\x00"
    assert framing.split_indexes(b"\x02\x00rest") == ((0,), b"rest")


@given(st.binary(max_size=12))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    for split in (framing.split, framing.split_indexes):
        try:
            split(noise)
        except framing.UnframedError as error:
            assert str(error)


def test_what_is_no_prefix_is_shown() -> None:
    with pytest.raises(framing.UnframedError, match="begins with 7b 22 61 22 3a, not with 00 and a schema id"):
        framing.split(b'{"a":1}')
    with pytest.raises(framing.UnframedError, match="begins with nothing"):
        framing.split(b"")
