"""The benchmark of the cleaner runs, tiny, so that it does not rot."""

from pathlib import Path

import pytest

from benchmarks.micro import cleaner


@pytest.mark.parametrize("load", cleaner.WORKLOADS, ids=lambda load: load.name)
def test_the_benchmark_of_the_cleaner_runs(load: cleaner.Workload, tmp_path: Path) -> None:
    found = cleaner.measure(load, 0.2, str(tmp_path / "data"))
    assert found["MB/s"] > 0
    assert 5 < found["kept %"] < 95
