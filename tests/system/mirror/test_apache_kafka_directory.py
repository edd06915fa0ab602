"""One data directory, and two programs: Millstream goes on where Apache Kafka 4.3.1 stopped, and Kafka where Millstream
stopped. Neither starts where the other runs. What is not understood is refused: test_kafka_metadata.py."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from millstream.admin.acls import Acl, AclAdmin
from millstream.admin.groups import GroupAdmin
from millstream.admin.quotas import QuotaAdmin
from millstream.admin.topics import ConfigChange, ConfigResource, TopicAdmin
from millstream.admin.transactions import TransactionAdmin
from millstream.admin.users import UserAdmin
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.formats.records.batch import iterate_headers
from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedBroker
from millstream.testing.node_process import NodeProcess, free_ports
from tests.mirrors import cluster_of, delete_records, make_source_topic, produce, read_all, transaction
from tests.waiting import TIMEOUT_SECONDS, eventually
from tools import apache_kafka

pytestmark = pytest.mark.timeout(600)
HEAP = ("-Xmx300M", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SHARED_SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "6000",  # Kafka waits as long for the node that stopped before it
}
KAFKA_SETTINGS = SHARED_SETTINGS | {"log.cleaner.backoff.ms": "200", "offsets.topic.num.partitions": "4"}
CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
CLIENT_METRICS, GROUP = 16, 32
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}
LIVE: dict[str, Any] = {"linger.ms": 1, "log_level": 0, "reconnect.backoff.max.ms": 500, "message.timeout.ms": 0}


@pytest.fixture(scope="module")
def distribution() -> apache_kafka.KafkaDistribution:
    found = apache_kafka.installed()
    if found is None:
        pytest.skip("Apache Kafka is not in .cache (python tools/apache_kafka.py fetches it)")
    return found


@pytest.fixture
def kafka(distribution: apache_kafka.KafkaDistribution, tmp_path: Path) -> Iterator[apache_kafka.ApacheKafkaBroker]:
    node = apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "data", KAFKA_SETTINGS, jvm=HEAP)
    node.format()
    yield node
    node.kill()


def millstream_on(kafka: apache_kafka.ApacheKafkaBroker, directory: Path, **more: Any) -> EmbeddedBroker:
    """Millstream in the place of Kafka: at the same address, so that clients go on without a change."""
    return EmbeddedBroker(SHARED_SETTINGS | more, data_dir=directory, port=kafka.port, start_timeout=120)


def refused(data_dir: Path) -> str:
    """What `millstream serve` says when it does not start on this directory."""
    arguments = ["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--set", "node.id=1", "--no-http"]
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "serve", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode not in (0, -9)
    assert "Traceback" not in done.stderr
    return done.stderr


# What a cluster has, read over Kafka's protocol


def state_of(bootstrap: str) -> dict[str, Any]:
    """Everything that has to be equal before and after a move."""
    with cluster_of(bootstrap) as cluster:
        admin, groups = TopicAdmin(cluster), GroupAdmin(cluster)
        topics = {topic.name: topic for topic in admin.topics() if not topic.name.startswith("__")}
        versions = cluster.call("api_versions", client_software_name="test", client_software_version="1")
        kinds = {each.name: each.type.lower() for each in groups.groups()}
        shares = {each.name for each in groups.groups(share=True)}
        return {
            "cluster id": admin.cluster().cluster_id,
            "topics": {name: (topic.topic_id, len(topic.partitions)) for name, topic in topics.items()},
            "topic settings": {
                name: {each.name: each.value for each in admin.settings(ConfigResource.TOPIC, name) if each.is_own}
                for name in topics
            },
            "features": {each.name: each.max_version_level for each in versions.finalized_features},
            "group settings": _settings(cluster, GROUP, "queue"),
            "client metrics": _settings(cluster, CLIENT_METRICS, "latency"),
            "broker settings": {
                each.name: each.value
                for each in admin.settings(ConfigResource.BROKER, "1")
                if each.source.startswith("DYNAMIC") and each.name not in ("min.insync.replicas", "cluster.id")
            },
            "groups": {name: (kind, groups.offsets(name)) for name, kind in kinds.items() if name not in shares},
            "queues": {name: groups.offsets(name, share=True) for name in shares},
            "transactions": {
                each.transactional_id: (each.producer_id, each.state)
                for each in TransactionAdmin(cluster).transactions()
            },
            "users": UserAdmin(cluster).users(),
            "ACLs": sorted(AclAdmin(cluster).list()),
            "quotas": {str(each): dict(each.values) for each in QuotaAdmin(cluster).quotas()},
            "committed records": {name: _records(bootstrap, topics[name], "read_committed") for name in topics},
            "records": {name: _records(bootstrap, topics[name], "read_uncommitted") for name in topics},
        }


def await_state(bootstrap: str, expected: dict[str, Any]) -> None:
    """Coordinators load their partitions after the start: until then Kafka lists no groups and no transactions."""

    def is_there() -> None:
        with cluster_of(bootstrap) as cluster:
            assert {each.name for each in GroupAdmin(cluster).groups()} >= expected["groups"].keys()
            assert {each.name for each in GroupAdmin(cluster).groups(share=True)} == expected["queues"].keys()
            found = {each.transactional_id for each in TransactionAdmin(cluster).transactions()}
            assert found == expected["transactions"].keys()

    eventually(is_there)
    found = state_of(bootstrap)
    for name, value in expected.items():
        assert found[name] == value, name


def _records(bootstrap: str, topic: Any, isolation: str) -> list[Any]:
    return [read_all(bootstrap, topic.name, number, isolation) for number in range(len(topic.partitions))]


def _settings(cluster: Cluster, kind: int, name: str) -> dict[str, str]:
    wanted = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (row,) = cluster.call("describe_configs", resources=[wanted], include_synonyms=False).results
    return {each.name: each.value for each in row.configs if each.config_source in (7, 8)}


def _set(cluster: Cluster, kind: int, name: str, **values: str) -> None:
    configs = [{"name": key.replace("_", "."), "config_operation": 0, "value": value} for key, value in values.items()]
    row = {"resource_type": kind, "resource_name": name, "configs": configs}
    (response,) = cluster.call("incremental_alter_configs", resources=[row], validate_only=False).responses
    assert response.error_code == 0, response.error_message


# What is written


def fill(kafka: apache_kafka.ApacheKafkaBroker) -> None:
    """A little of everything that a cluster can have."""
    at = kafka.bootstrap_servers
    make_source_topic(at, "orders", 2, {"retention.ms": "-1"})
    make_source_topic(at, "table", 1, COMPACTED)
    make_source_topic(at, "jobs")
    for partition in range(2):
        produce(at, "orders", [f"v{n}" for n in range(60)], partition=partition, **{"compression.type": "zstd"})
    delete_records(at, "orders", 7)
    transaction(at, "orders", ["c1", "c2"], "commit", transactional_id="committed")
    transaction(at, "orders", ["a1", "a2"], "abort", transactional_id="aborted")
    for _ in range(3):
        produce(at, "table", [f"v{n}" for n in range(20)])
    produce(at, "jobs", [f"job{n}" for n in range(20)])
    for group, protocol in (("old", "classic"), ("new", "consumer")):
        assert len(read_as_group(at, group, 20, protocol)) == 20
    with cluster_of(at) as cluster:
        UserAdmin(cluster).set_password("alice", "secret", ["SCRAM-SHA-256", "SCRAM-SHA-512"], 4096)
        acl = Acl(
            "User:alice",
            AclResourceType.TOPIC,
            "orders",
            AclPatternType.PREFIXED,
            AclOperation.READ,
            AclPermission.ALLOW,
            "*",
        )
        AclAdmin(cluster).add([acl])
        QuotaAdmin(cluster).alter({"user": "alice", "client-id": None}, {"producer_byte_rate": 1e6})
        TopicAdmin(cluster).change(ConfigResource.BROKER, "", [ConfigChange("log.retention.ms", "9000000000")])
        _set(cluster, CLIENT_METRICS, "latency", metrics="org.apache.kafka.producer.", interval_ms="5000")
        _set(cluster, GROUP, "queue", share_auto_offset_reset="earliest")
    consumed = kafka.distribution.run(
        CONSOLE_SHARE_CONSUMER,
        *("--bootstrap-server", at, "--topic", "jobs", "--group", "queue", "--max-messages", "8"),
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    assert len(consumed.stdout.split()) == 8, consumed.stderr

    def is_compacted() -> None:
        produce(at, "table", ["tick"])
        assert len(read_all(at, "table")) < 40

    eventually(is_compacted)


def read_as_group(bootstrap: str, group: str, count: int, protocol: str) -> list[tuple[int, int]]:
    """Partitions and offsets of the next records of partition 1 and 0 of `orders`; commits them."""
    settings = {"group.protocol": protocol, "isolation.level": "read_committed", "enable.auto.commit": False}
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )
    seen: list[tuple[int, int]] = []
    try:
        reader.subscribe(["orders"])
        while len(seen) < count:
            message = reader.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
            seen.append((message.partition() or 0, message.offset() or 0))
        latest = dict(seen)
        reader.commit(offsets=[Place("orders", at, offset + 1) for at, offset in latest.items()], asynchronous=False)
    finally:
        reader.close()
    return seen


class LiveClients:
    """Producers that stay connected over all moves: one idempotent, one with an open transaction."""

    def __init__(self, bootstrap: str, replicas: int = 1) -> None:
        self.topic = make_source_topic(bootstrap, "live", replicas=replicas)
        self.written: list[str] = []
        common = {"bootstrap.servers": bootstrap, **LIVE}
        self.producer = Producer({**common, "enable.idempotence": True})
        self.transactional = Producer(
            {**common, "transactional.id": "spanning", "transaction.timeout.ms": 800_000, "message.timeout.ms": 700_000}
        )
        self.transactional.init_transactions(TIMEOUT_SECONDS)

    def write(self, word: str) -> None:
        """Records of both producers; the transaction of the last call is committed, and the next one stays open."""
        for number in range(20):
            self.producer.produce(self.topic, f"{word}{number}", partition=0)
        assert self.producer.flush(120) == 0
        self.written += [f"{word}{number}" for number in range(20)]
        if word != "first":
            self.transactional.commit_transaction(120)
        self.transactional.begin_transaction()
        for number in range(5):
            self.transactional.produce("orders", f"open {word}{number}", partition=1)
        assert self.transactional.flush(120) == 0

    def check_batches(self, directory: Path) -> None:
        """One producer id, and sequence numbers without a gap: all three programs knew the producer."""
        headers = [
            header
            for path in sorted((directory / f"{self.topic}-0").glob("*.log"))
            for _, header in iterate_headers(path.read_bytes())
        ]
        assert len({header.producer_id for header in headers}) == 1
        following = 0
        for header in headers:
            assert header.base_sequence == following
            following += header.last_offset - header.base_offset + 1
        assert following == len(self.written)


@pytest.mark.slow
def test_kafka_then_millstream_then_kafka(kafka: apache_kafka.ApacheKafkaBroker) -> None:
    kafka.start()
    at = kafka.bootstrap_servers
    fill(kafka)
    live = LiveClients(at)
    live.write("first")
    assert f"{kafka.data_dir} is in use by another broker" in refused(kafka.data_dir)
    before = state_of(at)
    assert before["transactions"]["spanning"][1] == "Ongoing"
    assert before["queues"]["queue"] == {TopicPartition("jobs", 0): 8}
    kafka.stop()
    with millstream_on(kafka, kafka.data_dir):
        await_state(at, before)
        live.write("second")
        assert min(read_as_group(at, "old", 10, "classic")) > (0, 6)
        assert read_as_group(at, "new", 10, "consumer")
        make_source_topic(at, "later", 3)
        transaction(at, "later", ["x", "y"], "commit", transactional_id="at millstream")
        with cluster_of(at) as cluster:
            UserAdmin(cluster).set_password("bob", "secret", ["SCRAM-SHA-512"], 4096)
        between = state_of(at)
        assert between["transactions"]["spanning"][1] == "Ongoing"
    kafka.start()
    await_state(at, between)
    with cluster_of(at) as cluster:
        TopicAdmin(cluster).change(ConfigResource.BROKER, "", [ConfigChange("log.retention.ms", "8000000000")])
        TopicAdmin(cluster).change(ConfigResource.TOPIC, "later", [ConfigChange("retention.ms", "5000000")])
    live.write("third")
    live.transactional.abort_transaction(120)
    values = [value for _, _, value, _, _ in read_all(at, live.topic)]
    assert values == [each.encode() for each in live.written]
    committed = [value for _, _, value, _, _ in read_all(at, "orders", 1)]
    spanning = [value for value in committed if value and value.startswith(b"open")]
    assert spanning == [f"open {word}{number}".encode() for word in ("first", "second") for number in range(5)]
    kafka.stop()
    live.check_batches(kafka.data_dir)


@pytest.mark.slow
def test_a_directory_that_millstream_made(distribution: apache_kafka.KafkaDistribution, tmp_path: Path) -> None:
    """A quorum without voters in the log: Kafka needs `controller.quorum.voters`."""
    (controller,) = free_ports(1)
    voters = {1: f"127.0.0.1:{controller}"}
    kafka = apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "data", KAFKA_SETTINGS, jvm=HEAP, voters=voters)
    kafka.write_settings()
    at = kafka.bootstrap_servers
    with millstream_on(kafka, kafka.data_dir):
        make_source_topic(at, "orders", 2, {"flush.before.ack": "true"})  # a setting that Kafka does not know
        produce(at, "orders", [f"v{n}" for n in range(40)], partition=1)
        transaction(at, "orders", ["c"], "commit", transactional_id="tx")
        assert read_as_group(at, "old", 20, "classic")
        before = state_of(at)
    del before["topic settings"]
    try:
        kafka.start()
        await_state(at, before)
        assert min(read_as_group(at, "old", 10, "classic")) >= (0, 0)
        kafka.kill()  # and an unclean stop of Kafka, before Millstream comes back
        with millstream_on(kafka, kafka.data_dir):
            assert len(read_as_group(at, "old", 11, "classic")) == 11
    finally:
        kafka.kill()


class MillstreamNodes:
    """Millstream on the directories of a Kafka cluster that has stopped, with the settings of its nodes."""

    def __init__(self, kafka: apache_kafka.ApacheKafkaCluster) -> None:
        self.nodes = [
            NodeProcess(
                f"node {node.node_id}",
                ["--config", str(node.properties_file), "--no-http"],
                node.data_dir.parent / f"millstream-{node.node_id}.log",
                stop_timeout=60,
            )
            for node in kafka.nodes
        ]

    def __enter__(self) -> "MillstreamNodes":
        try:
            for node in self.nodes:
                node.spawn()
            for node in self.nodes:
                node.wait_until_ready(120)
        except BaseException:
            self.end(signal.SIGKILL)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)

    def end(self, how: signal.Signals) -> None:
        for node in self.nodes:
            node.reap(how)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_nodes_of_kafka_then_of_millstream_then_of_kafka(
    distribution: apache_kafka.KafkaDistribution, tmp_path: Path
) -> None:
    more = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
    }
    kafka = apache_kafka.ApacheKafkaCluster(
        distribution, tmp_path, settings=KAFKA_SETTINGS | more, jvm=HEAP, start_timeout_s=300
    )
    with kafka:
        at = kafka.bootstrap_servers
        make_source_topic(at, "orders", 2, {"retention.ms": "-1"}, replicas=3)
        for partition in range(2):
            produce(at, "orders", [f"v{n}" for n in range(60)], partition=partition)
        transaction(at, "orders", ["c1", "c2"], "commit", transactional_id="committed")
        assert len(read_as_group(at, "old", 20, "classic")) == 20
        live = LiveClients(at, replicas=3)
        live.write("first")
        before = state_of(at)
        kafka.stop()
        with MillstreamNodes(kafka) as millstream:
            await_state(at, before)
            live.write("second")
            assert len(read_as_group(at, "old", 10, "classic")) == 10
            millstream.nodes[2].reap(signal.SIGKILL)
            live.write("third")
            make_source_topic(at, "later", 3, replicas=2)
            transaction(at, "later", ["x", "y"], "commit", transactional_id="at millstream")
            between = state_of(at)
        kafka.start()
        await_state(at, between)
        live.write("fourth")
        live.transactional.abort_transaction(120)
        values = [value for _, _, value, _, _ in read_all(at, live.topic)]
        assert values == [each.encode() for each in live.written]
        committed = [value for _, _, value, _, _ in read_all(at, "orders", 1)]
        spanning = [value for value in committed if value and value.startswith(b"open")]
        words = ("first", "second", "third")
        assert spanning == [f"open {word}{number}".encode() for word in words for number in range(5)]
        eventually(lambda: _check_in_sync(at))
    for node in kafka.nodes:
        live.check_batches(node.data_dir)


def _check_in_sync(bootstrap: str) -> None:
    with cluster_of(bootstrap) as cluster:
        for topic in TopicAdmin(cluster).topics():
            assert all(set(each.isr) == set(each.replicas) for each in topic.partitions), topic


@pytest.mark.slow
def test_a_directory_that_a_running_millstream_has(
    distribution: apache_kafka.KafkaDistribution, tmp_path: Path
) -> None:
    other = apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "data", jvm=HEAP)
    with EmbeddedBroker(data_dir=tmp_path / "data") as running:
        other.write_settings()
        other.start_process()
        assert other.process is not None
        try:
            assert other.process.wait(120) != 0
        finally:
            other.kill()
        assert "Failed to acquire lock on file .lock" in other.log_file.read_text()
        assert running.running
