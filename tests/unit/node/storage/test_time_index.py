from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from millstream.node.storage.index import time_index
from millstream.node.storage.index.time_index import TimeIndex

batches = st.lists(st.integers(0, 200), max_size=60)


def make(timestamps: list[int]) -> TimeIndex:
    """An entry after each batch of one record: the greatest timestamp so far."""
    index = TimeIndex()
    best = (-1, 0)
    for offset, timestamp in enumerate(timestamps):
        best = max(best, (timestamp, offset), key=lambda pair: pair[0])
        index.append(*best)
    return index


def test_bytes_are_kafkas() -> None:
    index = TimeIndex()
    index.append(1_700_000_000_000, 5)
    index.append(1_700_000_000_000, 6)
    index.append(1_700_000_000_009, 7)
    assert index.to_bytes() == pack(">qiqi", 1_700_000_000_000, 5, 1_700_000_000_009, 7)
    assert time_index.last_entry(index.to_bytes()) == (1_700_000_000_009, 7)


@given(batches, st.integers(0, 210))
def test_lookup_never_passes_the_first_late_enough_record(timestamps: list[int], wanted: int) -> None:
    index = make(timestamps)
    data = index.to_bytes()
    assert TimeIndex(data).to_bytes() == data
    assert time_index.is_sound(data)
    assert time_index.is_sound(memoryview(data))
    first = next((offset for offset, timestamp in enumerate(timestamps) if timestamp >= wanted), None)
    found = index.lookup(wanted)
    assert time_index.lookup(memoryview(data), wanted) == found
    if first is not None:
        assert found <= first


@given(batches, st.integers(0, 60))
def test_truncation_keeps_what_is_before(timestamps: list[int], at: int) -> None:
    index = make(timestamps)
    index = index.before(at)
    assert index.to_bytes() == make(timestamps[:at]).to_bytes()


@given(st.binary(max_size=100))
def test_soundness_of_junk_never_raises(data: bytes) -> None:
    time_index.is_sound(data)
    time_index.last_entry(data)
