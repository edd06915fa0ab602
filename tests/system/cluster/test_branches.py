"""Branches in a cluster of three nodes: all replicas share files with their parent, and kills lose nothing."""

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from millstream.admin import Admin
from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import create_topic, eventually
from tests.waiting import TIMEOUT_SECONDS, until
from tools import apache_kafka

RECORDS = 300


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, {"default.replication.factor": 3, "min.insync.replicas": 2}) as running:
        yield running


def produce(nodes: EmbeddedCluster, topic: str, values: range) -> None:
    writer = Producer({"bootstrap.servers": nodes.bootstrap_servers, "acks": "all", "enable.idempotence": True})
    for number in values:
        writer.produce(topic, value=str(number), partition=0)
    assert writer.flush(TIMEOUT_SECONDS) == 0


def read(nodes: EmbeddedCluster, topic: str) -> list[int]:
    reader = Consumer(
        {"bootstrap.servers": nodes.bootstrap_servers, "group.id": "test", "enable.partition.eof": True, "log_level": 0}
    )
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    while True:
        record = reader.poll(TIMEOUT_SECONDS)
        assert record is not None
        if record.error():
            reader.close()
            return found
        assert record.offset() == len(found)
        found.append(int(record.value() or b""))


def leader_of(nodes: EmbeddedCluster, topic: str) -> int:
    with Admin(nodes.bootstrap_servers) as admin:
        return admin.topics.topic(topic).partitions[0].leader


def shares(nodes: EmbeddedCluster, number: int, parent: str, branch: str) -> bool:
    first = f"{0:020d}.log"
    one, other = (nodes.data_dir(number) / f"{topic}-0" / first for topic in (parent, branch))
    return one.exists() and other.exists() and os.stat(one).st_ino == os.stat(other).st_ino


@pytest.mark.timeout(240)
def test_leaders_are_killed_after_a_branch(nodes: EmbeddedCluster) -> None:
    create_topic(nodes, "orders")
    produce(nodes, "orders", range(RECORDS))
    with Admin(nodes.bootstrap_servers) as admin:
        made = admin.topics.branch("orders", "orders-test")
    assert made.points[0].offset == RECORDS
    until(lambda: all(shares(nodes, number, "orders", "orders-test") for number in (1, 2, 3)), "files are not shared")
    victim = leader_of(nodes, "orders-test")
    nodes.kill(victim)
    until(lambda: leader_of(nodes, "orders-test") not in (victim, -1), "no other node leads")
    assert read(nodes, "orders-test") == list(range(RECORDS))
    produce(nodes, "orders-test", range(RECORDS, RECORDS + 10))
    with Admin(nodes.bootstrap_servers) as admin:
        admin.topics.delete("orders")
    nodes.start(victim)
    until(lambda: not any((nodes.data_dir(each) / "orders-0").exists() for each in (1, 2, 3)), "the parent is there")

    def in_sync() -> None:
        with Admin(nodes.bootstrap_servers) as admin:
            assert set(admin.topics.topic("orders-test").partitions[0].isr) == {1, 2, 3}

    eventually(in_sync)
    other = leader_of(nodes, "orders-test")
    nodes.kill(other)
    until(lambda: leader_of(nodes, "orders-test") not in (other, -1), "no other node leads")
    assert read(nodes, "orders-test") == list(range(RECORDS + 10))
    nodes.start(other)
    eventually(in_sync)


@pytest.mark.timeout(240)
def test_a_node_that_was_down_copies_the_leader_of_the_branch(nodes: EmbeddedCluster) -> None:
    create_topic(nodes, "events")
    produce(nodes, "events", range(RECORDS))
    away = next(number for number in (1, 2, 3) if number != leader_of(nodes, "events"))
    nodes.kill(away)
    with Admin(nodes.bootstrap_servers) as admin:
        produce(nodes, "events", range(RECORDS, RECORDS + 10))
        admin.topics.branch("events", "events-test")
        produce(nodes, "events-test", range(RECORDS + 10, RECORDS + 20))
        nodes.start(away)

        def in_sync() -> None:
            assert set(admin.topics.topic("events-test").partitions[0].isr) == {1, 2, 3}

        eventually(in_sync)
    assert read(nodes, "events-test") == list(range(RECORDS + 20))
    assert read(nodes, "events") == list(range(RECORDS + 10))


def test_kafka_tools_show_a_branch_as_a_topic(nodes: EmbeddedCluster) -> None:
    try:
        kafka = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    create_topic(nodes, "plain")
    with Admin(nodes.bootstrap_servers) as admin:
        admin.topics.branch("plain", "plain-test")
    done = kafka.run(
        apache_kafka.TOPIC_COMMAND, "--bootstrap-server", nodes.bootstrap_servers, "--describe", "--topic", "plain-test"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Topic: plain-test" in done.stdout and "PartitionCount: 1" in done.stdout
