"""Quotas in a cluster of three nodes: set through any node, in force on all, mutations counted by the controller."""

from collections.abc import Iterator

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.testing.embedded_cluster import EmbeddedCluster
from tests.integration.node.quotas.test_quotas import WINDOW, describe, set_quota
from tests.topics import await_topic
from tests.waiting import eventually
from tests.wire import Wire, batch


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, settings=WINDOW) as running:
        yield running


def test_quotas_are_in_force_on_every_node(cluster: EmbeddedCluster) -> None:
    addresses = cluster.bootstrap_servers.split(",")
    assert len(addresses) == 3
    topic = {"name": "limited", "num_partitions": 3, "replication_factor": 3}
    for number, address in enumerate(addresses):
        with Wire(address, client_id="admin") as wire:  # two of them forward the request
            set_quota(wire, {"client-id": f"app-{number}"}, producer_byte_rate=10.0)
            set_quota(wire, {"client-id": f"creator-{number}"}, controller_mutation_rate=1.0)
    with Wire(addresses[0], client_id="admin") as wire:
        (row,) = wire.call("create_topics", 7, topics=[topic], timeout_ms=30_000, validate_only=False).topics
        assert row.error_code == 0, row.error_message
    for address in addresses:
        with Wire(address, client_id="admin") as wire:
            eventually(lambda wire=wire: _count(len(describe(wire)), 6))  # type: ignore[misc]
            named = wire.call("metadata", 12, topics=[{"name": "limited"}], allow_auto_topic_creation=False)
        leaders = {each.node_id: f"{each.host}:{each.port}" for each in named.brokers}
    for row in named.topics[0].partitions:
        with Wire(leaders[row.leader_id], client_id="app-1") as wire:
            assert _produce(wire, row.partition_index) > 0, "each broker throttles"
        with Wire(leaders[row.leader_id], client_id="other") as wire:
            assert _produce(wire, row.partition_index) == 0


def test_mutations_are_counted_by_the_controller(cluster: EmbeddedCluster) -> None:
    refused = []
    with Wire(cluster.address(1), client_id="admin") as wire:
        set_quota(wire, {"client-id": "creator-0"}, controller_mutation_rate=1.0)
    for number, address in enumerate(cluster.bootstrap_servers.split(",")):
        with Wire(address, client_id="creator-0") as wire:
            topic = {"name": f"mutation-{number}", "num_partitions": 3, "replication_factor": 1}
            response = wire.call("create_topics", 7, topics=[topic], timeout_ms=30_000, validate_only=False)
            refused.append(response.topics[0].error_code)
            if refused[-1]:
                assert response.throttle_time_ms > 0
    assert refused.count(ErrorCode.THROTTLING_QUOTA_EXCEEDED) >= 1, refused
    assert refused[0] == 0


def test_mutations_of_clients_of_the_controller_itself(cluster: EmbeddedCluster) -> None:
    """`--bootstrap-controller` is no way around the quota."""
    with Wire(cluster.address(1), client_id="admin") as wire:
        set_quota(wire, {"client-id": "creator-0"}, controller_mutation_rate=1.0)

    def create(address: str, name: str) -> int:
        with Wire(address, client_id="creator-0") as wire:
            topic = {"name": name, "num_partitions": 20, "replication_factor": 1}
            response = wire.call("create_topics", 7, topics=[topic], timeout_ms=30_000, validate_only=False)
            return int(response.topics[0].error_code)

    outcomes = [
        [create(cluster.controller_address(number), f"direct-{number}-{again}") for again in range(3)]
        for number in cluster.nodes
    ]
    (active,) = [each for each in outcomes if ErrorCode.NOT_CONTROLLER not in each]
    assert active[1:] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 2, outcomes


def test_replication_is_exempt(cluster: EmbeddedCluster) -> None:
    """Followers fetch as the same user, whose quota is one byte per second."""
    quota: dict[str, str | None] = {"user": None}
    with Wire(cluster.address(1), client_id="admin") as wire:
        configs = [{"name": "min.insync.replicas", "value": "3"}]
        topic = {"name": "replicated", "num_partitions": 1, "replication_factor": 3, "configs": configs}
        (row,) = wire.call("create_topics", 7, topics=[topic], timeout_ms=30_000, validate_only=False).topics
        assert row.error_code == 0, row.error_message
        set_quota(wire, quota, consumer_byte_rate=1.0, request_percentage=0.01)
    try:
        await_topic(cluster, "replicated")
        with Wire(cluster.address(1), client_id="metadata") as wire:
            found = wire.call("metadata", 12, topics=[{"name": "replicated"}], allow_auto_topic_creation=False)
        leader = found.topics[0].partitions[0].leader_id
        rows = [{"name": "replicated", "partition_data": [{"index": 0, "records": batch(b"x" * 5000)}]}]
        for _ in range(3):  # a new connection each: the client itself is muted for its share of the time
            with Wire(cluster.address(leader), client_id="producer") as wire:
                response = wire.call("produce", 12, acks=-1, timeout_ms=10_000, topic_data=rows)
                assert response.responses[0].partition_responses[0].error_code == 0
    finally:
        with Wire(cluster.address(2), client_id="admin") as wire:
            set_quota(wire, quota, consumer_byte_rate=None, request_percentage=None)


def _produce(wire: Wire, partition: int) -> int:
    rows = [{"name": "limited", "partition_data": [{"index": partition, "records": batch(b"x" * 5000)}]}]
    response = wire.call("produce", 12, acks=-1, timeout_ms=10_000, topic_data=rows)
    assert response.responses[0].partition_responses[0].error_code == 0
    return int(response.throttle_time_ms)


def _count(found: int, wanted: int) -> None:
    assert found == wanted
