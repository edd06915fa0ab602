"""`pipeline status` of a shared query: a line for each output, and a table of expectations."""

from dataclasses import asdict
from typing import Any

import pytest

from millstream.cli.pipeline.status import _show_one
from tests.unit.pipeline.shared_progress import SHARED


def document(phase: str) -> dict[str, Any]:
    run = {"pipeline": "shop", "phase": phase, "file": "shop.yaml", "pid": 1, "host": "h", "started_ms": 1}
    return {**run, "ended_ms": None, "error": None, "queries": [{**asdict(SHARED), "lag": 8_765}]}


def test_status_shows_outputs_and_expectations(capsys: pytest.CaptureFixture[str]) -> None:
    _show_one(document("running"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first, second, letters = lines[3:6]
    assert first == ["sales", "7", "1,500", "ms", "4,200", "67", "3,100", "8,765", "0"]
    assert second == ["lake", "(same", "query)", "7", "4,199"]
    assert letters == ["checked", "(dead", "letters)", "(same", "query)", "7", "701", "701"]
    assert lines[6:] == [
        ["expectation", "of", "action", "rows", "not", "met", "share"],
        ["has_price", "priced", "drop", "4,200", "21", "0.50", "%"],
        ["positive", "sink", "sales", "warn", "4,200", "0", "0.00", "%"],
    ]
