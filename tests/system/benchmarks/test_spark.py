"""The comparison with Spark's own connector: its report, and all its loads, tiny, so that they cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.spark.__main__ import main
from benchmarks.spark.cluster_size import GOALS, STEPS, cores
from benchmarks.spark.loads import EXACTLY_ONCE, build
from benchmarks.spark.report import Report
from benchmarks.spark.result import Result
from benchmarks.spark.stage import OURS, SPARKS
from tests.repository import REPOSITORY
from tools import spark_kafka_connector
from tools.apache_kafka import ToolchainMissingError


def rates(load: str, ours: list[float], sparks: list[float]) -> list[Result]:
    found = [Result(load, "rows/s", OURS, value) for value in ours]
    return found + [Result(load, "rows/s", SPARKS, value) for value in sparks]


def test_a_report_has_medians_and_keeps_what_other_runs_found(tmp_path: Path) -> None:
    first = Report(tmp_path)
    first.add(rates("sink 100 B", [10.0, 30.0, 20.0], [10.0, 10.0, 5.0]), "first run")
    second = Report(tmp_path)
    second.add(rates("source 100 B plain", [3.0], [2.0]), "second run")
    second.add([Result("micro-batch", "ms", EXACTLY_ONCE, 7.0, more_is_better=False)], "second run")
    order = ["source 100 B plain", "sink 100 B", "micro-batch"]
    assert second.rows(order) == [
        ("source 100 B plain", "rows/s", "3", "", "2", "1.50"),
        ("sink 100 B", "rows/s", "20", "", "10", "2.00"),
        ("micro-batch", "ms, less is better", "", "7", "", ""),
    ]
    written = second.write_table(order)
    assert written is not None
    text = written.read_text()
    assert text.index("- second run") < text.index("- first run")  # in the order of the rows
    again = Report(tmp_path)
    again.add(rates("sink 100 B", [1.0], [1.0]), "third run")
    assert [row[-1] for row in again.rows(order)] == ["1.50", "1.00", ""]


def test_a_cluster_is_sized_from_processor_times(tmp_path: Path) -> None:
    assert cores(3.5, 10.0) == 50
    assert cores(0.1, 1.0) == 1
    report = Report(tmp_path)
    report.add([Result("sink 1 KB: processor", "s per million", OURS, value) for value in (1.0, 4.2, 7.0)], "run")
    report.write_table([])
    rows = (tmp_path / "sizing.md").read_text().splitlines()
    assert [row.split(" | ")[1] for row in rows if row.startswith("| sink")] == ["1 × 4.20 s ÷ 0.7 = **6**"]
    assert [row.split(" | ")[1] for row in rows if row.startswith("| table")] == ["not measured"]


def test_each_step_of_the_sizing_is_a_load() -> None:
    names = {load.name for load in build(1.0)}
    assert {step.load.format(size=goal.size) for step in STEPS for goal in GOALS} <= names


def test_a_load_that_does_not_exist_is_refused_before_anything_starts() -> None:
    application = typer.Typer()
    application.command()(main)
    result = CliRunner().invoke(application, ["--only", "nonsense"])
    assert result.exit_code == 2
    assert "micro-batch" in result.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_load_runs(tmp_path: Path) -> None:
    try:
        spark_kafka_connector.jars()
    except ToolchainMissingError as reason:
        pytest.skip(f"Spark's Kafka connector cannot be had here: {reason}")
    arguments = ["--rounds", "1", "--scale", "0.001", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark", *arguments], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found = [each["results"] for each in json.loads((tmp_path / "results.json").read_text())]
    names = {results[0]["load"] for results in found}
    assert all(any(name.startswith(load.name) for name in names) for load in build(1.0))
    assert all(each["value"] > 0 for results in found for each in results)
    assert (tmp_path / "results.md").read_text().count("\n| ") == len(found)
