"""Queues in a real browser: what waits, is tried again and was given up; dead letters sent back."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from millstream.raw_client import LATEST, Cluster, TopicPartition
from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import Looking
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
GROUP = "mailers"
SETTINGS = {
    "errors.deadletterqueue.topic.name": "dlq.mails",
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "60000",
}


@pytest.fixture(scope="module")
def wire(cluster: EmbeddedCluster) -> Cluster:
    return Cluster(cluster.bootstrap_servers)


@pytest.fixture(scope="module")
def worker(cluster: EmbeddedCluster, wire: Cluster, make_topic: Callable[..., str]) -> Iterator[ShareConsumer]:
    """Has rejected 4 of 20 mails, holds 2, and is done with the others."""
    make_topic("mails", 1)
    make_topic("dlq.mails", 1, **{"errors.deadletterqueue.group.enable": "true"})
    configs = [{"name": name, "config_operation": 0, "value": value} for name, value in SETTINGS.items()]
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": configs}
    (response,) = wire.call("incremental_alter_configs", resources=[resource], validate_only=False).responses
    assert response.error_code == 0, response.error_message
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(20):
        producer.produce("mails", f'{{"to": "<img src=x>{number}@example.org"}}', key=f"k{number}")
    producer.flush(TIMEOUT_SECONDS)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP, "client.id": "mailer-1"}
    consumer = ShareConsumer(settings | {"share.acknowledgement.mode": "explicit"})
    consumer.subscribe(["mails"])
    handled: dict[int, object] = {}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(handled) < 20 and time.monotonic() < deadline:
        for mail in consumer.poll(1.0):
            offset = mail.offset()
            assert offset is not None
            handled[offset] = mail
            if offset % 5 == 0:
                consumer.acknowledge(mail, AcknowledgeType.REJECT)
            elif offset not in (18, 19):
                consumer.acknowledge(mail, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
    assert len(handled) == 20
    yield consumer
    consumer.close()


def test_a_queue_shows_what_waits_and_what_was_given_up(
    looking: Looking, worker: ShareConsumer, screenshot: Callable[..., None]
) -> None:
    page = looking.open("/queues")
    looking.await_text("queues", GROUP)
    page.get_by_role("link", name=GROUP).click()
    looking.await_text("state", "Stable")
    looking.await_text("members", "mailer-1")
    looking.await_text("partitions", "mails-0")
    looking.await_text("dead-letters", "4")
    looking.await_text("settings", "dlq.mails")
    screenshot("queues", f"/queues?group={GROUP}")


def test_dead_letters_are_sent_back_where_they_came_from(
    looking: Looking, wire: Cluster, worker: ShareConsumer
) -> None:
    end = TopicPartition("mails", 0)
    before = wire.offsets({end: LATEST})[end].offset
    page = looking.open(f"/queues?group={GROUP}")
    looking.await_text("dead-letters", "4")
    page.get_by_test_id("open-letters").click()
    looking.await_text("letter-rows", "the consumer rejected the record")
    looking.await_text("letter-rows", "<img src=x>")
    assert page.locator("[data-testid=letter-rows] img").count() == 0, "records stay text"
    page.get_by_test_id("redrive").click()
    looking.await_text("dead-letters", "0")
    assert wire.offsets({end: LATEST})[end].offset == before + 4
    page.get_by_test_id("open-letters").click()
    looking.await_text("letters", "No dead letters of mailers")
