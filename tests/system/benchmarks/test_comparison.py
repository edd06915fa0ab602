"""Medians, ratios and verdicts, and the three ways they are shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.compare.chart import write_chart
from benchmarks.compare.comparison import OURS, THEIRS, Comparison, as_json, rows
from benchmarks.compare.loads.consume_librdkafka import ConsumeLibrdkafka
from benchmarks.compare.measure import Load, Measure
from benchmarks.compare.report import markdown, print_table


@pytest.fixture
def loads() -> list[Load]:
    return [ConsumeLibrdkafka()]


@pytest.fixture
def comparison(loads: list[Load]) -> Comparison:
    made = Comparison({"date": "today"}, "a machine", rounds=3, scale=1.0, limits={"copy_out": 2000.0})
    for ours, theirs in ((900.0, 700.0), (1000.0, 500.0), (2.0, 600.0)):
        made.add(loads[0], OURS, {"mb_s": ours, "cpu": 1.5})
        made.add(loads[0], THEIRS, {"mb_s": theirs, "cpu": 1.0})
    made.failures.append("round 1, something on kafka: it broke")
    return made


def test_rows_take_the_median_of_the_rounds(comparison: Comparison, loads: list[Load]) -> None:
    throughput, cpu = rows(comparison, loads)
    assert (throughput.ours, throughput.theirs) == (900.0, 600.0)
    assert throughput.ratio == 1.5
    assert throughput.met is True
    assert throughput.limit_share == 0.45
    assert cpu.met is False
    assert cpu.advantage == pytest.approx(1 / 1.5)


def test_rows_without_the_other_broker_have_no_ratio(loads: list[Load]) -> None:
    alone = Comparison({}, "", rounds=1, scale=1.0)
    alone.add(loads[0], OURS, {"mb_s": 10.0})
    (row,) = rows(alone, loads)
    assert (row.ratio, row.met, row.advantage) == (None, None, None)


@pytest.mark.parametrize(
    ("better", "ratio", "met"),
    [("higher", 0.7, True), ("higher", 0.69, False), ("lower", 0.7, True), ("lower", 0.71, False)],
)
def test_goal_is_met_at_the_goal(better: str, ratio: float, met: bool) -> None:
    assert Measure("k", "title", "unit", better, goal=0.7).met(ratio) is met  # type: ignore[arg-type]


def test_reports_show_ratio_verdict_and_failures(comparison: Comparison, loads: list[Load], tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=160)
    print_table(console, comparison, loads)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (printed, markdown(comparison, loads)):
        assert "1.50" in text
        assert "missed" in text
        assert "it broke" in text
    assert json.loads(json.dumps(as_json(comparison, loads)))["results"][0]["ratio"] == 1.5

    pytest.importorskip("matplotlib")
    write_chart(tmp_path / "chart.svg", comparison, loads)
    assert "times better than Apache Kafka" in (tmp_path / "chart.svg").read_text()


def test_what_cannot_be_compared_is_held_against_its_own_promise() -> None:
    class Cost(ConsumeLibrdkafka):
        measures = (Measure("cost", "cost", "%", "lower", at_most=10.0, comparable=False),)

    comparison = Comparison({}, "", rounds=1, scale=1.0)
    comparison.add(Cost(), OURS, {"cost": 7.0})
    comparison.add(Cost(), THEIRS, {"cost": -0.5})
    (row,) = rows(comparison, [Cost()])
    assert (row.ratio, row.advantage, row.met) == (None, None, True)
    assert "≤ 10 %" in markdown(comparison, [Cost()])
