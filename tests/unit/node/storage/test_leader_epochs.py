from hypothesis import given
from hypothesis import strategies as st

from millstream.node.storage.log.leader_epochs import LeaderEpochs

writes = st.lists(st.integers(0, 12), min_size=1, max_size=40).map(sorted)


def of(epochs: list[int]) -> LeaderEpochs:
    """One record per entry, written in that epoch."""
    known = LeaderEpochs()
    for offset, epoch in enumerate(epochs):
        known.assign(epoch, offset)
    return known


def test_an_epoch_without_records_gives_way() -> None:
    known = LeaderEpochs()
    known.assign(1, 0)
    known.assign(2, 5)
    known.assign(4, 5)
    assert known.entries() == [(1, 0), (4, 5)]
    assert not known.assign(3, 9)
    assert known.latest == 4


@given(writes, st.integers(-1, 14))
def test_end_offsets_agree_with_a_list(epochs: list[int], asked: int) -> None:
    known = of(epochs)
    found = known.end_offset(asked, len(epochs))
    if asked == -1 or asked > epochs[-1]:
        assert found == (-1, -1)
    elif asked < epochs[0]:
        assert found == (asked, 0)
    else:
        floor = max(epoch for epoch in epochs if epoch <= asked)
        assert found == (floor, sum(epoch <= floor for epoch in epochs))
    for offset, epoch in enumerate(epochs):
        assert known.epoch_of(offset) == epoch


@given(writes, st.integers(0, 40))
def test_truncation_from_the_end(epochs: list[int], end: int) -> None:
    known = of(epochs)
    changed = known.truncate_from_end(end)
    assert known.entries() == of(epochs[:end]).entries()
    assert changed == (len(set(epochs[:end])) != len(set(epochs)))
    assert known.latest == (epochs[min(end, len(epochs)) - 1] if end else -1)


@given(writes, st.integers(0, 39))
def test_truncation_from_the_start(epochs: list[int], start: int) -> None:
    start = min(start, len(epochs) - 1)
    known = of(epochs)
    known.truncate_from_start(start)
    assert known.epoch_of(start) == epochs[start]
    assert known.entries()[0] == (epochs[start], start)
    assert known.end_offset(epochs[-1], len(epochs)) == (epochs[-1], len(epochs))
