"""What the tests of real clusters share: clients with long timeouts, and a way to wait for a state."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millstream.testing import EmbeddedCluster
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS

T = TypeVar("T")
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Three nodes that a module's tests share; a test that stops a node starts it again."""
    with EmbeddedCluster(3, {"default.replication.factor": 3, "min.insync.replicas": 2}) as running:
        yield running


def eventually(check: Callable[[], T], *, seconds: float = TIMEOUT_SECONDS) -> T:
    """What `check` returns, once it does not raise AssertionError any more."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, **QUIET})


def new_topic(address: str, name: str, partitions: int, replicas: int, config: Mapping[str, str] | None = None) -> None:
    """Asks the node at that address to create a topic."""
    new = NewTopic(name, partitions, replicas, config=dict(config or {}))
    client = admin(address)  # kept until the response is there
    client.create_topics([new], operation_timeout=30)[name].result(TIMEOUT_SECONDS)


def create_topic(
    cluster: EmbeddedCluster, name: str, partitions: int = 1, replicas: int = 3, config: Mapping[str, str] | None = None
) -> None:
    new_topic(cluster.bootstrap_servers, name, partitions, replicas, config)
    await_topic(cluster, name, partitions)
    eventually(lambda: described(cluster, name, in_sync=replicas))


def described(cluster: EmbeddedCluster, name: str, *, in_sync: int | None = None) -> dict[int, Any]:
    """The partitions of a topic; AssertionError while one has no leader or too few replicas in sync."""
    try:
        metadata = admin(cluster.bootstrap_servers).list_topics(name, timeout=TIMEOUT_SECONDS)
    except KafkaException as error:  # the client asked a node that was just leaving
        raise AssertionError(f"no metadata: {error}") from error
    partitions: dict[int, Any] = metadata.topics[name].partitions
    assert partitions, "the topic is not there yet"
    for partition in partitions.values():
        assert partition.leader >= 0, f"partition {partition.id} has no leader"
        if in_sync is not None:
            assert len(partition.isrs) == in_sync, f"partition {partition.id}: in sync {partition.isrs}"
    return partitions


def leader_of(cluster: EmbeddedCluster, name: str, partition: int = 0) -> int:
    return int(eventually(lambda: described(cluster, name))[partition].leader)


class Writer:
    """An idempotent producer that keeps what was acknowledged, and every error that a retry did not hide."""

    def __init__(self, servers: str, **settings: Any) -> None:
        self.acked: dict[int, dict[int, bytes]] = {}
        self.errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": 60_000,
                "linger.ms": 1,
                **QUIET,
                **settings,
            }
        )

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acked.setdefault(message.partition() or 0, {})[message.offset() or 0] = message.value() or b""

    def flush(self, seconds: float = 60.0) -> None:
        left = self._producer.flush(seconds)
        assert left == 0, f"{left} records were neither acknowledged nor refused"

    @property
    def acked_count(self) -> int:
        return sum(len(rows) for rows in self.acked.values())

    def write(self, topic: str, count: int, partition: int = 0) -> None:
        for number in range(count):
            self.send(topic, b"%d" % number, partition)
        self.flush()
        assert not self.errors, self.errors


def read_all(servers: str, topic: str, partition: int = 0, *, end: int, **settings: Any) -> dict[int, bytes]:
    """The records of a partition up to an end, by offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **QUIET,
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not found or max(found) < end - 1:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records within a minute"
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found[message.offset() or 0] = message.value() or b""
        return found
    finally:
        consumer.close()
