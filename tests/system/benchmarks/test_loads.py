"""Every load, tiny, so that none rots. What a load measures is never asserted, only that it measures something."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.compare.loads import CORES_LOAD_NAMES, LOAD_NAMES, build_cores_loads, build_loads
from benchmarks.compare.loads.consume_java import has_consumer_groups
from benchmarks.compare.measure import Load, Scale
from benchmarks.compare.target import MillstreamCores, Target, TargetFactory, start
from tools import apache_kafka

_TINY = Scale(0.0005)


@pytest.mark.parametrize("name", LOAD_NAMES)
def test_load_yields_every_measure_it_names(name: str, target: Target, fresh_target: TargetFactory) -> None:
    if (name.endswith("-java") or name == "transactions") and apache_kafka.installed() is None:
        pytest.skip("Kafka's Java tools are not in .cache (python tools/apache_kafka.py fetches them)")
    loads = {each.name: each for each in build_loads(fresh_target, with_groups=has_consumer_groups(target))}

    check(loads[name], target)


def check(load: Load, target: Target) -> None:
    found = load.run(target, _TINY)
    measures = {measure.key: measure for measure in load.measures}
    assert set(found) == set(measures)
    assert all(math.isfinite(value) for value in found.values())
    assert all(value >= 0 or not measures[key].comparable for key, value in found.items())


def test_names_match_the_loads(fresh_target: TargetFactory) -> None:
    assert tuple(load.name for load in build_loads(fresh_target, with_groups=True)) == LOAD_NAMES


def test_loads_of_two_cores(tmp_path: Path) -> None:
    target = MillstreamCores(tmp_path)
    start(target)
    try:
        loads = build_cores_loads()
        assert tuple(load.name for load in loads) == CORES_LOAD_NAMES
        for load in loads:
            check(load, target)
    finally:
        target.stop()
