"""A topic of which only the last segment is on the broker's disk, and how tests read it."""

import os
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import TIMEOUT_SECONDS, until

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
}
SMALL = {"remote.storage.enable": "true", "local.retention.bytes": "1", "internal.segment.bytes": "20000"}


def make_tiered(servers: str, name: str, config: Mapping[str, str] | None = None, replicas: int = 1) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, replicas, config={**SMALL, **(config or {})})])[name].result(TIMEOUT_SECONDS)
    return admin


def value_of(number: int) -> bytes:
    return b"%08d" % number * 12


def produce(servers: str, topic: str, numbers: range, *, first_timestamp: int = 0, per_batch: int = 50) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1000, "log_level": 0})
    for number in numbers:
        timestamp = first_timestamp + number if first_timestamp else 0
        producer.produce(topic, value_of(number), key=str(number), partition=0, timestamp=timestamp)
        if number % per_batch == per_batch - 1:
            producer.flush(TIMEOUT_SECONDS)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def consume(servers: str, topic: str, count: int, first: int = 0, isolation: str = "read_uncommitted") -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"of-{topic}",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "log_level": 0,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, 0, first)])
    found: list[Message] = []

    def has_all() -> bool:
        for message in consumer.consume(500, 0.2):
            error = message.error()
            assert error is None, error
            found.append(message)
        return len(found) >= count

    try:
        until(has_all, f"{count} records of {topic}")
    except AssertionError as error:
        watermarks = consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True)
        last = found[-1].offset() if found else None
        error.add_note(f"{len(found)} records were read, the last at offset {last}; watermarks {watermarks}")
        raise
    finally:
        consumer.close()
    return found


def local_logs(data_dir: Path, topic: str) -> list[str]:
    return sorted(name for name in os.listdir(data_dir / f"{topic}-0") if name.endswith(".log"))


def until_tiered(data_dir: Path, topic: str, begins_after: int = 0) -> int:
    """Waits until the disk has one segment, which begins after an offset; returns where it begins."""

    def is_tiered() -> bool:
        logs = local_logs(data_dir, topic)
        return len(logs) == 1 and int(logs[0][:20]) > begins_after

    until(is_tiered, f"only one segment of {topic} is on the disk")
    return int(local_logs(data_dir, topic)[0][:20])


def objects(root: Path) -> list[Path]:
    return sorted(root.rglob("*.segment"))
