"""The command: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.compare.__main__ import application
from benchmarks.compare.loads import CLUSTER_LOAD_NAMES, CORES_LOAD_NAMES, GROUPS, LOAD_NAMES
from benchmarks.compare.loads.security import SECURITY_LOAD_NAMES


def test_without_kafka_it_saves_our_numbers(tmp_path: Path) -> None:
    arguments = ["--no-kafka", "--scale", "0.0005", "--rounds", "1", "--warm-up-seconds", "0"]
    arguments += ["--only", "raw-transfer", "--only", "memory", "--output", str(tmp_path), "--work-dir", str(tmp_path)]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    saved = json.loads((tmp_path / "results.json").read_text())
    assert {each["load"] for each in saved["results"]} == {"raw-transfer", "memory"}
    assert saved["failures"] == []
    assert not list(tmp_path.glob("compare-*")), "the brokers' directory is removed"


def test_a_name_may_stand_for_several_loads() -> None:
    every = {*LOAD_NAMES, *CORES_LOAD_NAMES, *SECURITY_LOAD_NAMES, *CLUSTER_LOAD_NAMES}
    assert all(names and names <= every for names in GROUPS.values())
    assert not set(GROUPS) & every


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--no-kafka", "--no-millstream"]])
def test_it_refuses_what_makes_no_sense(arguments: list[str]) -> None:
    assert CliRunner().invoke(application, arguments).exit_code == 2
