"""The micro benchmark runs, so that it cannot rot."""

import runpy

from tests.repository import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "micro" / "log_append.py"


def test_the_benchmark_of_appends_runs() -> None:
    measure = runpy.run_path(str(SCRIPT))["measure"]
    assert all(microseconds > 0 for microseconds in measure(20).values())
