"""The arithmetic of measurements."""

import pytest

from millstream.cli.bench.load import Measured, percentile


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (99.9, 100), (100, 100)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile(list(range(1, 101)), percent) == expected


def test_percentile_of_one_value() -> None:
    assert percentile([7.0], 50) == percentile([7.0], 99.9) == 7.0


def test_rates_are_computed_from_the_time() -> None:
    measured = Measured("produce", 1000, 2_000_000, 2.0)
    assert (measured.records_per_second, measured.megabytes_per_second) == (500, 1)
    assert measured.percentiles() == {}
