"""The plan of `serve --cores` with another number of nodes: which log goes to which node."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.cores.resizing import Move, plan_moves


@st.composite
def folders(draw: st.DrawFn) -> list[set[str]]:
    """Up to four nodes; a partition may have several replicas on the machine, in different folders."""
    count = draw(st.integers(1, 4))
    held: list[set[str]] = [set() for _ in range(count)]
    for topic in draw(st.lists(st.sampled_from(["a", "b-1", "c.d"]), unique=True)):
        for number in range(draw(st.integers(1, 8))):
            for index in draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2)):
                held[index].add(f"{topic}-{number}")
    return held


def after(held: list[set[str]], moves: list[Move], count: int) -> list[set[str]]:
    """The folders after the renames; a log whose folder has one already is not renamed."""
    now = [set(each) for each in held] + [set() for _ in range(count - len(held))]
    for each in moves:
        assert each.directory in now[each.source]
        if each.directory not in now[each.target]:
            now[each.source].remove(each.directory)
            now[each.target].add(each.directory)
    return now


@given(folders(), st.integers(1, 5))
def test_nothing_is_lost_and_nothing_is_left(held: list[set[str]], count: int) -> None:
    moves = plan_moves(held, count)
    now = after(held, moves, count)
    assert sorted(name for each in now for name in each) == sorted(name for each in held for name in each)
    for index, left in enumerate(now):
        if index >= count:
            # Only what all others have too.
            assert all(all(name in other for other in now[:count]) for name in left)
    assert {each.directory for each in moves} <= set().union(*held)


@given(folders(), st.integers(1, 5))
def test_new_nodes_get_their_share_and_old_ones_get_nothing(held: list[set[str]], more: int) -> None:
    count = len(held) + more
    moves = plan_moves(held, count)
    assert all(each.source < len(held) <= each.target for each in moves)
    now = after(held, moves, count)
    fullest = max(len(each) for each in now[: len(held)])
    emptiest = min(now[len(held) :], key=len)
    donor = next(each for each in now[: len(held)] if len(each) == fullest)
    assert fullest - len(emptiest) < 2 or not donor - emptiest


def test_the_partitions_of_a_topic_are_spread() -> None:
    held = [{f"{topic}-{number}" for topic in "abc" for number in range(4)}]
    now = after(held, plan_moves(held, 2), 2)
    for topic in "abc":
        assert [sum(name.startswith(topic) for name in each) for each in now] == [2, 2]


def test_the_same_number_moves_nothing() -> None:
    assert plan_moves([{"a-0"}, {"a-1", "a-2", "a-3"}], 2) == []
