"""The quick reader of keys and values against the whole codec."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import WIDEST, iterate_key_values
from millstream.formats.records.record import Record, build_batch

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
