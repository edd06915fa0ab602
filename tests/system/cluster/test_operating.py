"""What happens to a cluster over its years: brokers are added, restarted, taken away; topics come and go meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic

from millstream.testing import EmbeddedCluster
from tests.system.cluster.conftest import QUIET, Writer, admin, create_topic, described, eventually, new_topic, read_all
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}
CONTROLLER = 5
OFFSETS = "__consumer_offsets"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Four brokers in two racks and a controller of its own. The first test starts the brokers one by one."""
    settings = {
        "offsets.topic.num.partitions": 6,
        "leader.imbalance.check.interval.seconds": 1,
        "leader.imbalance.per.broker.percentage": 0,
    }
    racks = {number: {"broker.rack": rack} for number, rack in RACKS.items()}
    running = EmbeddedCluster(4, settings, controllers=1, node_settings=racks)
    try:
        running.spawn(CONTROLLER)
        running.start(1)
        yield running
    finally:
        running.close()


def commit(cluster: EmbeddedCluster, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, **QUIET})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(cluster: EmbeddedCluster, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, **QUIET})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_SECONDS)
    consumer.close()
    return int(found.offset)


def test_internal_topics_grow_with_the_brokers_and_spread_their_leaders(cluster: EmbeddedCluster) -> None:
    new_topic(cluster.address(1), "early", 1, 1)
    await_topic(cluster, "early", 1)
    for group in range(6):
        commit(cluster, f"g{group}", "early", group)
    assert all(partition.replicas == [1] for partition in described(cluster, OFFSETS).values())
    for number, factor in ((2, 2), (3, 3), (4, 3)):
        cluster.start(number)
        eventually(lambda factor=factor: described(cluster, OFFSETS, in_sync=factor))  # type: ignore[misc]

    def evenly_led() -> None:
        leaders = Counter(partition.leader for partition in described(cluster, OFFSETS, in_sync=3).values())
        assert leaders == {1: 2, 2: 2, 3: 2}, leaders

    eventually(evenly_led)
    assert [committed(cluster, f"g{group}", "early") for group in range(6)] == list(range(6))
    assert described(cluster, "early")[0].replicas == [1]  # what users made stays as they made it


def test_replicas_go_to_different_racks_and_leaders_are_even(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "racks", partitions=8, replicas=2)
    partitions = described(cluster, "racks")
    for partition in partitions.values():
        assert {RACKS[broker] for broker in partition.replicas} == {"a", "b"}
    assert Counter(partition.leader for partition in partitions.values()) == dict.fromkeys(RACKS, 2)
    assert Counter(broker for each in partitions.values() for broker in each.replicas) == dict.fromkeys(RACKS, 4)


def test_assignments_that_make_no_sense_are_refused(cluster: EmbeddedCluster) -> None:
    client = admin(cluster.bootstrap_servers)
    assignment: Any
    for assignment in ([[1, 1]], [[9]], [[1, 2], [3]], [[]]):
        topic = NewTopic("senseless", len(assignment), replica_assignment=assignment)
        with pytest.raises((KafkaException, ValueError)):
            client.create_topics([topic])["senseless"].result(TIMEOUT_SECONDS)
    assert "senseless" not in client.list_topics(timeout=TIMEOUT_SECONDS).topics


def test_a_broker_that_leaves_in_good_order_hands_over_and_gets_its_partitions_back(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "handed", partitions=8)
    writer = Writer(cluster.bootstrap_servers)
    cluster.stop(2)
    # It led some of them until it had said goodbye, so no one has to notice that it is gone.
    for partition in described(cluster, "handed").values():
        assert partition.leader != 2 and 2 not in partition.isrs
    for number in range(8):
        writer.write("handed", 10, number)
    cluster.start(2)

    def as_before() -> None:
        for partition in described(cluster, "handed", in_sync=3).values():
            assert partition.leader == partition.replicas[0]

    eventually(as_before)
    assert len(read_all(cluster.bootstrap_servers, "handed", 3, end=10)) == 10


def test_a_topic_made_again_while_a_broker_was_away_has_nothing_of_the_old_one(cluster: EmbeddedCluster) -> None:
    create_topic(cluster, "again", replicas=3)
    writer = Writer(cluster.bootstrap_servers)
    writer.write("again", 20)
    away = int(described(cluster, "again")[0].replicas[-1])
    cluster.kill(away)
    eventually(lambda: described(cluster, "again", in_sync=2))
    client = admin(cluster.bootstrap_servers)
    client.delete_topics(["again"], operation_timeout=30)["again"].result(TIMEOUT_SECONDS)
    others = [number for number in cluster.brokers if number != away][:2]
    assignment = [[*others, away]]
    client.create_topics([NewTopic("again", 1, replica_assignment=assignment)])["again"].result(TIMEOUT_SECONDS)
    await_topic(cluster, "again", 1)
    writer = Writer(cluster.bootstrap_servers)
    writer.write("again", 5)
    cluster.start(away)
    eventually(lambda: described(cluster, "again", in_sync=3))
    # The one that was away leads now, and is asked for everything it has.
    cluster.stop(*others)
    leader = eventually(lambda: described(cluster, "again"))[0].leader
    assert leader == away
    assert list(read_all(cluster.address(away), "again", end=5).values()) == [b"0", b"1", b"2", b"3", b"4"]
    cluster.start(*others)
