"""Cluster and pipelines in a real browser."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.testing import EmbeddedCluster
from millstream.wire import Cluster, TopicPartition
from tests.console.conftest import Looking, Traffic

pytestmark = pytest.mark.timeout(240)


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
    looking.await_text("reassignments", "Nothing moves")
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
    assert wire.topics(["displaced"])["displaced"].partitions[0].leader == swapped[0]


def _reassign(wire: Cluster, topic: str, replicas: list[int]) -> None:
    """Only their order changes, so the leader stays."""
    row = {"partition_index": 0, "replicas": replicas}
    topics = [{"name": topic, "partitions": [row]}]
    answer = wire.call("alter_partition_reassignments", topics=topics, timeout_ms=30_000)
    assert answer.error_code == 0
    assert answer.responses[0].partitions[0].error_code == 0
    deadline = time.monotonic() + 30
    while list(wire.topics([topic])[topic].partitions[0].replicas) != replicas:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_progress_of_pipelines_is_read_from_their_groups(
    looking: Looking, wire: Cluster, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    place = TopicPartition("orders", 0)
    wire.commit_offsets("shop.revenue", {place: 1})
    page: Any = looking.open("/pipelines")
    looking.await_text("pipelines", "revenue")
    for offset in range(2, 400):
        wire.commit_offsets("shop.revenue", {place: offset})
        if page.get_by_test_id("pipelines").get_by_text("running").count():
            break
        page.wait_for_timeout(250)
    looking.await_text("pipelines", "running")
    page.wait_for_function("Number(document.querySelector('[data-testid=running]').innerText) >= 1")
    screenshot("pipelines", "/pipelines")
