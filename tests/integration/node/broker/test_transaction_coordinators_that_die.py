"""Transaction coordinators that die in the middle of many ends: the next one finishes them, each exactly once."""

from collections import Counter
from collections.abc import Iterator

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests import wire as wires
from tests.integration.node.broker.test_coordinators_in_a_cluster import Cluster, eventually
from tests.integration.node.broker.transactions_on_the_wire import PASSING, TransactionalProducer, committed_values

SETTINGS = {
    "transaction.state.log.num.partitions": 6,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
PRODUCERS = 12


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with EmbeddedCluster(3, SETTINGS) as running:
        made = Cluster(running)
        yield made
        made.close()
        for number in running.nodes:
            log = running.log_file(number).read_text()
            assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


def on_coordinator(cluster: Cluster, number: int) -> list[str]:
    """Transactional ids that this broker coordinates."""
    cluster.coordinator("first", 1)
    names = [f"tx-{each}" for each in range(300)]
    rows = cluster.any.call("find_coordinator", 6, key_type=1, coordinator_keys=names).coordinators
    return [row.key for row in rows if row.node_id == number][:PRODUCERS]


@pytest.mark.parametrize("adds", [False, True], ids=["version-1", "version-2"])
def test_the_next_coordinator_finishes_what_was_decided(cluster: Cluster, adds: bool) -> None:
    cluster.create("t", 2)
    cluster.coordinator("first", 1)
    leaders = {cluster.leader("t", 0), cluster.leader("t", 1)}
    victim = next(number for number in cluster.nodes.brokers if number not in leaders)
    names = on_coordinator(cluster, victim)
    assert len(names) == PRODUCERS
    producers = []
    for at, name in enumerate(names):
        producer = TransactionalProducer(cluster.wire(victim), name, adds=adds)
        if not adds:
            assert producer.add("t", 0, 1) == [0, 0]
        for partition in (0, 1):
            producer.leader = cluster.wire(cluster.leader("t", partition))
            producer.put("t", b"%d" % at, partition=partition)
        producers.append(producer)
    version = 5 if adds else 3
    wire = cluster.wire(victim)
    for at, producer in enumerate(producers):
        wire.send("end_txn", version, committed=at % 3 != 0, **producer._who)
    for _ in range(PRODUCERS // 3):
        assert wire.receive("end_txn", version)[1].error_code == 0
    cluster.kill(victim)

    for at, producer in enumerate(producers):

        def ended(producer: TransactionalProducer = producer, committed: bool = at % 3 != 0) -> Message | None:
            try:
                response = cluster.coordinator(producer.name, 1).call(
                    "end_txn", version, committed=committed, **producer._who
                )
            except (wires.Closed, OSError):
                return None
            return None if response.error_code in PASSING else response

        response = eventually(ended, f"{producer.name} is not ended")
        assert response.error_code == 0, ErrorCode(response.error_code)
        if adds:
            assert (response.producer_id, response.producer_epoch) == (producer.producer_id, producer.epoch + 1)

    expected = Counter(b"%d" % at for at in range(PRODUCERS) if at % 3 != 0)
    for partition in (0, 1):

        def seen(partition: int = partition) -> bool | None:
            values = committed_values(cluster.wire(cluster.leader("t", partition)), "t", partition)
            assert not Counter(values) - expected
            return Counter(values) == expected or None

        eventually(seen, f"not all is decided in partition {partition}")
    for producer in producers:  # and each goes on
        producer.coordinator = cluster.coordinator(producer.name, 1)
        fields = {"transactional_id": producer.name, "transaction_timeout_ms": 60_000}
        response = producer._with_retries("init_producer_id", 5, producer_id=-1, producer_epoch=-1, **fields)
        assert response.producer_epoch > producer.epoch
