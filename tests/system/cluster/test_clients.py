"""Real clients of every kind while their coordinators and leaders die, and consumers that read from followers."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from millstream.testing import EmbeddedCluster
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.corpus import record
from tests.system.clients.group_member import PROGRAMS, GroupMember
from tests.system.cluster.conftest import QUIET, Writer, admin, create_topic, described, eventually, leader_of, read_all
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka, install_test_clients

PARTITIONS = 3
RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "min.insync.replicas": 2,
        "offsets.topic.num.partitions": 6,
        "share.coordinator.state.topic.num.partitions": 6,
        "group.initial.rebalance.delay.ms": 0,
        "group.share.record.lock.duration.ms": 3000,
        "group.share.min.record.lock.duration.ms": 1000,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    racks = {number: {"broker.rack": rack} for number, rack in RACKS.items()}
    with EmbeddedCluster(3, settings, node_settings=racks) as running:
        yield running


def test_a_consumer_reads_from_the_follower_in_its_rack(cluster: EmbeddedCluster) -> None:
    """KIP-392; the leader sleeps in the end, and what is committed can be read all the same."""
    client = admin(cluster.bootstrap_servers)
    created = client.create_topics([NewTopic("near", 1, replica_assignment=[[1, 2, 3]])])
    created["near"].result(TIMEOUT_SECONDS)
    await_topic(cluster, "near", 1)
    eventually(lambda: described(cluster, "near", in_sync=3))
    writer = Writer(cluster.bootstrap_servers)
    writer.write("near", 100)
    statistics: list[dict[str, Any]] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "near",
        "client.rack": "b",
        "enable.auto.commit": False,
        "statistics.interval.ms": 200,
        "stats_cb": lambda text: statistics.append(json.loads(text)),
        **QUIET,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition("near", 0, 0)])
        assert _read(consumer, 100) == 100

        def follows() -> None:
            consumer.poll(0.2)
            assert statistics and statistics[-1]["topics"]["near"]["partitions"]["0"]["broker"] == 2

        eventually(follows)
        cluster.pause(1)
        try:
            consumer.seek(TopicPartition("near", 0, 0))
            assert _read(consumer, 100) == 100
        finally:
            cluster.resume(1)
    finally:
        consumer.close()
    eventually(lambda: described(cluster, "near", in_sync=3))


def _read(consumer: Consumer, count: int) -> int:
    found, deadline = 0, time.monotonic() + TIMEOUT_SECONDS
    while found < count and time.monotonic() < deadline:
        found += sum(message.error() is None for message in consumer.consume(count, 0.2))
    return found


def test_producers_of_every_kind_find_the_next_leader(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """They ask while the leader is just dead, and each writes all it has, once."""
    create_topic(cluster, "written")
    programs = _start_programs(tmp_path)
    sent = {name: [f"{name} {number}".encode() for number in range(20)] for name in programs}
    leader = leader_of(cluster, "written")
    asked = cluster.address(next(number for number in cluster.brokers if number != leader))
    try:
        cluster.kill(leader)
        with ThreadPoolExecutor(len(programs)) as pool:
            for name, program in programs.items():
                records = [record(None, value) for value in sent[name]]
                pool.submit(program.produce, asked, "written", records, batch_records=5)
        cluster.start(leader)
        expected = sorted(value for values in sent.values() for value in values)
        found = read_all(cluster.bootstrap_servers, "written", end=len(expected))
        assert sorted(found.values()) == expected
    finally:
        for program in programs.values():
            program.close()


def _start_programs(tmp_path: Path) -> dict[str, ClientProgram]:
    programs = {}
    for name in install_test_clients.CLIENTS:
        try:
            programs[name] = ClientProgram(name, tmp_path / f"{name}.log")
        except apache_kafka.ToolchainMissingError:
            continue
    return programs


class QueueWorker:
    """A member of a share group that accepts all it gets."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        self.values: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "socket.timeout.ms": 5000,
                **QUIET,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopping.is_set():
            messages = [each for each in self._consumer.poll(0.3) if each.error() is None]
            for message in messages:
                self._consumer.acknowledge(message)
            if messages and set(self._consumer.commit_sync(20).values()) == {None}:
                self.values.update((message.value() or b"").decode() for message in messages)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_SECONDS)
        self._consumer.close()


@pytest.mark.timeout(900)
def test_groups_queues_and_offsets_survive_every_broker(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The coordinator of a group is killed once: members go on without a change on their side."""
    create_topic(cluster, "work", PARTITIONS)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, "queue", incremental_configs=[entry])
    client = admin(cluster.bootstrap_servers)
    for done in client.incremental_alter_configs([resource]).values():
        done.result(TIMEOUT_SECONDS)
    members = _start_members(cluster, tmp_path)
    worker = QueueWorker(cluster.bootstrap_servers, "queue", "work")
    writer = Writer(cluster.bootstrap_servers)
    sent: set[str] = set()

    def write(count: int) -> None:
        for number in range(len(sent), len(sent) + count):
            writer.send("work", b"%d" % number, number % PARTITIONS)
            sent.add(str(number))
        writer.flush()
        assert not writer.errors, writer.errors

    def all_read() -> None:
        for name, member in members.items():
            missing = sent - set(member.values)
            assert not missing, f"{name} lacks {len(missing)} of {len(sent)}: {member.said()}"
        missing = sent - set(worker.values)
        assert not missing, f"the queue's worker lacks {len(missing)} of {len(sent)}"

    try:
        write(30)
        eventually(all_read, seconds=180)
        for number in cluster.brokers:
            cluster.kill(number)
            write(30)
            eventually(all_read, seconds=180)
            cluster.start(number)
            for topic in ("work", "__consumer_offsets", "__share_group_state"):
                eventually(lambda topic=topic: described(cluster, topic, in_sync=3))  # type: ignore[misc]
        ends = {partition: len(rows) for partition, rows in writer.acked.items()}
        for name in members:
            eventually(lambda name=name: _has_committed(cluster, name, ends))  # type: ignore[misc]
    finally:
        worker.stop()
        for member in members.values():
            member.kill()


def _start_members(cluster: EmbeddedCluster, tmp_path: Path) -> dict[str, GroupMember]:
    """A member of each kind, each in a group of its own that is named like it."""
    wanted: dict[str, tuple[str, dict[str, str]]] = {client: (client, {}) for client in PROGRAMS}
    for client in ("confluent-kafka", "java"):
        wanted[f"{client}-kip-848"] = (client, {"group_protocol": "consumer"})
    members = {}
    for name, (client, options) in wanted.items():
        try:
            log = tmp_path / f"{name}.log"
            members[name] = GroupMember(client, cluster.bootstrap_servers, name, "work", log, **options)
        except apache_kafka.ToolchainMissingError:
            continue
    return members


def _has_committed(cluster: EmbeddedCluster, group: str, ends: dict[int, int]) -> None:
    client: AdminClient = admin(cluster.bootstrap_servers)
    (response,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    offsets = {each.partition: each.offset for each in response.result(TIMEOUT_SECONDS).topic_partitions}
    assert offsets == ends, f"{group} committed {offsets} of {ends}"
