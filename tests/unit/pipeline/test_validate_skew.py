"""Hot keys: shares, and what spreading does, from counts."""

import pytest

from millstream.pipeline.skew import Counted, KeyLoad, Load, Measure, report


def counted(partitions: dict[int, int], keys: dict[str, dict[int, int]]) -> Counted:
    return Counted(
        "orders",
        {number: Load(records, 10 * records) for number, records in partitions.items()},
        [KeyLoad(key.encode(), {at: Load(n, 10 * n) for at, n in loads.items()}) for key, loads in keys.items()],
        distinct_keys=1000,
    )


def test_one_hot_key_is_found_and_spread() -> None:
    found = report(counted({0: 700, 1: 100, 2: 100, 3: 100}, {"big": {0: 600}, "small": {1: 10}}), Measure.RECORDS)
    big, small = found.keys
    assert (big.key, big.home, big.share, big.is_hot) == (b"big", 0, 0.6, True)
    assert big.share_of_home == pytest.approx(6 / 7)
    assert not small.is_hot
    assert found.largest == 0.7 and found.fair == 0.25
    over_two, over_four = found.spreads
    assert (over_two.over, over_four.over) == (2, 4)
    assert over_two.shares == pytest.approx({0: 0.4, 1: 0.4, 2: 0.1, 3: 0.1})
    assert over_four.shares == pytest.approx(dict.fromkeys(range(4), 0.25))
    assert "Spreading 1 hot key over 4 partitions reduces the largest from 70.0% to 25.0%" in found.advice


def test_spreading_goes_round_at_the_last_partition() -> None:
    found = report(counted({0: 10, 1: 10, 2: 80}, {"big": {2: 70}}), Measure.BYTES, [2])
    assert found.spreads[0].shares == pytest.approx({0: 0.45, 1: 0.1, 2: 0.45})


def test_even_topics_and_topics_without_hot_keys() -> None:
    even = report(counted({0: 100, 1: 101}, {"a": {0: 1}}), Measure.RECORDS)
    assert "Nothing to do" in even.advice
    crowded = report(counted({0: 900, 1: 100}, {"a": {0: 2}}), Measure.RECORDS)
    assert "No single key is hot" in crowded.advice


def test_records_without_a_key_cannot_be_spread() -> None:
    found = report(
        Counted("t", {0: Load(90, 90), 1: Load(10, 10)}, [KeyLoad(None, {0: Load(80, 80)})], 1), Measure.RECORDS
    )
    assert not found.keys[0].is_hot and found.spreads[0].largest == 0.9


def test_a_single_partition_has_nothing_to_spread_over() -> None:
    found = report(counted({0: 100}, {"a": {0: 90}}), Measure.RECORDS)
    assert found.spreads == () and found.largest == 1.0


def test_a_key_that_moved_is_counted_where_it_is() -> None:
    """After partitions were added a key has two homes; it is taken out of both, and spread from the larger."""
    found = report(counted({0: 60, 1: 40}, {"a": {0: 50, 1: 30}}), Measure.RECORDS, [2])
    assert found.keys[0].home == 0 and found.keys[0].share == 0.8
    assert found.spreads[0].shares == pytest.approx({0: 0.5, 1: 0.5})
