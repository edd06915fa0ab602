"""Cluster and pipelines in a real browser."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking, Traffic
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
_TOPIC, _BROKER = 2, 4


@pytest.fixture(scope="module")
def wire(cluster: EmbeddedCluster) -> Cluster:
    return Cluster(cluster.bootstrap_servers)


def test_the_cluster_page_shows_where_leaders_replicas_and_bytes_are(
    looking: Looking, cluster: EmbeddedCluster, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    page = looking.open("/cluster")
    looking.await_text("brokers-up", "3 / 3")
    for number in cluster.nodes:
        looking.await_text("brokers", cluster.address(number))
    looking.await_text("quorum", "leader")
    looking.await_text("quorum-note", "epoch")
    looking.await_text("reassignments", "No reassignments")
    page.get_by_test_id("chart-replicas").locator("canvas").wait_for()
    screenshot("cluster", "/cluster")


def test_leaders_go_back_where_they_are_preferred(
    looking: Looking, wire: Cluster, make_topic: Callable[..., str]
) -> None:
    make_topic("displaced", 1, 2)
    (partition,) = wire.topics(["displaced"])["displaced"].partitions
    swapped = [*reversed(partition.replicas)]
    _reassign(wire, "displaced", swapped)
    page = looking.open("/cluster")
    page.wait_for_function("Number(document.querySelector('[data-testid=displaced]').innerText) > 0")
    page.get_by_test_id("elect").click()
    page.wait_for_function("document.querySelector('[data-testid=displaced]').innerText === '0'")
    _await_leader(wire, "displaced", swapped[0])


def _await_leader(wire: Cluster, topic: str, leader: int) -> None:
    """Any broker may be asked, and hear of an election later than the page."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while wire.topics([topic])[topic].partitions[0].leader != leader:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _reassign(wire: Cluster, topic: str, replicas: list[int]) -> None:
    """Only their order changes, so the leader stays."""
    row = {"partition_index": 0, "replicas": replicas}
    topics = [{"name": topic, "partitions": [row]}]
    response = wire.call("alter_partition_reassignments", topics=topics, timeout_ms=30_000)
    assert response.error_code == 0
    assert response.responses[0].partitions[0].error_code == 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while list(wire.topics([topic])[topic].partitions[0].replicas) != replicas:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_progress_of_pipelines_is_read_from_their_groups(
    looking: Looking, wire: Cluster, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    topic_partition = TopicPartition("orders", 0)
    wire.commit_offsets("shop.revenue", {topic_partition: 1})
    page: Any = looking.open("/pipelines")
    looking.await_text("pipelines", "revenue")
    for offset in range(2, 400):
        wire.commit_offsets("shop.revenue", {topic_partition: offset})
        if page.get_by_test_id("pipelines").get_by_text("running").count():
            break
        page.wait_for_timeout(250)
    looking.await_text("pipelines", "running")
    page.wait_for_function("Number(document.querySelector('[data-testid=running]').innerText) >= 1")
    screenshot("pipelines", "/pipelines")


@pytest.mark.slow
def test_a_move_under_way_is_shown_with_its_progress(
    looking: Looking, cluster: EmbeddedCluster, wire: Cluster, make_topic: Callable[..., str]
) -> None:
    make_topic("moving", 1, 1)
    (partition,) = wire.topics(["moving"])["moving"].partitions
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(40):
        producer.produce("moving", os.urandom(100_000))
        producer.flush(TIMEOUT_SECONDS)
    rates = {f"{side}.replication.throttled.rate": "150000" for side in ("leader", "follower")}
    replicas = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    _configure(wire, _TOPIC, "moving", replicas)
    for number in cluster.nodes:
        _configure(wire, _BROKER, str(number), rates)
    target = next(number for number in cluster.nodes if number != partition.leader)
    topics = [{"name": "moving", "partitions": [{"partition_index": 0, "replicas": [target]}]}]
    assert wire.call("alter_partition_reassignments", topics=topics, timeout_ms=30_000).error_code == 0
    try:
        page = looking.open("/cluster")
        looking.await_text("reassignments", "moving-0")
        looking.await_text("moving", "1")
        page.wait_for_function(
            "/\\b[1-9]\\d? %/.test(document.querySelector('[data-testid=reassignments] tbody').innerText)"
        )
    finally:
        for number in cluster.nodes:
            _configure(wire, _BROKER, str(number), dict.fromkeys(rates))
    looking.await_text("reassignments", "No reassignments")
    _await_leader(wire, "moving", target)


def _configure(wire: Cluster, kind: int, name: str, settings: Mapping[str, str | None]) -> None:
    rows = [
        {"name": key, "config_operation": int(value is None), "value": value}  # to set is 0, to take back 1
        for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    (response,) = wire.call("incremental_alter_configs", resources=[resource], validate_only=False).responses
    assert response.error_code == 0, response.error_message
