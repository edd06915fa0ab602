"""The quick reader of keys and values against the whole codec."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.batch import HEADER_SIZE, iterate_headers, read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import WIDEST, iterate_key_values
from millstream.formats.records.record import Record, build_batch
from millstream.formats.records.varint import MalformedRecordError

BYTES = st.none() | st.binary(max_size=70) | st.binary(min_size=60, max_size=300)
HEADERS = st.lists(st.tuples(st.text("abcä", max_size=5), BYTES), max_size=2).map(tuple)
RECORDS = st.lists(
    st.builds(Record, BYTES, BYTES, HEADERS, st.integers(0, 1 << 41), st.just(-1)), min_size=1, max_size=20
)


@given(st.lists(RECORDS, min_size=1, max_size=3), st.sampled_from(list(Codec)))
def test_same_as_the_whole_codec(batches: list[list[Record]], codec: Codec) -> None:
    data = b"".join(build_batch(records, codec=codec) for records in batches)
    found = [list(iterate_key_values(header, data[position:], WIDEST)) for position, header in iterate_headers(data)]
    assert found == [[(record.key, record.value) for record in records] for records in batches]


def test_damaged_records_never_give_more_bytes_than_there_are() -> None:
    """Records that overlap could have the whole batch as their key, each of them."""
    random = Random(7)
    for _ in range(2000):
        batch = build_batch([Record(random.randbytes(random.randrange(30)), random.randbytes(200)) for _ in range(20)])
        for _ in range(random.randrange(1, 40)):
            batch[random.randrange(HEADER_SIZE, len(batch))] = random.choice((0, 1, 3, 0x7F, 0x80, 0xFF))
        found = 0
        try:
            for key, value in iterate_key_values(read_header(batch), batch, WIDEST):
                found += len(key or b"") + len(value or b"")
        except (IndexError, MalformedRecordError):
            pass
        assert found <= len(batch)


@pytest.mark.parametrize("at", [HEADER_SIZE, HEADER_SIZE + 4, HEADER_SIZE + 6])
def test_a_length_beyond_the_record_is_an_error(at: int) -> None:
    batch = build_batch([Record(b"k", b"v"), Record(b"k", b"v")])
    assert list(iterate_key_values(read_header(batch), batch, WIDEST)) == [(b"k", b"v")] * 2
    batch[at] = 0x7E
    with pytest.raises(IndexError):
        list(iterate_key_values(read_header(batch), batch, WIDEST))
