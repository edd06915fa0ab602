"""The machine's own limit runs without any broker."""

from pathlib import Path

from benchmarks.compare.machine_limit import LIMIT_TITLES, measure_limits
from benchmarks.compare.measure import Scale


def test_every_limit_is_measured(tmp_path: Path) -> None:
    limits = measure_limits(tmp_path, Scale(0.001))
    assert set(limits) == set(LIMIT_TITLES)
    assert all(value > 0 for value in limits.values())
    assert list(tmp_path.iterdir()) == []
