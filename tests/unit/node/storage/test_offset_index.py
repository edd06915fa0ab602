from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from millstream.node.storage.index import offset_index
from millstream.node.storage.index.offset_index import NO_ENTRY, OffsetIndex

entries = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 100_000)), max_size=60).map(
    lambda steps: [
        (sum(offset for offset, _ in steps[: at + 1]), sum(size for _, size in steps[: at + 1]))
        for at in range(len(steps))
    ]
)


def make(pairs: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in pairs:
        index.append(offset, position)
    return index


def test_bytes_are_kafkas() -> None:
    assert make([(7, 4100), (300, 9000)]).to_bytes() == pack(">iiii", 7, 4100, 300, 9000)
    assert OffsetIndex(pack(">iiii", 7, 4100, 300, 9000)).to_bytes() == pack(">iiii", 7, 4100, 300, 9000)


@given(entries, st.integers(0, 400_000))
def test_search_agrees_with_a_list(pairs: list[tuple[int, int]], wanted: int) -> None:
    before = max((pair for pair in pairs if pair[0] < wanted), default=NO_ENTRY)
    after = min((pair for pair in pairs if pair[0] >= wanted), default=NO_ENTRY)
    index = make(pairs)
    mapped = memoryview(index.to_bytes())
    assert index.around(wanted) == (before, after)
    assert offset_index.around(mapped, wanted) == (before, after)
    boundary = max((position for _, position in pairs if position <= wanted), default=0)
    assert index.boundary_at_or_before(wanted) == boundary
    assert offset_index.boundary_at_or_before(mapped, wanted) == boundary


@given(entries, st.integers(0, 400_000))
def test_truncation_keeps_what_is_before(pairs: list[tuple[int, int]], at: int) -> None:
    index = make(pairs)
    index = index.before(at)
    assert index.to_bytes() == make([pair for pair in pairs if pair[0] < at]).to_bytes()


@given(entries)
def test_a_written_index_is_sound(pairs: list[tuple[int, int]]) -> None:
    data = make(pairs).to_bytes()
    size = pairs[-1][1] + 1 if pairs else 0
    assert offset_index.is_sound(data, size)
    assert not offset_index.is_sound(data + b"\x00", size)
    if pairs:
        assert not offset_index.is_sound(data, size - 1), "a position past the end"
        assert not offset_index.is_sound(data + data[-8:], size), "an entry twice"


@given(st.binary(max_size=100), st.integers(0, 1 << 31))
def test_soundness_of_junk_never_raises(data: bytes, size: int) -> None:
    offset_index.is_sound(data, size)
