"""Kafka Streams with both group protocols in a cluster of three nodes: applications and brokers are killed.

With exactly_once_v2 every word is counted exactly once, whatever died. With at_least_once nothing is lost: a count may
be too high after a kill, the highest number may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from millstream.testing import EmbeddedCluster
from tests import waiting
from tests.system.streams.application import COUNTS, HIGHEST, INPUT, WORDS, Application, Output, Words
from tests.topics import make_topic
from tools import apache_kafka

PARTITIONS = 4
until = partial(waiting.until, timeout_s=waiting.LONG_TIMEOUT_SECONDS)
SETTINGS = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.session.timeout.ms": 1000,
    "group.streams.session.timeout.ms": 6000,
    "group.streams.min.heartbeat.interval.ms": 500,
    "group.streams.heartbeat.interval.ms": 1000,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        for topic in (INPUT, COUNTS, HIGHEST):
            make_topic(running, topic, PARTITIONS)
        yield running


class Instances:
    """The instances of one application."""

    def __init__(self, cluster: EmbeddedCluster, directory: Path, guarantee: str, protocol: str) -> None:
        self._bootstrap = cluster.bootstrap_servers
        self._directory = directory
        self._settings = {
            "processing.guarantee": guarantee,
            "group.protocol": protocol,
            "replication.factor": "3",
            "producer.transaction.timeout.ms": "10000",
        }
        self.running: dict[int, Application] = {}

    def start(self, number: int) -> Application:
        try:
            made = Application(self._bootstrap, self._directory / str(number), settings=self._settings)
        except apache_kafka.ToolchainMissingError as reason:
            pytest.skip(f"Kafka Streams: {reason}")
        self.running[number] = made
        return made

    def kill(self, number: int) -> None:
        self.running.pop(number).kill()

    def tasks(self) -> list[str]:
        return sorted(task for each in self.running.values() for task in each.ask("tasks"))

    def close(self) -> None:
        for each in self.running.values():
            each.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("guarantee", "protocol"),
    [("exactly_once_v2", "streams"), ("at_least_once", "streams"), ("exactly_once_v2", "classic")],
)
def test_applications_and_brokers_are_killed(
    cluster: EmbeddedCluster, tmp_path: Path, guarantee: str, protocol: str
) -> None:
    words = Words(cluster.bootstrap_servers)
    instances = Instances(cluster, tmp_path, guarantee, protocol)
    counts = Output(cluster.bootstrap_servers, COUNTS, range(PARTITIONS))
    highest = Output(cluster.bootstrap_servers, HIGHEST, range(PARTITIONS))
    try:
        instances.start(1).await_state("RUNNING")
        instances.start(2).await_state("RUNNING")
        words.send(400)
        until(lambda: len(counts.read()) == len(WORDS), "nothing was counted")

        instances.kill(1)
        words.send(400)
        instances.start(3).await_state("RUNNING")
        instances.start(1)

        for number in sorted(cluster.brokers):
            cluster.kill(number)
            words.send(200)
            cluster.start(number)
            words.send(200)

        instances.kill(2)
        words.send(400)

        until(lambda: highest.read() == words.counts, "numbers are missing")
        if guarantee == "exactly_once_v2":
            until(lambda: counts.read() == words.counts, "the counts are not right")
            assert all(values == list(range(1, len(values) + 1)) for values in counts.history.values())
        else:
            until(
                lambda: all(counts.read()[word] >= count for word, count in words.counts.items()), "counts are missing"
            )
        until(
            lambda: instances.tasks() == [f"{at}_{n}" for at in (0, 1) for n in range(PARTITIONS)], "tasks are missing"
        )
        for instance in instances.running.values():
            instance.close()
    finally:
        instances.close()
        counts.close()
        highest.close()
