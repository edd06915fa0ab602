"""The command: what it writes, and what it refuses."""

from __future__ import annotations

import json
import sys
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nonsense"],
        ["--no-kafka", "--no-millstream"],
        ["--beside", "no-such-program", "--only", "latency"],
        ["--beside", sys.executable, "--only", "cores"],
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    assert CliRunner().invoke(application, arguments).exit_code == 2


def test_another_version_takes_the_place_of_kafka(tmp_path: Path) -> None:
    other = tmp_path / "millstream"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millstream "$@"\n')
    other.chmod(0o755)
    arguments = ["--beside", str(other), "--scale", "0.0005", "--rounds", "1", "--warm-up-seconds", "0"]
    arguments += ["--only", "raw-transfer", "--output", str(tmp_path), "--work-dir", str(tmp_path)]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    saved = json.loads((tmp_path / "results.json").read_text())
    assert all(each["median"]["other"] for each in saved["results"])
    assert "| Millstream | other |" in (tmp_path / "results.md").read_text()
