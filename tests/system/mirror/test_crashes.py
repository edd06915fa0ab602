"""Kills of nodes on both sides while records are written and mirrored: both sides are equal at the end."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from millstream.testing import EmbeddedCluster
from tests.mirrors import Mirror, fresh, make_source_topic, read_all
from tests.topics import await_topic
from tests.waiting import eventually, until

pytestmark = [
    pytest.mark.slow,  # six nodes that are killed and started again
    pytest.mark.timeout(400),
]
SETTINGS = {"default.replication.factor": 3, "min.insync.replicas": 2, "offsets.topic.num.partitions": 3}


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def here() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        yield running


class Writer:
    """Writes to all partitions until it is stopped, in transactions and without; counts what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self.acknowledged = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.002):
            value = f"value-{number}".ljust(200, ".")
            self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: object, message: object) -> None:
        self.acknowledged += error is None

    def await_more(self, count: int = 200) -> None:
        goal = self.acknowledged + count
        until(lambda: self.acknowledged >= goal, "the producer does not go on")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(120) == 0


def test_both_sides_are_equal_after_kills(source: EmbeddedCluster, here: EmbeddedCluster) -> None:
    mirror = Mirror(fresh("link"), source.bootstrap_servers, here.bootstrap_servers)
    topic = make_source_topic(mirror.source, fresh("crashes"), 3, replicas=3)
    await_topic(source, topic, 3)
    mirror.create(topic)
    writer = Writer(mirror.source, topic, 3)
    try:
        mirror.await_topic(topic)
        writer.await_more()
        here.kill(1)
        writer.await_more()
        source.kill(2)
        writer.await_more()
        here.restart(1)
        source.restart(2)
        here.kill(2)
        writer.await_more()
        source.kill(3)
        here.restart(2)
        writer.await_more()
        source.restart(3)
    finally:
        writer.stop()
    mirror.await_equal(topic)
    count = sum(len(read_all(mirror.here, topic, partition)) for partition in range(3))
    assert count == writer.acknowledged

    # All replicas of the mirror agree too: each broker in turn leads, and is compared.
    def is_whole() -> None:
        rows = mirror.admin.cluster.topics([topic])[topic].partitions
        assert all(len(row.isr) == 3 for row in rows)

    eventually(is_whole)
    here.kill(1, 2, 3)
    here.start(1, 2, 3)
    mirror.await_equal(topic)
    mirror.admin.promote(mirror.name, timeout_s=60)
    assert mirror.state(topic) == "promoted"
