"""Groups that the broker assigns (KIP-848), with the clients that speak the protocol: librdkafka and Kafka's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.system.clients import brokers
from tests.system.clients.client_program import eventually
from tests.system.clients.group_member import PROGRAMS, GroupMember
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

PARTITIONS = 6
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.assignment.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    started = brokers.start_broker(tmp_path_factory.mktemp("consumer-groups") / "data", SETTINGS)
    yield started
    started.stop()


class Reader:
    """A consumer in a thread of its own, which notes what it owns and what it reads."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **options: Any) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        settings |= {name.replace("_", "."): value for name, value in options.items()}
        self._consumer = Consumer(settings)
        self.owned: set[tuple[str, int]] = set()
        self.values: list[bytes] = []
        self.rebalances = 0
        self.is_incremental = settings.get("partition.assignment.strategy") != "range"
        self.errors: list[str] = []
        self._consumer.subscribe(list(topics), on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        if not self.is_incremental:
            self.owned.clear()
        self.owned |= {(each.topic, each.partition) for each in partitions}

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.owned -= {(each.topic, each.partition) for each in partitions}

    def _read(self) -> None:
        while not self._over.is_set():
            record = self._consumer.poll(0.05)
            if record is None:
                continue
            error = record.error()
            if error is None:
                self.values.append(record.value() or b"")
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                self.errors.append(str(error))

    def close(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._thread.join(TIMEOUT_SECONDS)
            self._consumer.close()


StartReader = Callable[..., Reader]


@pytest.fixture
def reader(quick: brokers.BrokerProcess, topic: str) -> Iterator[StartReader]:
    """Starts a member of the group that is named like the topic."""
    started: list[Reader] = []

    def start(*topics: str, **options: Any) -> Reader:
        made = Reader(quick.bootstrap_servers, topic, *(topics or (topic,)), **options)
        started.append(made)
        return made

    yield start
    for each in started:
        each.close()


def make_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_SECONDS)


def lengthen_sessions(bootstrap: str, group: str) -> None:
    """On a busy machine a heartbeat may be many seconds late."""
    entry = ConfigEntry("consumer.session.timeout.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)


def write(bootstrap: str, topic: str, first: int, count: int) -> set[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    values = [b"record-%05d" % number for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value=value, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return set(values)


def shared(readers: list[Reader], topic: str, count: int = PARTITIONS) -> bool:
    """All partitions are with one reader each, evenly."""
    owned = [partition for each in readers for partition in each.owned]
    sizes = [len(each.owned) for each in readers]
    return sorted(owned) == [(topic, n) for n in range(count)] and max(sizes) - min(sizes) <= 1


def read_by(readers: list[Reader]) -> set[bytes]:
    return {value for each in readers for value in each.values}


def test_members_come_and_go(quick: brokers.BrokerProcess, topic: str, reader: StartReader) -> None:
    bootstrap = quick.bootstrap_servers
    make_topic(bootstrap, topic)
    written = write(bootstrap, topic, 0, 300)
    first = reader()
    assert eventually(lambda: shared([first], topic))
    three = [first, reader(), reader()]
    assert eventually(lambda: shared(three, topic))
    written |= write(bootstrap, topic, 300, 300)
    assert eventually(lambda: read_by(three) == written)
    four = [*three, reader()]
    assert eventually(lambda: shared(four, topic))
    three[1].close()
    left = [four[0], four[2], four[3]]
    assert eventually(lambda: shared(left, topic))
    written |= write(bootstrap, topic, 600, 300)
    assert eventually(lambda: read_by(four) == written)
    assert not any(each.errors for each in four)


def test_new_partitions_are_read(quick: brokers.BrokerProcess, topic: str, reader: StartReader) -> None:
    make_topic(quick.bootstrap_servers, topic, 2)
    two = [reader(), reader()]
    assert eventually(lambda: shared(two, topic, 2))
    admin = AdminClient({"bootstrap.servers": quick.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(TIMEOUT_SECONDS)
    assert eventually(lambda: shared(two, topic))
    written = write(quick.bootstrap_servers, topic, 0, 60)
    assert eventually(lambda: read_by(two) == written)


def test_a_regular_expression_finds_topics_that_come_later(
    quick: brokers.BrokerProcess, topic: str, reader: StartReader
) -> None:
    bootstrap = quick.bootstrap_servers
    make_topic(bootstrap, f"{topic}-one", 2)
    make_topic(bootstrap, f"not-{topic}-one", 1)
    member = reader(f"^{topic}-.*")
    assert eventually(lambda: member.owned == {(f"{topic}-one", 0), (f"{topic}-one", 1)})
    make_topic(bootstrap, f"{topic}-two", 1)
    assert eventually(lambda: (f"{topic}-two", 0) in member.owned)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([f"{topic}-one"])[f"{topic}-one"].result(TIMEOUT_SECONDS)
    assert eventually(lambda: member.owned == {(f"{topic}-two", 0)})


def test_a_static_member_that_restarts_keeps_its_partitions(
    quick: brokers.BrokerProcess, topic: str, reader: StartReader
) -> None:
    make_topic(quick.bootstrap_servers, topic)
    lengthen_sessions(quick.bootstrap_servers, topic)
    one, two = reader(group_instance_id="one"), reader(group_instance_id="two")
    assert eventually(lambda: shared([one, two], topic))
    had, calm = set(one.owned), two.rebalances
    one.close()
    back = reader(group_instance_id="one")
    assert eventually(lambda: back.owned == had)
    assert two.rebalances == calm


def test_a_second_member_of_the_same_instance_is_refused(
    quick: brokers.BrokerProcess, topic: str, reader: StartReader
) -> None:
    make_topic(quick.bootstrap_servers, topic)
    first = reader(group_instance_id="one")
    assert eventually(lambda: shared([first], topic))
    second = reader(group_instance_id="one")
    assert eventually(lambda: any("instance ID is still used" in error for error in second.errors))
    assert not second.owned
    assert shared([first], topic)


def test_commits_are_continued_from(quick: brokers.BrokerProcess, topic: str, reader: StartReader) -> None:
    bootstrap = quick.bootstrap_servers
    make_topic(bootstrap, topic)
    before = write(bootstrap, topic, 0, 120)
    first = reader()
    assert eventually(lambda: read_by([first]) == before)
    first.close()
    after = write(bootstrap, topic, 120, 120)
    second = reader()
    assert eventually(lambda: read_by([second]) == after)
    assert len(second.values) == len(after)


def test_a_commit_of_an_older_epoch_is_refused(quick: brokers.BrokerProcess, topic: str) -> None:
    bootstrap = quick.bootstrap_servers
    make_topic(bootstrap, topic)
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "group.protocol": "consumer"}
    member = Consumer(settings | {"enable.auto.commit": False})
    member.subscribe([topic])
    assert eventually(lambda: member.poll(0.1) is None and len(member.assignment()) == PARTITIONS)
    (done,) = member.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    assert done.error is None
    outsider = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    with pytest.raises(KafkaException) as refused:
        outsider.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    (found,) = member.committed([TopicPartition(topic, 0)])
    assert found.offset == 3
    outsider.close()
    member.close()


def committed(bootstrap: str, topic: str) -> int:
    """How many records of all partitions the group of the same name has committed."""
    looker = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    count = len(looker.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions)
    found = looker.committed([TopicPartition(topic, number) for number in range(count)], timeout=TIMEOUT_SECONDS)
    looker.close()
    return sum(max(0, each.offset) for each in found)


def test_kill_of_the_broker_in_the_middle(tmp_path_factory: pytest.TempPathFactory, topic: str) -> None:
    # Sessions are long: on a busy machine a member may need many seconds to find the broker again.
    settings = SETTINGS | {"group.consumer.session.timeout.ms": "60000"}
    broker = brokers.start_broker(tmp_path_factory.mktemp("killed") / "data", settings)
    try:
        bootstrap = broker.bootstrap_servers
        make_topic(bootstrap, topic)
        written = write(bootstrap, topic, 0, 300)
        three = [Reader(bootstrap, topic, topic) for _ in range(3)]
        assert eventually(lambda: shared(three, topic) and read_by(three) == written)
        assert eventually(lambda: committed(bootstrap, topic) == len(written))  # or some would be read twice
        had, calm = [set(each.owned) for each in three], [each.rebalances for each in three]
        broker.kill()
        broker.start()
        written |= write(bootstrap, topic, 300, 300)
        assert eventually(lambda: read_by(three) == written)
        assert [each.owned for each in three] == had, "the members came back within their sessions"
        assert [each.rebalances for each in three] == calm
        assert sum(len(each.values) for each in three) == len(written), "nothing was read twice"
        three.append(Reader(bootstrap, topic, topic))
        three.pop(0).close()
        assert eventually(lambda: shared(three, topic))
        for each in three:
            each.close()
    finally:
        broker.stop()


# Kafka's own tools


def test_the_console_consumer_and_the_groups_tool(
    kafka: apache_kafka.KafkaDistribution,
    kafka_tools: KafkaTools,
    quick: brokers.BrokerProcess,
    topic: str,
    reader: StartReader,
) -> None:
    bootstrap = quick.bootstrap_servers
    make_topic(bootstrap, topic)
    written = write(bootstrap, topic, 0, 60)

    def tool(name: str, *arguments: str) -> str:
        return kafka_tools(name, "--bootstrap-server", bootstrap, *arguments)

    done = kafka.run(
        apache_kafka.CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", topic, "--from-beginning"),
        *("--max-messages", "60", "--timeout-ms", "30000", "--command-property", "group.protocol=consumer"),
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.encode() for line in done.stdout.split()} == written
    member = reader(group_instance_id="one")
    assert eventually(lambda: shared([member], topic))

    groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    assert topic in tool(groups, "--list", "--type", "consumer", "--state", "stable")
    assert tool(groups, "--describe", "--group", topic).count("rdkafka") == PARTITIONS
    state = tool(groups, "--describe", "--group", topic, "--state", "--verbose")
    assert "uniform" in state
    assert "Stable" in state
    members = tool(groups, "--describe", "--group", topic, "--members", "--verbose")
    assert f"{topic}:0,1,2,3,4,5" in members
    assert "one" in members
    member.close()
    assert eventually(lambda: "successful" in tool(groups, "--delete", "--group", topic))


# Both protocols in one group


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_goes_over_and_back_member_by_member(
    strategy: str, quick: brokers.BrokerProcess, topic: str, reader: StartReader
) -> None:
    bootstrap = quick.bootstrap_servers
    make_topic(bootstrap, topic)
    written = write(bootstrap, topic, 0, 120)

    def classic() -> Reader:
        return reader(
            group_protocol="classic",
            partition_assignment_strategy=strategy,
            heartbeat_interval_ms=300,
            session_timeout_ms=6000,
        )

    admin = AdminClient({"bootstrap.servers": bootstrap})

    def kind() -> str:
        found = admin.list_consumer_groups().result(TIMEOUT_SECONDS).valid
        return next(group.type.name for group in found if group.group_id == topic)

    old = [classic(), classic()]
    assert eventually(lambda: shared(old, topic) and read_by(old) == written)
    assert kind() == "CLASSIC"
    new = [reader()]
    mixed = [*old, *new]
    assert eventually(lambda: shared(mixed, topic))
    assert kind() == "CONSUMER"
    written |= write(bootstrap, topic, 120, 120)
    assert eventually(lambda: read_by(mixed) == written)
    for each in old:
        each.close()
    new.append(reader())
    assert eventually(lambda: shared(new, topic))
    back = [classic(), classic()]
    assert eventually(lambda: shared([*new, *back], topic))
    for each in new:
        each.close()
    assert eventually(lambda: shared(back, topic))
    assert kind() == "CLASSIC"
    written |= write(bootstrap, topic, 240, 120)
    everyone = [*old, *new, *back]
    assert eventually(lambda: read_by(everyone) == written)
    assert not any(each.errors for each in everyone)


StartMember = Callable[..., GroupMember]


@pytest.fixture
def start_member(quick: brokers.BrokerProcess, topic: str, tmp_path: Path) -> Iterator[StartMember]:
    """Starts a member in a process of its own, of the group that is named like the topic."""
    started: list[GroupMember] = []

    def start(client: str, **options: Any) -> GroupMember:
        log = tmp_path / f"{client}-{len(started)}.log"
        try:
            member = GroupMember(client, quick.bootstrap_servers, topic, topic, log, **options)
        except apache_kafka.ToolchainMissingError as reason:
            pytest.skip(f"{client}: {reason}")
        started.append(member)
        return member

    yield start
    for member in started:
        if member.process.poll() is None:
            member.kill()


def taken(members: list[GroupMember], readers: list[Reader]) -> list[int]:
    own = [number for each in readers for _, number in each.owned]
    return sorted([*own, *(number for member in members for number in member.assigned)])


@pytest.mark.parametrize("client", list(PROGRAMS))
def test_every_client_of_the_old_protocol_in_a_group_of_the_new(
    client: str, quick: brokers.BrokerProcess, topic: str, start_member: StartMember, reader: StartReader
) -> None:
    bootstrap, everything = quick.bootstrap_servers, list(range(PARTITIONS))
    make_topic(bootstrap, topic)
    written = write(bootstrap, topic, 0, 60)
    new = reader()
    assert eventually(lambda: shared([new], topic))
    old = [start_member(client), start_member(client)]
    assert eventually(lambda: taken(old, [new]) == everything and all(len(m.assigned) == 2 for m in old)), [
        (member.assigned, member.said()) for member in old
    ]
    written |= write(bootstrap, topic, 60, 120)
    read = [new]
    assert eventually(lambda: {*read_by(read), *(v.encode() for m in old for v in m.values)} == written)
    new.close()  # and so the group is a classic one again
    assert eventually(lambda: taken(old, []) == everything), [(member.assigned, member.said()) for member in old]
    again = reader()
    assert eventually(lambda: taken(old, [again]) == everything and len(again.owned) == 2)
    old[0].stop()
    assert eventually(lambda: taken(old[1:], [again]) == everything and len(again.owned) == 3)


def test_the_java_client_speaks_the_new_protocol(
    quick: brokers.BrokerProcess, topic: str, start_member: StartMember
) -> None:
    bootstrap, everything = quick.bootstrap_servers, list(range(PARTITIONS))
    make_topic(bootstrap, topic)
    written = write(bootstrap, topic, 0, 60)
    members = [start_member("java", group_protocol="consumer") for _ in range(3)]
    assert eventually(lambda: taken(members, []) == everything and all(len(m.assigned) == 2 for m in members))
    quick.kill()
    quick.start()
    members[0].kill()
    written |= write(bootstrap, topic, 60, 60)
    left = members[1:]
    assert eventually(lambda: taken(left, []) == everything), [member.said() for member in left]
    assert eventually(lambda: written <= {value.encode() for m in members for value in m.values})
