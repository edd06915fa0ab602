"""Offsets in transactions where the group's coordinator and the transaction's are different brokers, and die."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests import wire as wires
from tests.integration.node.broker.test_coordinators_in_a_cluster import PASSING, Cluster, eventually
from tests.wire import Wire

SETTINGS = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "default.replication.factor": 3,
}
RETRIED = (*PASSING, ErrorCode.CONCURRENT_TRANSACTIONS)
GROUP, TRANSACTION = 0, 1


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


class Work:
    """A transactional producer that commits offsets of a group, request by request, each until it succeeds."""

    def __init__(self, cluster: Cluster, name: str, group: str, topic: str) -> None:
        self.cluster, self.name, self.group, self.topic = cluster, name, group, topic
        response = self._ask(
            lambda wire: wire.call("init_producer_id", 4, transactional_id=name, transaction_timeout_ms=60_000),
            (name, TRANSACTION),
            lambda response: response.error_code,
        )
        self.identity = {
            "transactional_id": name,
            "producer_id": response.producer_id,
            "producer_epoch": response.producer_epoch,
        }

    def _ask(self, ask: Callable[[Wire], Any], coordinator: tuple[str, int], code_of: Callable[[Any], int]) -> Any:
        def attempt() -> Any:
            try:
                response = ask(self.cluster.coordinator(*coordinator))
            except (wires.Closed, OSError):
                return None
            return None if code_of(response) in RETRIED else response

        response = eventually(attempt, f"{coordinator} does not respond")
        assert code_of(response) == 0, ErrorCode(code_of(response))
        return response

    def commit(self, offset: int) -> None:
        rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        topics = [{"name": self.topic, "partitions": rows}]
        self._ask(
            lambda wire: wire.call("txn_offset_commit", 5, group_id=self.group, topics=topics, **self.identity),
            (self.group, GROUP),
            lambda response: response.topics[0].partitions[0].error_code,
        )

    def end(self, committed: bool) -> None:
        response = self._ask(
            lambda wire: wire.call("end_txn", 5, committed=committed, **self.identity),
            (self.name, TRANSACTION),
            lambda response: response.error_code,
        )
        self.identity |= {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}

    def fetched(self) -> tuple[int, int]:
        """Error code and stable offset."""
        topics = [{"name": self.topic, "partition_indexes": [0]}]
        response = self._ask(
            lambda wire: wire.call("offset_fetch", 7, group_id=self.group, topics=topics, require_stable=True),
            (self.group, GROUP),
            lambda response: response.error_code,
        )
        row = response.topics[0].partitions[0]
        return row.error_code, row.committed_offset

    def settled(self) -> int:
        def attempt() -> int | None:
            code, offset = self.fetched()
            return None if code == ErrorCode.UNSTABLE_OFFSET_COMMIT else offset

        return eventually(attempt, "the marker does not come")


def number_of(cluster: Cluster, wire: Wire) -> int:
    return next(number for number in cluster.nodes.brokers if cluster.wire(number) is wire)


def apart(cluster: Cluster, prefix: str) -> tuple[str, str]:
    """A transactional id and a group that have different coordinators."""
    cluster.create(prefix, 1)
    name = f"{prefix}-id"
    at = number_of(cluster, cluster.coordinator(name, TRANSACTION))
    groups = (f"{prefix}-{number}" for number in range(100))
    group = next(each for each in groups if number_of(cluster, cluster.coordinator(each, GROUP)) != at)
    return name, group


@pytest.mark.parametrize("dies", [GROUP, TRANSACTION])
@pytest.mark.parametrize("outcome", [True, False])
def test_open_offsets_outlive_a_coordinator(cluster: Cluster, dies: int, outcome: bool) -> None:
    topic = f"dies-{dies}-{outcome}"
    name, group = apart(cluster, topic)
    work = Work(cluster, name, group, topic)
    work.commit(1)
    work.end(True)
    assert work.settled() == 1
    work.commit(2)
    assert work.fetched()[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    victim = cluster.coordinator(group, GROUP) if dies == GROUP else cluster.coordinator(name, TRANSACTION)
    cluster.kill(number_of(cluster, victim))
    assert work.fetched()[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    work.commit(3)
    work.end(outcome)
    assert work.settled() == (3 if outcome else 1)
    work.commit(4)
    work.end(True)
    assert work.settled() == 4


def test_a_decided_end_reaches_a_group_that_was_away(cluster: Cluster) -> None:
    name, group = apart(cluster, "decided")
    work = Work(cluster, name, group, "decided")
    work.commit(1)
    victim = number_of(cluster, cluster.coordinator(group, GROUP))
    cluster.kill(victim)
    work.end(True)  # decided, while the group's partition may have no leader
    cluster.nodes.start()
    assert work.settled() == 1
