"""The sweeps of `python -m benchmarks.scaling`, tiny, and the page that they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.target import MillstreamCores, Target, start
from benchmarks.scaling.report import Series, as_json, markdown, write_charts
from benchmarks.scaling.sweeps import SWEEPS, Processes, Replicas, Sweep


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_sweep_yields_a_cost_at_its_first_points(sweep: Sweep, target: Target) -> None:
    for point in sweep.points[:2]:
        assert sweep.run(target, point, 0.2).value > 0


def test_replicas_of_a_cluster(cluster: ClusterTarget) -> None:
    assert Replicas().run(cluster, 2, 0.1).value > 0


def test_processes_of_a_node(tmp_path: Path) -> None:
    target = MillstreamCores(tmp_path, Processes.points[1])
    start(target)
    try:
        assert Processes().run(target, Processes.points[1], 0.2).value > 0
    finally:
        target.stop()


def test_the_page_and_its_charts_are_written(tmp_path: Path) -> None:
    series = Series("partitions", "Small requests", "partitions", "µs", [1, 10])
    for point, ours, theirs in ((1, 10.0, 20.0), (10, 12.0, 18.0)):
        series.add("millstream", point, ours)
        series.add("kafka", point, theirs)
    series.notes.append("a note")

    page = markdown("a machine", [series], {"partitions": "Some words."})
    write_charts(tmp_path, [series])

    assert "| 10 | 12 | 18 | 0.67 |" in page
    assert "Some words." in page and "- a note" in page
    assert (tmp_path / "scaling-partitions.svg").stat().st_size > 1000
    assert as_json("a machine", [series])["sweeps"][0]["values"]["kafka"]["10"] == [18.0]


def test_a_point_that_one_broker_could_not_reach() -> None:
    series = Series("connections", "Connections", "connections", "µs", [1, 5000])
    series.add("millstream", 5000, 10.0)

    assert "| 5,000 | 10 | – |" in markdown("a machine", [series], {})
