"""Moves of replicas in a real browser: a plan is carried out as the preview showed it, throttled, and cancelled; and a
broker leaves the cluster."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.admin.cluster import ClusterAdmin
from millstream.admin.moves import FOLLOWER_REPLICAS, read_throttle
from millstream.admin.topics import TopicAdmin
from millstream.console.console import UserError
from millstream.console.live.moves import (
    DRAIN,
    MoveRun,
    Preview,
    Wish,
    parse_partitions,
    parse_rate,
    preview_plan,
    start_run,
)
from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import GatewayProcess, Looking
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS, until


@pytest.fixture(scope="module")
def client(cluster: EmbeddedCluster) -> Iterator[Cluster]:
    with Cluster(cluster.bootstrap_servers) as client:
        yield client


def replicas(client: Cluster, topic: str) -> list[list[int]]:
    return [sorted(each.replicas) for each in client.topics([topic])[topic].partitions]


def make_on_broker_1(client: Cluster, cluster: EmbeddedCluster, topic: str, partitions: int, size: int) -> None:
    """A topic on broker 1 alone that every broker knows, with some bytes in partition 0."""
    TopicAdmin(client).create(topic, assignments={index: [1] for index in range(partitions)})
    await_topic(cluster, topic, partitions)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 1})
    for _ in range(size // 100_000):
        producer.produce(topic, os.urandom(100_000), partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def test_partitions_are_placed_as_the_preview_shows(
    looking: Looking,
    client: Cluster,
    cluster: EmbeddedCluster,
    make_topic: Callable[..., str],
    screenshot: Callable[..., None],
) -> None:
    topic = "placed"
    make_on_broker_1(client, cluster, topic, 3, 300_000)
    page: Any = looking.open(f"/topics?topic={topic}")
    looking.await_text("topic-partitions", "3")
    page.get_by_test_id("move-replicas").click()
    page.get_by_test_id("page-title").filter(has_text="Reassignments").wait_for()
    page.wait_for_function("window.socket?.connected")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("complaint", "enter the brokers, the number of replicas, or both")
    page.get_by_test_id("partitions").fill("0-1")
    page.get_by_test_id("targets").fill("2,99")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("complaint", "there is no broker 99")
    page.get_by_test_id("targets").fill("2, 3")
    page.get_by_test_id("replicas").fill("2")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("plan-summary", "2 partitions, 4 new replicas, ")
    looking.await_text("planned", f"{topic}-1")
    looking.await_text("planned-brokers", "→")
    assert replicas(client, topic) == [[1], [1], [1]], "a preview changes nothing"
    page.get_by_test_id("plan-start").click()
    looking.await_text("run-status", "done, 2 of 2 partitions moved")
    assert replicas(client, topic) == [[2, 3], [2, 3], [1]]
    assert "topic=placed" in page.url and "replicas=2" in page.url

    screenshot("reassignments", f"/reassignments?plan=place&topic={topic}&replicas=3", _preview)
    make_topic("placed-everywhere", 1, 3)
    looking.open("/reassignments?plan=drain&broker=3")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("complaint", "only 2 broker(s) would be left")


def _preview(page: Any) -> None:
    page.get_by_test_id("plan-preview").click()
    page.get_by_test_id("plan-start").wait_for()


def test_a_throttled_move_is_shown_and_cancelled(looking: Looking, client: Cluster, cluster: EmbeddedCluster) -> None:
    topic = "throttled"
    make_on_broker_1(client, cluster, topic, 1, 6_000_000)
    admin = ClusterAdmin(client)
    page: Any = looking.open(f"/reassignments?plan=place&topic={topic}&brokers=2")
    page.get_by_test_id("plan-rate").fill("slow")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("complaint", "throttle")
    page.get_by_test_id("plan-rate").fill("1 KB")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("plan-summary", "at least")
    page.get_by_test_id("plan-start").click()
    looking.await_text("reassignments", f"{topic}-0")
    looking.await_text("reassignments", "MB")  # that are left
    looking.await_text("run-status", "running, 0 of 1 partition moved")
    looking.await_text("throttle", "1.0 KB/s")
    page.get_by_test_id("plan-preview").click()
    looking.await_text("complaint", "being moved already")
    page.get_by_test_id("open-throttle").click()
    page.get_by_test_id("rate").fill("2 KB")
    page.get_by_test_id("set-throttle").click()
    looking.await_text("throttle", "2.0 KB/s")
    page.get_by_test_id("reassignments").locator("tr").filter(has_text=topic).get_by_role("checkbox").click()
    page.get_by_test_id("cancel-selected").click()
    page.get_by_text(f"{topic}-0: stays on 1").wait_for()
    page.get_by_test_id("confirm").click()
    looking.await_text("reassignments", "No reassignments")
    looking.await_text("run-status", "done, 0 of 1 partition moved")  # it was cancelled
    assert replicas(client, topic) == [[1]]
    looking.await_text("throttle", "none")
    assert read_throttle(client, cluster.brokers) == {}
    assert admin.topic_settings([topic], [FOLLOWER_REPLICAS])[topic].get(FOLLOWER_REPLICAS, "") == ""


def test_a_plan_of_an_earlier_state_is_refused(client: Cluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic("outdated", 1, 1)
    (now,) = client.topics([topic])[topic].partitions
    places = (TopicPartition(topic, 0),)
    other = next(each for each in (1, 2, 3) if each not in now.replicas)
    preview = preview_plan(client, Wish("place", None, places, (other,)))
    ClusterAdmin(client).reassign({places[0]: [other]})
    until(lambda: replicas(client, topic) == [[other]])
    with pytest.raises(UserError, match="preview again"):
        start_run("place", MoveRun(client, preview, None, "", lambda: None))


def test_the_cluster_is_balanced_and_a_broker_drained_and_unregistered(window: Any, tmp_path: Path) -> None:
    # No topic has three replicas: two brokers could not take those of the third.
    settings = {"millstream.hot.keys.enable": "false", "broker.session.timeout.ms": 4000}
    with EmbeddedCluster(3, settings) as trio, Cluster(trio.bootstrap_servers) as client:
        TopicAdmin(client).create("_schemas", configs={"cleanup.policy": "compact"}, assignments={0: [2, 3]})
        make_on_broker_1(client, trio, "uneven", 6, 600_000)
        gateway = GatewayProcess(trio.bootstrap_servers, tmp_path / "gateway.log")
        looking = Looking(window.new_page(), gateway.url)
        try:
            page: Any = looking.open("/reassignments")
            page.get_by_test_id("plan-preview").click()
            looking.await_text("planned", "uneven-")
            planned = len(page.get_by_test_id("planned").locator("tbody tr").all())
            assert replicas(client, "uneven") == [[1]] * 6, "a preview changes nothing"
            page.get_by_test_id("plan-start").click()
            looking.await_text("run-status", f"balance: done, {planned} of {planned} partitions moved")
            held = Counter(number for (number,) in replicas(client, "uneven"))
            assert set(held) == {1, 2, 3} and max(held.values()) <= 3
            on_3 = [each for each in ClusterAdmin(client).partitions() if 3 in each.replicas]
            page.get_by_test_id("plan-preview").click()
            looking.await_text("plan-summary", "Nothing to move.")

            looking.open("/brokers?broker=3")
            page.get_by_test_id("unregister").click()
            looking.await_text("banner", f"it has {len(on_3)} replica")
            page.get_by_test_id("open-drain").click()
            page.get_by_test_id("page-title").filter(has_text="Reassignments").wait_for()
            page.wait_for_function("window.socket?.connected")
            page.get_by_test_id("plan-preview").click()
            looking.await_text("planned-brokers", f"{len(on_3)} → 0")
            page.get_by_test_id("plan-start").click()
            looking.await_text("run-status", f"drain broker 3: done, {len(on_3)} of {len(on_3)} partition")
            state = ClusterAdmin(client).read()
            assert state.cordoned == [3] and not any(3 in each.replicas for each in state.partitions)

            looking.open("/brokers?broker=3")
            looking.await_text("broker-state", "cordoned")
            page.get_by_test_id("unregister").click()
            looking.await_text("banner", "it has no replicas, but it runs")
            trio.stop(3)
            until(lambda: any(each.id == 3 and each.fenced for each in ClusterAdmin(client).describe().brokers))
            page.get_by_test_id("unregister").click()
            page.get_by_text("millstream cluster quorum remove 3").wait_for()
            page.get_by_test_id("confirm").click()
            page.get_by_test_id("page-title").filter(has_text="Cluster").wait_for()
            looking.await_text("brokers-up", "2 / 2")
            assert [each.id for each in ClusterAdmin(client).describe().brokers] == [1, 2]
        finally:
            looking.page.close()
            gateway.stop()
        assert looking.problems == []


def test_a_drain_names_its_user_only_to_users_who_may_see_it(client: Cluster) -> None:
    run = MoveRun(client, Preview(Wish(DRAIN, broker=2), ClusterAdmin(client).read(), []), None, "ann", lambda: None)
    assert "drain broker 2, started by ann" in run.text()
    assert "broker" not in run.text(with_names=False) and "ann" not in run.text(with_names=False)


def test_the_form_says_what_is_wrong() -> None:
    assert [each.partition for each in parse_partitions("0, 2,4-5", "t", 6)] == [0, 2, 4, 5]
    assert len(parse_partitions("all", "t", 6)) == len(parse_partitions("", "t", 6)) == 6
    for text in ("x", "6", "0-6", "3-1", "-1", "1,", "999999999"):
        with pytest.raises(UserError, match="partitions"):
            parse_partitions(text, "t", 6)
    assert parse_rate("") is None and parse_rate("1 MB/s") == parse_rate("1MB") == 1 << 20
    for text in ("fast", "-1", "0"):
        with pytest.raises(UserError, match="throttle"):
            parse_rate(text)
