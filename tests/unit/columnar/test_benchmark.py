"""The micro benchmark runs, tiny, so that it cannot rot."""

import pytest

from benchmarks.micro import columnar


def test_the_columnar_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    columnar.main(["--tiny"])
    assert "100 B none seven columns" in capsys.readouterr().out
