"""The client against a real broker: topics, offsets, fetch, groups, and what is said of mistakes."""

import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import confluent_kafka
import pytest

from millstream.raw_client import (
    EARLIEST,
    LATEST,
    Cluster,
    CoordinatorKind,
    ErrorCode,
    OffsetOutOfRangeError,
    RefusedError,
    TopicPartition,
    WireError,
)
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, values

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cluster(millstream_broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(millstream_broker.bootstrap_servers, timeout_s=TIMEOUT_SECONDS) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"wire-{uuid4().hex[:8]}"
    cluster.create_topic(name, 3, 1, {"retention.ms": "-1"})
    return name


@pytest.fixture
def place(topic: str) -> TopicPartition:
    return TopicPartition(topic, 1)


def write(broker: EmbeddedBroker, place: TopicPartition, *records: bytes, timestamp: int | None = None) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.produce(place.topic, batch(*records, timestamp=timestamp), place.partition).error_code == 0


def test_topics_have_partitions_and_leaders(cluster: Cluster, topic: str) -> None:
    found = cluster.topics([topic, "no-such-topic"])
    assert set(found) == {topic}
    assert [row.index for row in found[topic].partitions] == [0, 1, 2]
    assert {row.leader for row in found[topic].partitions} == {row.node_id for row in cluster.brokers()}
    assert found[topic].topic_id.int
    assert topic in cluster.topics()
    assert cluster.topics([]) == {}
    assert cluster.partitions_of(topic) == 3


def test_offsets_are_found_by_time_and_position(
    cluster: Cluster, millstream_broker: EmbeddedBroker, topic: str, place: TopicPartition
) -> None:
    write(millstream_broker, place, b"a", b"b", timestamp=1000)
    write(millstream_broker, place, b"c", timestamp=2000)
    empty = TopicPartition(topic, 0)
    assert {at: row.offset for at, row in cluster.offsets({place: LATEST, empty: LATEST}).items()} == {
        place: 3,
        empty: 0,
    }
    assert cluster.offsets({place: EARLIEST})[place].offset == 0
    assert cluster.offsets({place: 1500})[place][:2] == (2, 2000)
    assert cluster.offsets({place: 2001})[place].offset == -1
    assert cluster.offsets({}) == {}


def test_fetch_returns_records_and_watermarks(
    cluster: Cluster, millstream_broker: EmbeddedBroker, place: TopicPartition
) -> None:
    write(millstream_broker, place, b"a", b"b")
    write(millstream_broker, place, b"c")
    fetched = cluster.fetch(place, 0, max_bytes=1 << 20, max_wait_ms=1000)
    assert values(fetched.data) == [b"a", b"b", b"c"]
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (3, 3, 0)
    assert values(cluster.fetch(place, 2, max_bytes=1, max_wait_ms=1000).data) == [b"c"]
    assert not cluster.fetch(place, 3, max_bytes=1 << 20, max_wait_ms=1).data


def test_a_fetch_names_aborted_transactions(
    cluster: Cluster, millstream_broker: EmbeddedBroker, place: TopicPartition
) -> None:
    settings = {"bootstrap.servers": millstream_broker.bootstrap_servers, "transactional.id": place.topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(place.topic, b"aborted", partition=place.partition)
    producer.flush()
    assert cluster.offsets({place: LATEST})[place].offset == 0
    assert cluster.offsets({place: LATEST}, read_committed=False)[place].offset == 1
    assert not cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=1).data
    assert values(cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=1, read_committed=False).data) == [b"aborted"]
    producer.abort_transaction()
    fetched = cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=5000)
    assert [first for _, first in fetched.aborted] == [0]
    assert fetched.last_stable_offset == 2


def test_a_fetch_that_waits_blocks_no_one(
    cluster: Cluster, millstream_broker: EmbeddedBroker, place: TopicPartition
) -> None:
    got: list[bytes] = []
    asking = threading.Event()

    def wait_for_records() -> None:
        asking.set()
        got.extend(values(cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=60_000).data))

    waiter = threading.Thread(target=wait_for_records)
    waiter.start()
    asking.wait()
    for _ in range(20):
        assert place.topic in cluster.topics([place.topic])
    assert waiter.is_alive()
    write(millstream_broker, place, b"at last")
    waiter.join(TIMEOUT_SECONDS)
    assert got == [b"at last"]


def test_offsets_out_of_range(cluster: Cluster, millstream_broker: EmbeddedBroker, place: TopicPartition) -> None:
    write(millstream_broker, place, b"a", b"b", b"c")
    row = {"partition_index": place.partition, "offset": 2}
    response = cluster.call("delete_records", topics=[{"name": place.topic, "partitions": [row]}], timeout_ms=5000)
    assert response.topics[0].partitions[0].error_code == 0
    for offset, why in ((0, "deleted"), (4, "not written yet")):
        with pytest.raises(OffsetOutOfRangeError, match=why) as caught:
            cluster.fetch(place, offset, max_bytes=1000, max_wait_ms=1)
        assert (caught.value.log_start, caught.value.log_end) == (2, 3)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_missing_topics_partitions_and_brokers_are_named(millstream_broker: EmbeddedBroker, topic: str) -> None:
    missing = TopicPartition("no-such-topic", 0)
    with Cluster(millstream_broker.bootstrap_servers, timeout_s=3) as cluster:
        for ask in (
            lambda: cluster.partitions_of("no-such-topic"),
            lambda: cluster.fetch(missing, 0, max_bytes=1000, max_wait_ms=1),
            lambda: cluster.offsets({missing: LATEST}),
        ):
            with pytest.raises(RefusedError, match="'no-such-topic' does not exist") as caught:
                ask()
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(RefusedError, match=r"partition 3 of topic .* which has 3"):
            cluster.fetch(TopicPartition(topic, 3), 0, max_bytes=1000, max_wait_ms=1)
        with pytest.raises(RefusedError, match="broker 77"):
            cluster.call("describe_log_dirs", node=77, topics=None)
        assert "no-such-topic" not in cluster.topics(), "asking for a topic must not create it"


def test_a_topic_that_appears_meanwhile(cluster: Cluster, millstream_broker: EmbeddedBroker) -> None:
    name = f"late-{uuid4().hex[:8]}"

    def create() -> None:
        time.sleep(0.3)
        with Cluster(millstream_broker.bootstrap_servers) as other:
            other.create_topic(name, 2, 1)

    creator = threading.Thread(target=create)
    creator.start()
    assert cluster.offsets({TopicPartition(name, 1): LATEST})[name, 1].offset == 0  # type: ignore[index]
    creator.join()


def test_a_topic_created_again(cluster: Cluster, millstream_broker: EmbeddedBroker, place: TopicPartition) -> None:
    write(millstream_broker, place, b"old")
    before = cluster.topics([place.topic])[place.topic].topic_id
    cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=1)
    with Cluster(millstream_broker.bootstrap_servers) as other:
        deleted = other.call("delete_topics", topics=[{"name": place.topic}], timeout_ms=9000)
        assert deleted.responses[0].error_code == 0
        other.create_topic(place.topic, 3, 1)
    with pytest.raises(RefusedError, match="created again") as caught:
        cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=1)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert cluster.topics([place.topic])[place.topic].topic_id != before
    with pytest.raises(RefusedError, match=str(before)):
        cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=1, topic_id=before)
    assert not cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=1).data


def test_a_deleted_topic_is_gone(cluster: Cluster, topic: str) -> None:
    assert topic in cluster.topics([topic])
    assert cluster.call("delete_topics", topics=[{"name": topic}], timeout_ms=9000).responses[0].error_code == 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while topic in cluster.topics() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert topic not in cluster.topics([topic])


def test_create_topic_raises_the_error_of_the_broker(cluster: Cluster, topic: str) -> None:
    with pytest.raises(RefusedError) as caught:
        cluster.create_topic(topic, 1, 1)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(RefusedError) as caught:
        cluster.create_topic("not a name", 1, 1)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(RefusedError) as caught:
        cluster.create_topic(f"{topic}-2", 1, 1, {"retention.ms": "never"})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_offsets_of_a_group_are_committed_and_read(cluster: Cluster, topic: str, place: TopicPartition) -> None:
    group = f"g-{topic}"
    assert cluster.committed_offsets(group, [place]) == {}
    cluster.commit_offsets(group, {place: 7})
    cluster.commit_offsets(group, {})
    assert cluster.committed_offsets(group, [place, TopicPartition(topic, 0)]) == {place: 7}
    with pytest.raises(RefusedError, match=f"group '{group}' for no-such-topic-0"):
        cluster.commit_offsets(group, {TopicPartition("no-such-topic", 0): 1})


def test_a_group_with_members_is_not_ours(
    cluster: Cluster, millstream_broker: EmbeddedBroker, place: TopicPartition
) -> None:
    group = f"members-{place.topic}"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": millstream_broker.bootstrap_servers, "group.id": group})
    try:
        consumer.subscribe([place.topic])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        with pytest.raises(RefusedError, match="has members, which commit themselves"):
            cluster.commit_offsets(group, {place: 1})
    finally:
        consumer.close()


def test_calls_reach_a_node_or_a_coordinator(cluster: Cluster) -> None:
    (broker,) = cluster.brokers()
    assert cluster.call("describe_cluster").cluster_id
    assert cluster.call("describe_log_dirs", node=broker.node_id, topics=None).results
    for _ in range(2):
        response = cluster.call_coordinator(
            "some-id",
            CoordinatorKind.TRANSACTION,
            "init_producer_id",
            transactional_id="some-id",
            transaction_timeout_ms=10_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert response.error_code == 0
    with pytest.raises(WireError, match="no common version of fetch"):
        cluster.call("fetch", at_most=1)


def test_several_requests_are_in_flight_on_one_connection(cluster: Cluster, topic: str) -> None:
    (broker,) = cluster.brokers()
    with cluster.connection(broker.node_id) as connection:
        sent = [connection.send("metadata", {"topics": [{"name": topic}]}, 5) for _ in range(10)]
        assert all(connection.receive(each, 5).topics[0].name == topic for each in sent)


def test_a_closed_cluster_refuses_calls(millstream_broker: EmbeddedBroker) -> None:
    cluster = Cluster(millstream_broker.bootstrap_servers)
    cluster.topics([])
    cluster.close()
    with pytest.raises(WireError, match="is closed"):
        cluster.topics([])
