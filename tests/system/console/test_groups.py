"""Groups in a real browser: members and lag, offsets moved after a preview, a group deleted after one query."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking, Traffic, choose
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def wire(cluster: EmbeddedCluster) -> Cluster:
    return Cluster(cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def resting(cluster: EmbeddedCluster, wire: Cluster, make_topic: Callable[..., str]) -> str:
    """A group without members that is 60 records behind, whose name is no HTML."""
    make_topic("audited", 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(80):
        producer.produce("audited", str(number), partition=number % 2)
    producer.flush(TIMEOUT_SECONDS)
    name = "audit <b>bold</b>/?&"
    wire.commit_offsets(name, {TopicPartition("audited", 0): 10, TopicPartition("audited", 1): 10})
    return name


def test_groups_are_listed_and_filtered(looking: Looking, traffic: Traffic, resting: str) -> None:
    page = looking.open("/groups")
    looking.await_text("groups", "billing")
    looking.await_text("groups", resting)
    assert page.locator("[data-testid=groups] b").count() == 0, "names stay text"
    page.keyboard.press("/")
    page.keyboard.type("audit")
    page.get_by_test_id("groups").get_by_text("billing").wait_for(state="hidden")
    page.get_by_role("link", name=resting).click()
    page.get_by_test_id("page-title").filter(has_text=resting).wait_for()
    looking.await_text("lag", "60")


def test_a_group_shows_members_assignment_and_lag(
    looking: Looking, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    page = looking.open("/groups?group=billing")
    looking.await_text("state", "Stable")
    looking.await_text("members", "billing-1")
    looking.await_text("members", "orders-0")
    looking.await_text("offsets", "orders-5")
    page.get_by_test_id("chart-lag").locator("canvas").wait_for()
    screenshot("groups", "/groups")
    screenshot("group", "/groups?group=billing", lambda tab: tab.wait_for_timeout(6000))


def _committed(wire: Cluster, group: str) -> dict[int, int]:
    topic_partitions = [TopicPartition("audited", number) for number in (0, 1)]
    return {
        topic_partition.partition: offset
        for topic_partition, offset in wire.committed_offsets(group, topic_partitions).items()
    }


def test_offsets_are_moved_as_the_preview_showed(
    looking: Looking, wire: Cluster, resting: str, screenshot: Callable[..., None]
) -> None:
    from urllib.parse import quote

    path = f"/groups?group={quote(resting, safe='')}"
    page = looking.open(path)
    looking.await_text("lag", "60")
    page.get_by_test_id("open-reset").click()
    assert page.get_by_test_id("execute").is_disabled()
    _choose(page, "shift by")
    page.get_by_label("Value").fill("-15")
    page.get_by_test_id("preview").click()
    looking.await_text("moves", "outside the log, set to its nearest end")
    assert _committed(wire, resting) == {0: 10, 1: 10}, "a preview changes nothing"
    page.get_by_label("Value").fill("5")
    page.get_by_test_id("preview").click()
    looking.await_text("moves", "+5")
    page.get_by_test_id("execute").click()
    looking.await_text("lag", "50")
    assert _committed(wire, resting) == {0: 15, 1: 15}


def test_what_is_typed_wrong_is_said(looking: Looking, resting: str) -> None:
    from urllib.parse import quote

    page = looking.open(f"/groups?group={quote(resting, safe='')}")
    looking.await_text("state", "Empty")
    page.get_by_test_id("open-reset").click()
    _choose(page, "to an offset")
    page.get_by_label("Value").fill("soon")
    page.get_by_test_id("preview").click()
    looking.await_text("complaint", "not a whole number")
    assert page.get_by_label("Value").input_value() == "soon"


def test_only_the_last_preview_counts(looking: Looking, resting: str) -> None:
    """Two that are asked for at once do not add up, and one is not shown if the form was changed meanwhile."""
    from urllib.parse import quote

    page = looking.open(f"/groups?group={quote(resting, safe='')}")
    looking.await_text("state", "Empty")
    page.get_by_test_id("open-reset").click()
    _choose(page, "to an offset")
    page.get_by_label("Value").fill("7")
    preview = page.get_by_test_id("preview")
    preview.evaluate("button => { button.click(); button.click(); button.click(); }")
    looking.await_text("execute", "Move 2 offsets")
    preview.evaluate("""button => {
        button.click();
        const field = document.querySelector("[data-testid=value]");
        field.value = "8";
        field.dispatchEvent(new Event("input", {bubbles: true}));
    }""")
    page.get_by_test_id("moves").get_by_text("Nothing changes before").wait_for()
    preview.click()
    looking.await_text("execute", "Move 2 offsets")
    assert page.get_by_test_id("moves").get_by_text("8", exact=True).count() == 2
    assert page.get_by_test_id("moves").get_by_text("7", exact=True).count() == 0


def test_an_active_group_is_left_alone(looking: Looking, traffic: Traffic) -> None:
    page = looking.open("/groups?group=billing")
    looking.await_text("state", "Stable")
    page.get_by_test_id("delete").click()
    page.get_by_text("Delete group billing?").wait_for()
    page.get_by_test_id("confirm").click()
    looking.await_text("banner", "stop its consumers first")


def test_a_group_is_deleted_after_one_question(looking: Looking, wire: Cluster, resting: str) -> None:
    wire.commit_offsets("leaving", {TopicPartition("audited", 0): 3})
    page = looking.open("/groups?group=leaving")
    looking.await_text("state", "Empty")
    page.get_by_test_id("delete").click()
    page.get_by_text("its offset in audited-0").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("its offset in audited-0").wait_for(state="detached")
    assert wire.committed_offsets("leaving", [TopicPartition("audited", 0)])
    page.get_by_test_id("delete").click()
    page.get_by_test_id("confirm").click()
    page.get_by_test_id("groups").wait_for()
    page.get_by_test_id("groups").get_by_text("leaving", exact=True).wait_for(state="detached")
    assert not wire.committed_offsets("leaving", [TopicPartition("audited", 0)])


def _choose(page: Any, text: str) -> None:
    choose(page, page.get_by_test_id("reset").get_by_label("New position"), text)
