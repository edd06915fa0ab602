"""Leaders that die in the middle, brokers that restart or hang: calls go on by themselves."""

import threading
from collections.abc import Iterator

import pytest

from millstream.raw_client import EARLIEST, LATEST, Cluster, RefusedError, TopicPartition, UnreachableError
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, values

pytestmark = pytest.mark.timeout(300)
BATCHES = 60
SETTINGS = {
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 200,
    "default.replication.factor": 3,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as nodes:
        yield nodes


@pytest.fixture
def place(nodes: EmbeddedCluster, request: pytest.FixtureRequest) -> TopicPartition:
    """A partition with BATCHES batches of one record each, on all brokers."""
    place = TopicPartition(request.node.name, 0)
    with Cluster(nodes.bootstrap_servers) as cluster:
        make_topic(nodes, place.topic)
        leader = cluster.leader_of(place).node_id
        with Wire(nodes.address(leader)) as wire:
            for number in range(BATCHES):
                assert wire.produce(place.topic, batch(b"%d" % number)).error_code == 0
    return place


def read_all(cluster: Cluster, place: TopicPartition, at_half: threading.Event, go_on: threading.Event) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < BATCHES:
        if len(found) >= BATCHES // 2 and not at_half.is_set():
            at_half.set()
            go_on.wait()
        found += values(cluster.fetch(place, len(found), max_bytes=1, max_wait_ms=500).data)
    return found


def test_a_leader_that_dies_in_mid_read(nodes: EmbeddedCluster, place: TopicPartition) -> None:
    at_half, go_on = threading.Event(), threading.Event()
    found: list[bytes] = []
    with Cluster(nodes.bootstrap_servers, timeout_s=60) as cluster:
        reader = threading.Thread(target=lambda: found.extend(read_all(cluster, place, at_half, go_on)))
        reader.start()
        at_half.wait(60)
        leader = cluster.leader_of(place).node_id
        nodes.kill(leader)
        go_on.set()
        reader.join(TIMEOUT_SECONDS)
        assert found == [b"%d" % number for number in range(BATCHES)]
        after = cluster.topics([place.topic])[place.topic].partitions[0]
        assert after.leader != leader
        assert cluster.offsets({place: LATEST})[place].offset == BATCHES
        assert cluster.offsets({place: EARLIEST})[place].offset == 0
        cluster.commit_offsets("survivors", {place: 5})
        assert cluster.committed_offsets("survivors", [place]) == {place: 5}
        nodes.start(leader)


def test_a_leader_that_hangs(nodes: EmbeddedCluster, place: TopicPartition) -> None:
    with Cluster(nodes.bootstrap_servers, {"request.timeout.ms": "1500"}, timeout_s=60) as cluster:
        cluster.commit_offsets("hanging", {place: 5})
        leader = cluster.leader_of(place).node_id
        nodes.pause(leader)
        try:
            assert values(cluster.fetch(place, 0, max_bytes=1, max_wait_ms=100).data) == [b"0"]
            assert cluster.offsets({place: LATEST})[place].offset == BATCHES
            cluster.commit_offsets("hanging", {place: 6})
            assert cluster.committed_offsets("hanging", [place]) == {place: 6}
        finally:
            nodes.resume(leader)


def test_one_address_of_three_is_enough(nodes: EmbeddedCluster, place: TopicPartition) -> None:
    with Cluster(f"127.0.0.1:1,localhost:2,{nodes.address(2)}") as cluster:
        assert {row.node_id for row in cluster.brokers()} == set(nodes.brokers)
        leaders = {row.node_id for row in cluster.brokers() if cluster.call("describe_cluster", node=row.node_id)}
        assert leaders == set(nodes.brokers)


def test_a_broker_that_restarts() -> None:
    place = TopicPartition("t", 0)
    with EmbeddedBroker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        cluster.create_topic("t", 1, 1)
        with Wire(broker.bootstrap_servers) as wire:
            assert wire.produce("t", batch(b"a")).error_code == 0
        cluster.commit_offsets("g", {place: 1})
        for end in (broker.stop, broker.kill):
            fetch = lambda: values(cluster.fetch(place, 0, max_bytes=1000, max_wait_ms=100).data)  # noqa: E731
            assert fetch() == [b"a"]
            end()
            again = threading.Timer(0.5, broker.start)
            again.start()
            assert fetch() == [b"a"]
            assert cluster.committed_offsets("g", [place]) == {place: 1}
            again.join()
        broker.kill()
        with Cluster(broker.bootstrap_servers, timeout_s=3) as hasty:
            with pytest.raises(UnreachableError, match=rf"{broker.bootstrap_servers}: connection refused") as caught:
                hasty.topics()
            assert not caught.value.late


def test_a_partition_without_a_leader() -> None:
    with EmbeddedCluster(2, SETTINGS | {"offsets.topic.replication.factor": 1}, controllers=1) as nodes:
        with Cluster(nodes.bootstrap_servers) as cluster:
            make_topic(nodes, "alone", 2, 1)
            places = {cluster.leader_of(TopicPartition("alone", index)).node_id: index for index in range(2)}
        assert set(places) == {1, 2}
        nodes.kill(2)
        with Cluster(nodes.bootstrap_servers) as cluster, Cluster(nodes.bootstrap_servers, timeout_s=6) as hasty:
            assert cluster.offsets({TopicPartition("alone", places[1]): LATEST})
            with pytest.raises((RefusedError, UnreachableError), match=r"has no leader|connection refused"):
                hasty.offsets({TopicPartition("alone", index): LATEST for index in range(2)})
