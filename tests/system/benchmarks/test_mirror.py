"""The benchmark of mirroring, tiny, so that it does not rot. What it measures is never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import mirror
from tools import kafka_libraries
from tools.apache_kafka import ToolchainMissingError


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, list[dict[str, object]]]:
    output = tmp_path / "mirror.json"
    assert mirror.main(["--rounds", "1", "--scale", "0.002", "--output", str(output), *arguments]) == 0
    return capsys.readouterr().out, json.loads(output.read_text())


def test_a_link_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, values = run(tmp_path, capsys, "--only", "link")
    assert "| link |" in table
    assert values[0]["mirror_mb_per_s"] > 0  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_mirror_maker_is_measured_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        kafka_libraries.connect()
    except ToolchainMissingError as error:
        pytest.skip(str(error))
    table, values = run(tmp_path, capsys)
    assert [each["copier"] for each in values] == list(mirror.COPIERS)
    assert "link beside MirrorMaker 2" in table
