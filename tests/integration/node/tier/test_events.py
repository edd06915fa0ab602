"""The events of tiered storage in `__remote_log_metadata`, read by Kafka's own formatter."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.testing import EmbeddedBroker
from tests.integration.node.tier.tiered_topic import SETTINGS, make_tiered, objects, produce, until_tiered
from tests.waiting import TIMEOUT_SECONDS, until
from tools import apache_kafka

TOPIC = "__remote_log_metadata"
_SERDE = "org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde"
_FORMATTER = f"{_SERDE}$RemoteLogMetadataFormatter"
_PARTITION_DELETED = bytes([1, 2, 0])
"""The beginning of an event on a partition: frame version, type, version. Its end: the state, and no tagged fields."""


def _events(servers: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "events", "enable.auto.commit": False})
    try:
        count = len(consumer.list_topics(TOPIC, timeout=TIMEOUT_SECONDS).topics[TOPIC].partitions)
        places = [TopicPartition(TOPIC, index, 0) for index in range(count)]
        ends = [consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)[1] for place in places]
        consumer.assign([place for place, end in zip(places, ends, strict=True) if end])
        found: list[bytes] = []

        def has_all() -> bool:
            for message in consumer.consume(100, 0.2):
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
            return len(found) >= sum(ends)

        until(has_all, "not all events were read")
        return found
    finally:
        consumer.close()


def test_kafkas_formatter_reads_what_became_of_each_segment(tmp_path: Path) -> None:
    try:
        kafka = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    store = tmp_path / "store"
    settings = {**SETTINGS, "millstream.tier.url": f"file://{store}", "millstream.tier.events.enable": "true"}
    with EmbeddedBroker(settings) as broker:
        servers = broker.bootstrap_servers
        admin = make_tiered(servers, "orders")
        produce(servers, "orders", range(1000))
        until_tiered(broker.data_dir, "orders")
        copied = len(objects(store))
        assert copied > 1
        topic_id = str(_topic_id(admin)).translate(str.maketrans("+/", "-_"))  # as Kafka writes it
        admin.delete_topics(["orders"])["orders"].result(TIMEOUT_SECONDS)
        until(lambda: not objects(store))
        until(lambda: any(_is_end(event) for event in _events(servers)), "the end of the partition was not reported")
        count = len(_events(servers))
        arguments = ("--bootstrap-server", servers, "--topic", TOPIC, "--from-beginning", "--formatter", _FORMATTER)
        printed = kafka.run(
            apache_kafka.CONSOLE_CONSUMER,
            *arguments,
            "--max-messages",
            str(count),
            performance=apache_kafka.QUICK_START_OPTIONS,
            timeout_s=TIMEOUT_SECONDS,
        ).stdout
    assert f"{topic_id}:orders-0" in printed, printed
    segments: dict[str, list[str]] = {}
    for found in re.finditer(r"[^}]id=([\w-]{22})\}.*?state=(\w+_SEGMENT_\w+)", printed):
        segments.setdefault(found[1], []).append(found[2])
    assert len(segments) == copied, printed
    for states in segments.values():
        assert states == [
            "COPY_SEGMENT_STARTED",
            "COPY_SEGMENT_FINISHED",
            "DELETE_SEGMENT_STARTED",
            "DELETE_SEGMENT_FINISHED",
        ]
    ranges = [(int(start), int(end)) for start, end in re.findall(r"startOffset=(\d+), endOffset=(\d+)", printed)]
    assert len(ranges) == copied and ranges[0][0] == 0
    assert [start for start, _ in ranges[1:]] == [end + 1 for _, end in ranges[:-1]]
    assert re.findall(r"DELETE_PARTITION_\w+", printed) == [
        "DELETE_PARTITION_MARKED",
        "DELETE_PARTITION_STARTED",
        "DELETE_PARTITION_FINISHED",
    ]


def _is_end(event: bytes) -> bool:
    return event.startswith(_PARTITION_DELETED) and event[-2:] == bytes([2, 0])


def _topic_id(admin: AdminClient) -> object:
    (found,) = admin.describe_topics(TopicCollection(["orders"])).values()
    return found.result(TIMEOUT_SECONDS).topic_id
