"""Running brokers for the tiny benchmarks: Millstream always, Apache Kafka where it is in the cache already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare.cluster_target import ClusterFactory, ClusterTarget, KafkaCluster, MillstreamCluster
from benchmarks.compare.target import KafkaTarget, MillstreamTarget, Target, TargetFactory, start
from tools import apache_kafka


def _make(name: str, directory: Path) -> Target:
    if name == MillstreamTarget.name:
        return MillstreamTarget(directory)
    distribution = apache_kafka.installed()
    if distribution is None:
        pytest.skip("Apache Kafka is not in .cache (python tools/apache_kafka.py fetches it)")
    return KafkaTarget(directory, distribution)


@pytest.fixture(autouse=True)
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's Java tools start quickly. How fast they are then does not matter to a tiny load."""
    command = apache_kafka.KafkaDistribution.command

    def quick(kafka: apache_kafka.KafkaDistribution, main_class: str, *arguments: str, **options: Any) -> list[str]:
        return command(kafka, main_class, *arguments, **options | {"performance": apache_kafka.QUICK_START_OPTIONS})

    monkeypatch.setattr(apache_kafka.KafkaDistribution, "command", quick)


@pytest.fixture(scope="session")
def fresh_target(tmp_path_factory: pytest.TempPathFactory) -> TargetFactory:
    def make(name: str) -> Target:
        return _make(name, tmp_path_factory.mktemp(name))

    return make


@pytest.fixture(scope="session", params=["millstream", pytest.param("kafka", marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, fresh_target: TargetFactory) -> Iterator[Target]:
    started = fresh_target(request.param)
    start(started)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def fresh_cluster(tmp_path_factory: pytest.TempPathFactory) -> ClusterFactory:
    def make(name: str) -> ClusterTarget:
        directory = tmp_path_factory.mktemp(f"{name}-cluster")
        if name == MillstreamCluster.name:
            return MillstreamCluster(directory)
        distribution = apache_kafka.installed()
        if distribution is None:
            pytest.skip("Apache Kafka is not in .cache (python tools/apache_kafka.py fetches it)")
        return KafkaCluster(directory, distribution)

    return make


@pytest.fixture(scope="session", params=["millstream", pytest.param("kafka", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, fresh_cluster: ClusterFactory) -> Iterator[ClusterTarget]:
    started = fresh_cluster(request.param)
    try:
        start(started)
        yield started
    finally:
        started.stop()
