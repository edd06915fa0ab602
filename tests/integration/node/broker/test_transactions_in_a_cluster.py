"""Transactions whose coordinator, partition leaders and readers are different brokers, some of which die."""

from collections.abc import Iterator

import pytest

from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.integration.node.broker.test_coordinators_in_a_cluster import Cluster, eventually
from tests.integration.node.broker.transactions_on_the_wire import (
    TransactionalProducer,
    committed_values,
    end_offset,
    fetch_committed,
    producers,
)

SETTINGS = {
    "transaction.state.log.num.partitions": 6,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        yield running
        for number in running.nodes:
            log = running.log_file(number).read_text()
            assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def cluster(nodes: EmbeddedCluster) -> Iterator[Cluster]:
    made = Cluster(nodes)
    yield made
    made.close()
    nodes.start()


def producer_of(cluster: Cluster, name: str, topic: str, *, adds: bool = True) -> TransactionalProducer:
    leader = cluster.wire(cluster.leader(topic, 0))
    return TransactionalProducer(cluster.coordinator(name, 1), name, adds=adds, leader=leader)


@pytest.mark.parametrize("adds", [False, True], ids=["version-1", "version-2"])
def test_coordinators_elsewhere_are_asked(cluster: Cluster, adds: bool) -> None:
    topic = f"asked-{adds}"
    cluster.create(topic, 1)
    expected = []
    for number in range(8):  # of which some have their coordinator where the partition is led, and most do not
        producer = producer_of(cluster, f"asks-{adds}-{number}", topic, adds=adds)
        if not adds:
            assert producer.add(topic, 0) == [0]
        producer.put(topic, b"%d" % number)
        producer.end(committed=number % 2 == 0)
        expected += [b"%d" % number] * (number % 2 == 0)
    leader = cluster.leader(topic, 0)
    eventually(lambda: committed_values(cluster.wire(leader), topic) == expected or None, "not all is decided")
    for number in cluster.nodes.brokers:  # followers serve them as well
        eventually(
            lambda number=number: committed_values(cluster.wire(number), topic) == expected or None,  # type: ignore[misc]
            f"broker {number} does not show what is committed",
        )
        assert fetch_committed(cluster.wire(number), topic).aborted_transactions
        eventually(
            lambda number=number: (  # type: ignore[misc]
                all(each.current_txn_start_offset == -1 for each in producers(cluster.wire(number), topic).values())
                or None
            ),
            f"broker {number} has a transaction open",
        )


def test_a_transaction_goes_on_with_the_next_leader(cluster: Cluster) -> None:
    cluster.create("moves", 1)
    producer = producer_of(cluster, "mover", "moves")
    producer.put("moves", b"before")
    old = cluster.leader("moves", 0)
    coordinated_by = next(n for n in cluster.nodes.brokers if cluster.wire(n) is cluster.coordinator("mover", 1))
    cluster.kill(old)
    new = eventually(lambda: found if (found := cluster.leader("moves", 0)) != old else None, "no new leader")
    producer.leader = cluster.wire(new)
    if coordinated_by == old:
        producer.coordinator = cluster.coordinator("mover", 1)
    assert end_offset(cluster.wire(new), "moves").offset in (-1, 0), "it is open there, too"
    producer.put("moves", b"after")
    producer.commit()
    eventually(lambda: committed_values(cluster.wire(new), "moves") == [b"before", b"after"] or None, "not committed")


def test_markers_reach_a_partition_whose_leader_was_away(cluster: Cluster) -> None:
    cluster.create("away", 1)
    name = next(
        f"away-{number}"
        for number in range(50)
        if cluster.coordinator(f"away-{number}", 1) is not cluster.wire(cluster.leader("away", 0))
    )
    producer = producer_of(cluster, name, "away")
    producer.put("away", b"x")
    old = cluster.leader("away", 0)
    cluster.kill(old)
    producer.coordinator = cluster.coordinator(name, 1)
    producer.commit()  # decided, though no one leads the partition for the moment

    def is_seen() -> bool | None:
        leader = cluster.leader("away", 0)
        return (leader != old and committed_values(cluster.wire(leader), "away") == [b"x"]) or None

    eventually(is_seen, "the marker did not arrive")
