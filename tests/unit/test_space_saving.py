"""The space-saving sketch: its promises, against exact counts."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millstream.common.space_saving import SpaceSaving


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=400), st.integers(1, 12))
def test_what_it_says_is_at_most_its_error_too_much(stream: list[tuple[int, int]], capacity: int) -> None:
    sketch: SpaceSaving[int] = SpaceSaving(capacity, 1e12)
    exact: Counter[int] = Counter()
    for key, weight in stream:
        sketch.add(key, weight, 0.0)
        exact[key] += weight
    total = sum(exact.values())
    assert len(sketch) <= capacity
    assert sketch.total(0.0) == total
    top = sketch.top(capacity, 0.0)
    assert [row.weight for row in top] == sorted((row.weight for row in top), reverse=True)
    for row in top:
        assert row.weight - row.error <= exact[row.key] <= row.weight
        assert row.error <= total / capacity
    kept = {row.key for row in top}
    assert all(key in kept for key, weight in exact.items() if weight > total / capacity)


def test_weights_fade_by_half_in_a_half_life() -> None:
    sketch: SpaceSaving[str] = SpaceSaving(4, 10.0)
    sketch.add("a", 8, 100.0)
    sketch.add("b", 1, 120.0)
    assert sketch.estimate("a", 120.0).weight == 2.0
    assert sketch.estimate("b", 130.0).weight == 0.5
    assert sketch.total(120.0) == 3.0
    assert sketch.estimate("c", 120.0).weight == 0.0


def test_a_long_life_and_a_long_silence() -> None:
    sketch: SpaceSaving[int] = SpaceSaving(8, 0.01)
    chance = random.Random(3)
    for step in range(20_000):
        sketch.add(chance.choice((*[1] * 100, *range(100))), 1.0, step / 1000)
    assert sketch.top(1, 20.0)[0].key == 1
    sketch.add(7, 1.0, 1e9)
    assert sketch.total(1e9) == 1.0
    assert sketch.top(1, 1e9)[0].key == 7
