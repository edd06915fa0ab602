"""Every client in a group: partitions are shared, pass on, and records are read at least once, kill -9 included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.system.clients import brokers
from tests.system.clients.client_program import eventually
from tests.system.clients.group_member import PROGRAMS, GroupMember, wait_until_shared
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

PARTITIONS = 4
StartMember = Callable[..., GroupMember]


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    """A broker that does not wait long for more members to come."""
    settings = {"group.initial.rebalance.delay.ms": "200", "group.min.session.timeout.ms": "1000"}
    started = brokers.start_broker(tmp_path_factory.mktemp("groups") / "data", settings)
    yield started
    started.stop()


@pytest.fixture
def start_member(quick_broker: brokers.BrokerProcess, topic: str, tmp_path: Path) -> Iterator[StartMember]:
    """Starts a member of the group that is named like the topic; all are gone at the end."""
    started: list[GroupMember] = []

    def start(client: str, **options: Any) -> GroupMember:
        log = tmp_path / f"{client}-{len(started)}.log"
        try:
            member = GroupMember(client, quick_broker.bootstrap_servers, topic, topic, log, **options)
        except apache_kafka.ToolchainMissingError as reason:
            pytest.skip(f"{client}: {reason}")
        started.append(member)
        return member

    yield start
    for member in started:
        if member.process.poll() is None:
            member.kill()


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(TIMEOUT_SECONDS)


def write(bootstrap: str, topic: str, first: int, count: int) -> set[str]:
    """Writes records over all partitions; returns their values."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    values = [f"record-{number:05d}" for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value=value, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return set(values)


def committed(bootstrap: str, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = ConsumerGroupTopicPartitions(group)
    (found,) = admin.list_consumer_group_offsets([wanted]).values()
    return {each.partition: each.offset for each in found.result(TIMEOUT_SECONDS).topic_partitions}


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_SECONDS)[1]
            for number in range(PARTITIONS)
        }
    finally:
        consumer.close()


@pytest.mark.parametrize("client", list(PROGRAMS))
def test_partitions_are_shared_and_pass_on(
    client: str, quick_broker: brokers.BrokerProcess, topic: str, start_member: StartMember
) -> None:
    bootstrap = quick_broker.bootstrap_servers
    make_topic(bootstrap, topic)
    values = write(bootstrap, topic, 0, 200)
    first, second = start_member(client), start_member(client)
    wait_until_shared([first, second], PARTITIONS)
    values |= write(bootstrap, topic, 200, 200)
    assert eventually(lambda: values <= {*first.values, *second.values})
    second.stop()
    wait_until_shared([first], PARTITIONS)
    values |= write(bootstrap, topic, 400, 100)
    assert eventually(lambda: values <= {*first.values, *second.values})
    first.stop()
    assert committed(bootstrap, topic) == ends(bootstrap, topic)


@pytest.mark.parametrize("client", list(PROGRAMS))
def test_broker_killed_in_mid_consumption(
    client: str, quick_broker: brokers.BrokerProcess, topic: str, start_member: StartMember
) -> None:
    bootstrap = quick_broker.bootstrap_servers
    make_topic(bootstrap, topic)
    values = write(bootstrap, topic, 0, 300)
    members = [start_member(client), start_member(client)]
    wait_until_shared(members, PARTITIONS)
    assert eventually(lambda: bool(committed(bootstrap, topic)))
    before = committed(bootstrap, topic)
    quick_broker.kill()
    quick_broker.start()
    after = committed(bootstrap, topic)
    assert all(after[partition] >= offset for partition, offset in before.items())
    values |= write(bootstrap, topic, 300, 300)
    assert eventually(lambda: values <= {value for member in members for value in member.values}), [
        member.said() for member in members
    ]
    assert eventually(lambda: committed(bootstrap, topic) == ends(bootstrap, topic))
    for member in members:
        member.stop()
    assert committed(bootstrap, topic) == ends(bootstrap, topic)


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        ("confluent-kafka", "range"),
        ("confluent-kafka", "roundrobin"),
        ("confluent-kafka", "cooperative-sticky"),
        ("franz-go", "cooperative-sticky"),
        ("java", "cooperative-sticky"),
    ],
)
def test_every_strategy_shares_the_partitions(
    client: str, strategy: str, quick_broker: brokers.BrokerProcess, topic: str, start_member: StartMember
) -> None:
    bootstrap = quick_broker.bootstrap_servers
    make_topic(bootstrap, topic)
    values = write(bootstrap, topic, 0, 100)
    members = [start_member(client, strategy=strategy)]
    wait_until_shared(members, PARTITIONS)
    members += [start_member(client, strategy=strategy), start_member(client, strategy=strategy)]
    wait_until_shared(members, PARTITIONS)
    values |= write(bootstrap, topic, 100, 100)
    assert eventually(lambda: values <= {value for member in members for value in member.values})
    members.pop().stop()
    wait_until_shared(members, PARTITIONS)


def test_a_member_that_dies_is_missed(
    quick_broker: brokers.BrokerProcess, topic: str, start_member: StartMember
) -> None:
    make_topic(quick_broker.bootstrap_servers, topic)
    stays, dies = start_member("confluent-kafka"), start_member("confluent-kafka", session_ms=2000)
    wait_until_shared([stays, dies], PARTITIONS)
    dies.kill()
    wait_until_shared([stays], PARTITIONS)


@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka", "java", "franz-go"])
def test_static_member_comes_back_without_a_rebalance(
    client: str, quick_broker: brokers.BrokerProcess, topic: str, start_member: StartMember
) -> None:
    bootstrap = quick_broker.bootstrap_servers
    make_topic(bootstrap, topic)
    options = {"session_ms": 30_000, "strategy": "range"}
    stays = start_member(client, instance="one", **options)
    goes = start_member(client, instance="two", **options)
    wait_until_shared([stays, goes], PARTITIONS)
    before, assignments, held = list(stays.assigned), stays.assignments, list(goes.assigned)
    goes.kill()
    returned = start_member(client, instance="two", **options)
    assert eventually(lambda: returned.assigned == held), returned.said()
    values = write(bootstrap, topic, 0, 100)
    assert eventually(lambda: values <= {*stays.values, *returned.values})
    assert stays.assigned == before and stays.assignments == assignments
