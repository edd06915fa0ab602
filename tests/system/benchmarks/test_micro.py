"""The micro benchmarks run, tiny, so that they cannot rot."""

import pytest

from benchmarks import fairness
from benchmarks.micro import dispatch


def test_the_dispatch_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch.main(count=20)
    assert "produce, one batch of 100 bytes" in capsys.readouterr().out


def test_the_fairness_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    fairness.main(["--seconds", "0.2", "--connections", "3", "--pipelined", "2"])
    assert "ratio_p99" in capsys.readouterr().out
