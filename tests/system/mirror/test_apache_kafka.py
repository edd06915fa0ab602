"""Mirroring from Apache Kafka 4.3.1: transactions, compaction, groups. The move under load: test_moving.py."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from millstream.admin.migration import MigrationCheck
from millstream.admin.mirrors import MirrorError
from millstream.raw_client import TopicPartition
from millstream.testing import EmbeddedCluster
from tests.mirrors import Mirror, cluster_of, fresh, make_source_topic, produce, read_all, transaction
from tests.waiting import TIMEOUT_SECONDS, eventually, until
from tools import apache_kafka

pytestmark = [
    pytest.mark.slow,  # Kafka takes half a minute to start while others use the machine
    pytest.mark.timeout(400),
]
SETTINGS = {"log.cleaner.backoff.ms": "200", "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache_kafka.ApacheKafkaBroker]:
    try:
        distribution = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    directory = tmp_path_factory.mktemp("apache") / "kafka"
    with apache_kafka.ApacheKafkaBroker(distribution, directory, SETTINGS, jvm=("-Xmx300M", "-Xms300M")) as running:
        yield running


@pytest.fixture(scope="module")
def here() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, {"group.initial.rebalance.delay.ms": 0, "default.replication.factor": 3}) as running:
        yield running


@pytest.fixture
def mirror(kafka: apache_kafka.ApacheKafkaBroker, here: EmbeddedCluster) -> Mirror:
    return Mirror(fresh("link"), kafka.bootstrap_servers, here.bootstrap_servers)


def test_transactions_and_a_restart_of_kafka(mirror: Mirror, kafka: apache_kafka.ApacheKafkaBroker) -> None:
    topic = make_source_topic(mirror.source, fresh("orders"), 3, {"retention.ms": "86400000"})
    for partition in range(3):
        produce(mirror.source, topic, [f"v{n}" for n in range(200)], partition=partition)
    transaction(mirror.source, topic, ["c1", "c2"], "commit", transactional_id=fresh("tx"))
    transaction(mirror.source, topic, ["a1", "a2"], "abort", transactional_id=fresh("tx"))
    mirror.create(topic)
    mirror.await_equal(topic)
    assert read_all(mirror.here, topic) == read_all(mirror.source, topic)
    kafka.kill()
    kafka.restart()
    produce(mirror.source, topic, ["after"] * 50)  # in a later leader epoch
    mirror.await_equal(topic)
    assert read_all(mirror.here, topic, isolation="read_uncommitted") == read_all(
        mirror.source, topic, isolation="read_uncommitted"
    )
    epochs = [_epoch(mirror, topic, at_source) for at_source in (False, True)]
    assert epochs[0] >= epochs[1] > 0


def test_a_compacted_topic_with_gaps(mirror: Mirror) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
        "min.compaction.lag.ms": "0",
    }
    topic = make_source_topic(mirror.source, fresh("table"), 1, config)
    for _ in range(3):
        produce(mirror.source, topic, [f"v{n}" for n in range(20)])

    def is_compacted() -> None:
        produce(mirror.source, topic, ["tick"])
        assert len(read_all(mirror.source, topic)) < mirror.ends(topic, at_source=True)[0] - 10

    eventually(is_compacted)
    mirror.create(topic)
    mirror.await_equal(topic)
    ours, theirs = (
        {key: value for _, key, value, _, _ in read_all(bootstrap, topic)} for bootstrap in (mirror.here, mirror.source)
    )
    assert ours == theirs


def test_a_group_moves_to_millstream_and_goes_on(mirror: Mirror) -> None:
    topic, group = make_source_topic(mirror.source, fresh("moving")), fresh("group")
    produce(mirror.source, topic, [f"v{n}" for n in range(60)])
    consumer = Consumer(
        {"bootstrap.servers": mirror.source, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    for _ in range(33):
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None
        assert message.error() is None
    consumer.commit(offsets=[Place(topic, 0, 33)], asynchronous=False)
    consumer.close()
    mirror.create(topic, groups=group)
    mirror.await_equal(topic)
    at = TopicPartition(topic, 0)
    until(lambda: mirror.admin.cluster.committed_offsets(group, [at]) == {at: 33})
    mirror.admin.promote(mirror.name, timeout_s=60)
    assert produce(mirror.here, topic, ["own"]) == [60]
    moved = Consumer(
        {"bootstrap.servers": mirror.here, "group.id": group, "auto.offset.reset": "error", "log_level": 0}
    )
    moved.subscribe([topic])
    offsets: list[int | None] = []
    while len(offsets) < 28:
        message = moved.poll(TIMEOUT_SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        offsets.append(message.offset())
    moved.close()
    assert offsets == list(range(33, 61))
    with pytest.raises(MirrorError, match="not a Millstream"):
        mirror.admin.reverse(mirror.name, mirror.source_admin, {"bootstrap.servers": mirror.here})


def test_what_would_not_fit_is_found(mirror: Mirror) -> None:
    topic = make_source_topic(mirror.source, fresh("settings"), 1, {"min.insync.replicas": "1", "preallocate": "true"})
    with cluster_of(mirror.source) as cluster:
        checked = MigrationCheck(cluster)
        assert checked.inventory().topics >= 1
        texts = [f"{each.severity} {each.subject}: {each.text}" for each in checked.findings()]
    assert any(f"by hand topic {topic}: min.insync.replicas=1" in text for text in texts), texts
    assert any("preallocate" in text for text in texts), texts
    assert not any(text.startswith("blocks") and topic not in text for text in texts), texts


def _epoch(mirror: Mirror, topic: str, at_source: bool) -> int:
    cluster = (mirror.source_admin if at_source else mirror.admin).cluster
    row = cluster.call("metadata", topics=[{"name": topic}], allow_auto_topic_creation=False).topics[0]
    return max(each.leader_epoch for each in row.partitions)
