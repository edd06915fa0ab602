"""Topics in a real browser: the list, creating, settings, partitions, layout, hot keys, deleting."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.system.console.conftest import Looking, Traffic
from tests.waiting import TIMEOUT_SECONDS

pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.timeout(300)


def eventually(response: Callable[[], object], expected: object) -> None:
    """Brokers learn of a change one after another, and any of them may be asked."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while response() != expected:
        assert time.monotonic() < until, f"{response()} is not {expected}"
        time.sleep(0.1)


def config_of(admin: AdminClient, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(TIMEOUT_SECONDS)[name].value)


def partitions_of(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions)


def test_a_topic_from_its_creation_to_its_end(looking: Looking, admin: AdminClient) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("new-name").fill("a b")
    looking.await_text("complaint", "only letters, digits")
    page.get_by_test_id("new-name").fill("invoices")
    page.get_by_test_id("new-partitions").fill("4")
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").fill("soon")
    page.get_by_test_id("create").click()
    looking.await_text("complaint", "retention.ms=soon is not allowed")
    page.get_by_test_id("value-retention.ms").fill("3600000")
    page.get_by_test_id("create").click()
    page.get_by_test_id("page-title").filter(has_text="invoices").wait_for()
    eventually(lambda: partitions_of(admin, "invoices"), 4)
    eventually(lambda: config_of(admin, "invoices", "retention.ms"), "3600000")

    looking.await_text("topic-partitions", "4")
    looking.await_text("topic-state", "healthy")
    layout = page.get_by_test_id("layout")
    layout.get_by_text("leader", exact=True).nth(3).wait_for()  # each partition has one
    assert layout.get_by_text("Broker 3").is_visible()

    page.get_by_test_id("tab-settings").click()
    page.get_by_test_id("settings").get_by_text("retention.ms", exact=True).first.click()
    looking.await_text("edit-setting", "The minimum time for which records are kept")
    page.get_by_test_id("value-retention.ms").fill("7200000")
    page.get_by_test_id("save-setting").click()
    looking.await_text("settings", "7200000")
    eventually(lambda: config_of(admin, "invoices", "retention.ms"), "7200000")
    page.get_by_test_id("settings").get_by_text("retention.ms", exact=True).first.click()
    page.get_by_test_id("reset-setting").click()
    looking.await_closed("edit-setting")
    page.get_by_test_id("settings").get_by_text("7200000").wait_for(state="hidden")
    eventually(lambda: config_of(admin, "invoices", "retention.ms"), "604800000")

    page.get_by_test_id("add-partitions").click()
    page.get_by_test_id("partition-count").fill("6")
    page.get_by_test_id("add").click()
    looking.await_text("topic-partitions", "6")
    eventually(lambda: partitions_of(admin, "invoices"), 6)

    page.get_by_test_id("delete-topic").click()
    asked = page.locator(".ms-dialog").filter(has_text="Delete topic invoices?")
    text = asked.inner_text()
    assert "6 partitions with 18 replicas" in text
    assert "0 records" in text
    assert "no consumer groups" in text
    page.get_by_test_id("confirm").click()
    looking.await_text("page-title", "Topics")
    page.wait_for_url("**/topics")
    page.get_by_test_id("topics").get_by_text("invoices").wait_for(state="detached")
    eventually(lambda: "invoices" in admin.list_topics(timeout=TIMEOUT_SECONDS).topics, False)


def test_what_a_topic_is_like_while_it_is_used(
    looking: Looking, traffic: Traffic, screenshot: Callable[..., None]
) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("topics").get_by_text("orders", exact=True).click()
    looking.await_text("page-title", "orders")
    page.wait_for_function("Number(document.querySelector('[data-testid=topic-rate]')?.innerText) > 10")
    page.get_by_test_id("tab-readers").click()
    looking.await_text("readers", "billing")
    page.get_by_test_id("delete-topic").click()
    page.locator(".ms-dialog").get_by_text("read by group billing").wait_for()
    page.get_by_text("Cancel").click()
    page.get_by_test_id("tab-hot").click()
    looking.await_text("hot-keys", "customer-")  # brokers report every ten seconds
    looking.await_text("hot-partitions", "%")
    screenshot("topics", "/topics")
    screenshot(
        "topic", "/topics?topic=orders", lambda tab: tab.get_by_test_id("layout").get_by_text("leader").first.wait_for()
    )
    screenshot("topic-hot-keys", "/topics?topic=orders", _hot)
    screenshot("topic-settings", "/topics?topic=orders", lambda tab: tab.get_by_test_id("tab-settings").click())


def _hot(tab: Any) -> None:
    tab.get_by_test_id("tab-hot").click()
    tab.get_by_test_id("hot-keys").get_by_text("customer-").first.wait_for()


@pytest.mark.slow
def test_a_thousand_topics_are_filtered_and_sorted(looking: Looking, admin: AdminClient) -> None:
    names = [f"many-{number:04d}" for number in range(1000)]
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names], operation_timeout=60).values():
        try:
            future.result(120)
        except KafkaException as problem:  # librdkafka sent the request again, because the response was late
            if problem.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    try:
        page = looking.open("/topics")
        page.get_by_test_id("row-count").filter(has_text="1,0").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("many-09 7")
        page.get_by_test_id("topics").get_by_text("many-0907").wait_for()
        page.get_by_test_id("topics").get_by_text("many-0001").wait_for(state="detached")
        page.keyboard.press("Escape")
        page.locator("[data-filter]").fill("many")
        page.get_by_role("columnheader", name="Topic").click()  # the other way around
        page.get_by_test_id("topics").get_by_text("many-0999").wait_for()
        assert page.get_by_test_id("topics").locator("tbody tr").count() <= 60
        assert "does not respond" not in looking.text("health")
    finally:
        for future in admin.delete_topics(names, operation_timeout=60).values():
            future.result(120)
