"""The micro benchmarks run, tiny, so that they cannot rot."""

import pytest

from benchmarks.micro import dispatch


def test_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch.main(count=20)
    assert "produce, one batch of 100 bytes" in capsys.readouterr().out
