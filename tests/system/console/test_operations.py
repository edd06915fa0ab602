"""Operating in a real browser: delete records, clone a topic, delete several topics; delete offsets of a group, move
offsets of several groups and delete them; nothing to do with what does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.admin.groups import GroupAdmin
from millstream.admin.topics import ConfigResource, TopicAdmin
from millstream.raw_client import EARLIEST, Cluster, RefusedError, TopicPartition
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking, choose
from tests.waiting import TIMEOUT_SECONDS


@pytest.fixture(scope="module")
def client(cluster: EmbeddedCluster) -> Any:
    with Cluster(cluster.bootstrap_servers) as client:
        yield client


def fill(cluster: EmbeddedCluster, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(records):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def test_records_are_deleted_as_previewed(
    looking: Looking, cluster: EmbeddedCluster, client: Cluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("operated-records", 2)
    fill(cluster, topic, 20)
    page: Any = looking.open(f"/topics?topic={topic}")
    page.get_by_test_id("open-delete-records").click()
    page.get_by_test_id("delete-at").fill("x")
    page.get_by_test_id("delete-preview").click()
    looking.await_text("complaint", "is not an offset")
    page.get_by_test_id("delete-at").fill("4")
    page.get_by_test_id("delete-preview").click()
    looking.await_text("delete-execute", "Delete 8 records")
    assert client.offsets({TopicPartition(topic, 0): EARLIEST})[TopicPartition(topic, 0)].offset == 0
    page.get_by_test_id("delete-execute").click()
    looking.await_closed("delete-records")
    places = [TopicPartition(topic, index) for index in (0, 1)]
    assert [each.offset for each in client.offsets(dict.fromkeys(places, EARLIEST)).values()] == [4, 4]


def test_a_topic_is_branched(looking: Looking, client: Cluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic("operated-parent", 2, 1)
    page: Any = looking.open(f"/topics?topic={topic}")
    page.get_by_test_id("branch-topic").click()
    page.get_by_test_id("branch-name").fill("operated-branch")
    page.get_by_test_id("branch-create").click()
    page.wait_for_url("**topic=operated-branch")
    made = TopicAdmin(client).topic("operated-branch")
    assert (made.branch_of, len(made.partitions)) == (topic, 2)
    TopicAdmin(client).delete("operated-branch")


def test_a_topic_is_cloned_and_several_are_deleted(
    looking: Looking, client: Cluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("operated-original", 4, 2, **{"retention.ms": "7200000", "cleanup.policy": "compact"})
    admin = TopicAdmin(client)
    page: Any = looking.open(f"/topics?topic={topic}")
    page.get_by_test_id("clone-topic").click()
    page.get_by_test_id("new-name").fill("operated-clone")
    page.get_by_test_id("create").click()
    page.wait_for_url("**topic=operated-clone")
    made = admin.topic("operated-clone")
    assert len(made.partitions) == 4 and all(len(each.replicas) == 2 for each in made.partitions)
    own = {each.name: each.value for each in admin.settings(ConfigResource.TOPIC, "operated-clone") if each.is_own}
    assert own["retention.ms"] == "7200000" and own["cleanup.policy"] == "compact"

    looking.open("/topics?filter=operated-")
    looking.await_text("topics", "operated-clone")
    for name in (topic, "operated-clone"):
        page.get_by_test_id("topics").locator("tr").filter(has_text=name).get_by_role("checkbox").click()
    looking.await_text("delete-selected", "Delete 2 topics")
    page.get_by_test_id("delete-selected").click()
    page.get_by_test_id("confirm").click()
    page.get_by_test_id("topics").get_by_text("operated-clone").wait_for(state="hidden")
    for name in (topic, "operated-clone"):
        with pytest.raises(RefusedError):
            admin.topic(name)


def test_offsets_of_one_topic_are_deleted(
    looking: Looking, cluster: EmbeddedCluster, client: Cluster, make_topic: Callable[..., str]
) -> None:
    first, second = make_topic("operated-a", 1), make_topic("operated-b", 1)
    client.commit_offsets("operated-group", {TopicPartition(first, 0): 0, TopicPartition(second, 0): 0})
    page: Any = looking.open("/groups?group=operated-group")
    looking.await_text("offsets", f"{second}-0")
    page.get_by_test_id("delete-offsets").click()
    page.get_by_test_id("delete-offsets-now").click()
    looking.await_closed("offset-deletion")
    page.get_by_test_id("offsets").get_by_text(f"{first}-0").wait_for(state="hidden")
    assert list(GroupAdmin(client).offsets("operated-group")) == [TopicPartition(second, 0)]


def test_offsets_of_several_groups_are_moved_and_the_groups_deleted(
    looking: Looking, cluster: EmbeddedCluster, client: Cluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("operated-many", 2)
    fill(cluster, topic, 20)
    names, place = ["operated-many-a", "operated-many-b"], TopicPartition(topic, 0)
    for name in names:
        client.commit_offsets(name, {place: 3})
    page: Any = looking.open("/groups?filter=operated-many-")
    for name in names:
        page.get_by_test_id("groups").locator("tr").filter(has_text=name).get_by_role("checkbox").click()
    page.get_by_test_id("move-selected").filter(has_text="Move offsets of 2 groups").click()
    choose(page, page.get_by_test_id("reset").get_by_label("New position"), "to the latest offset")
    page.get_by_test_id("preview").click()
    looking.await_text("execute", "Move 2 offsets of 2 groups")
    looking.await_text("moves", "operated-many-b")
    assert client.committed_offsets(names[1], [place]) == {place: 3}, "a preview changes nothing"
    page.get_by_test_id("execute").click()
    looking.await_closed("reset")
    assert [client.committed_offsets(name, [place]) for name in names] == [{place: 10}, {place: 10}]

    page.get_by_test_id("delete-selected").filter(has_text="Delete 2 groups").click()
    page.get_by_test_id("confirm").click()
    page.get_by_test_id("groups").get_by_text(names[1]).wait_for(state="hidden")
    assert not any(client.committed_offsets(name, [place]) for name in names)


@pytest.mark.parametrize(
    "path",
    [
        "/topics?topic=",
        "/groups?group=",
        "/queues?group=",
        "/brokers?broker=",
        "/schemas?subject=",
        "/mirrors?link=",
    ],
)
def test_a_page_of_what_does_not_exist_offers_no_change(looking: Looking, path: str) -> None:
    page: Any = looking.open(f"{path}<b>nothing</b>")
    assert "<b>nothing</b>" in looking.text("page-title")
    looking.await_text("missing", "does not exist")
    assert page.get_by_test_id("banner").is_hidden()
    buttons = page.locator("main button:visible").all_inner_texts()
    changes = ("delete", "move", "drain", "add", "promote", "fail over", "reverse", "pause", "register", "reset")
    assert not [text for text in buttons if any(word in text.lower() for word in changes)]
    assert page.locator("main button.text-negative:visible, main button.bg-negative:visible").count() == 0
