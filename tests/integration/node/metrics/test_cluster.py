"""Metrics of a cluster: what its nodes tell of each other, and what they tell when one of them dies."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.testing import EmbeddedCluster
from tests.integration.node.metrics.conftest import Scraped, get, scraper
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS

NODES = (1, 2, 3)
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, settings={"default.replication.factor": 1, "min.insync.replicas": 2}) as running:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": running.bootstrap_servers}
        make_topic(running, "single", PARTITIONS, 1)
        make_topic(running, "safe", PARTITIONS, 3)
        producer = Producer({**servers, "acks": "all"})
        for number in range(60 * PARTITIONS):
            producer.produce("single", b"x" * 50, partition=number % PARTITIONS)
            producer.produce("safe", b"x" * 50, partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_SECONDS) == 0
        reader = Consumer({**servers, "group.id": "readers"})
        reader.commit(offsets=[TopicPartition("single", index, 10) for index in range(PARTITIONS)], asynchronous=False)
        reader.close()
        yield running


def pages(cluster: EmbeddedCluster, *numbers: int) -> list[Scraped]:
    return [scraper(cluster.address(number))() for number in numbers or NODES]


def eventually(probe: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_node_is_the_active_controller_and_all_know_which(cluster: EmbeddedCluster) -> None:
    found = pages(cluster)
    assert sum(page("millstream_active_controller") for page in found) == 1
    leaders = {page("millstream_quorum_leader_id") for page in found}
    assert len(leaders) == 1
    leader = scraper(cluster.address(int(leaders.pop())))()
    assert len(leader.matching("millstream_quorum_replica_lag_records", kind="voter")) == 3
    assert {page("millstream_cluster_brokers", state="active") for page in found} == {3}


def test_followers_copy_the_bytes_that_leaders_receive(cluster: EmbeddedCluster) -> None:
    found = pages(cluster)
    received = sum(page("millstream_topic_received_bytes_total", topic="safe") for page in found)

    def copied(direction: str) -> float:
        return sum(page(f"millstream_topic_replica_{direction}_bytes_total", topic="safe") for page in pages(cluster))

    eventually(lambda: copied("received") >= 2 * received)
    assert copied("sent") >= 2 * received
    assert sum(page("millstream_replicas", role="leader") for page in found) >= 2 * PARTITIONS
    assert any(page.matching("millstream_request_duration_seconds_count", api="FetchFollower") for page in found)


def test_the_coordinator_knows_the_lag_of_partitions_led_elsewhere(cluster: EmbeddedCluster) -> None:
    found = pages(cluster)
    coordinators = [page for page in found if page.matching("millstream_group_lag_records", group="readers")]
    assert len(coordinators) == 1
    for index in range(PARTITIONS):
        labels = {"group": "readers", "topic": "single", "partition": str(index)}
        assert coordinators[0]("millstream_group_lag_records", **labels) == 50


def test_the_controllers_listener_responds_as_well(cluster: EmbeddedCluster) -> None:
    assert get(cluster.controller_address(1), "/readyz") == (200, "ok\n")
    assert "millstream_quorum_epoch" in get(cluster.controller_address(1), "/metrics?collect[]=quorum")[1]


def test_a_death_is_seen_and_so_is_the_return(cluster: EmbeddedCluster) -> None:
    victim, witnesses = 3, (1, 2)
    shrunk = sum(page("millstream_isr_shrinks_total") for page in pages(cluster, *witnesses))
    cluster.kill(victim)

    def told(sample: str, **labels: str) -> float:
        return sum(page(sample, **labels) for page in pages(cluster, *witnesses))

    eventually(lambda: told("millstream_under_replicated_partitions") >= PARTITIONS)
    eventually(lambda: max(page("millstream_cluster_offline_partitions") for page in pages(cluster, *witnesses)) > 0)
    assert told("millstream_at_min_isr_partitions") >= PARTITIONS
    assert told("millstream_under_min_isr_partitions") == 0
    eventually(lambda: told("millstream_active_controller") == 1)
    cluster.start(victim)
    eventually(lambda: told("millstream_under_replicated_partitions") == 0)
    eventually(lambda: told("millstream_cluster_offline_partitions") == 0)
    assert told("millstream_isr_expands_total") > 0
    assert told("millstream_isr_shrinks_total") >= shrunk
