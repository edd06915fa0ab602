"""Mirroring in tests: two clusters, what is written to one, and what both have."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.admin.mirror_verification import Verified, verify_topic
from millstream.admin.mirrors import MirrorAdmin, PartitionStatus
from millstream.raw_client import Cluster
from tests.waiting import TIMEOUT_SECONDS, eventually

QUICK = {"interval.ms": "200"}
_names = itertools.count(1)


def fresh(word: str) -> str:
    return f"{word}-{next(_names)}"


def cluster_of(bootstrap: str) -> Cluster:
    return Cluster(bootstrap, {}, client_id="mirror-test", timeout_s=30)


def make_source_topic(
    bootstrap: str, name: str, partitions: int = 1, config: dict[str, str] | None = None, replicas: int = 1
) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(name, partitions, replicas, config=config or {})
    admin.create_topics([new], operation_timeout=30)[name].result(TIMEOUT_SECONDS)
    return name


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(TIMEOUT_SECONDS)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)


def produce(bootstrap: str, topic: str, values: Sequence[str], *, partition: int = 0, **settings: Any) -> list[int]:
    """Writes values; returns their offsets. A failed delivery raises."""
    offsets: list[int] = []
    failures: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)
        else:
            offsets.append(message.offset())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0, **settings})
    for value in values:
        key, headers = f"k{value}", dict[str, str | bytes | None](origin="source")
        producer.produce(topic, value, key=key, partition=partition, headers=headers, on_delivery=delivered)
    producer.flush(TIMEOUT_SECONDS)
    if failures:
        raise KafkaException(failures[0])
    assert len(offsets) == len(values)
    return offsets


def transaction(bootstrap: str, topic: str, values: Sequence[str], ends: str, *, transactional_id: str) -> Producer:
    """Writes values in a transaction and ends it: `commit`, `abort`, or `open` to leave it open."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 1, "log_level": 0}
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=f"k{value}", partition=0)
    producer.flush(TIMEOUT_SECONDS)
    if ends == "commit":
        producer.commit_transaction(TIMEOUT_SECONDS)
    elif ends == "abort":
        producer.abort_transaction(TIMEOUT_SECONDS)
    return producer


Seen = list[tuple[int, bytes | None, bytes | None, tuple[int, int], object]]


def read_all(bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_committed") -> Seen:
    """All records up to the present end: offset, key, value, timestamp, headers."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: Seen = []
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_SECONDS)
        consumer.assign([TopicPartition(topic, partition, low)])
        while True:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None, f"{topic} cannot be read to its end"
            error = message.error()
            if error is not None:
                if error.name() == "_PARTITION_EOF":
                    return found
                raise KafkaException(error)
            offset = message.offset() or 0
            found.append((offset, message.key(), message.value(), message.timestamp(), message.headers()))
    finally:
        consumer.close()


@dataclass
class Mirror:
    """A link from one cluster to another."""

    name: str
    source: str
    here: str

    def __post_init__(self) -> None:
        self.admin = MirrorAdmin(cluster_of(self.here))
        self.source_admin = MirrorAdmin(cluster_of(self.source))

    def create(self, topics: str, **settings: str) -> "Mirror":
        more = {name.replace("_", "."): value for name, value in settings.items()}
        self.admin.create(self.name, {"bootstrap.servers": self.source, "topics": topics, **QUICK, **more})
        return self

    def state(self, topic: str) -> str:
        return next((each.state for each in self.admin.mirror_topics(self.name) if each.name == topic), "")

    def partitions(self, topic: str) -> list[PartitionStatus]:
        return [row for row in self.admin.status(self.name).partitions if row.topic == topic]

    def await_topic(self, topic: str) -> None:
        def is_there() -> None:
            assert self.state(topic) == "mirroring"

        eventually(is_there)

    def verified(self, topic: str) -> list[Verified]:
        mirror = next(each for each in self.admin.mirror_topics(self.name) if each.name == topic)
        compacted = self.admin.is_compacted(topic)
        return list(verify_topic(self.admin.cluster, self.source_admin.cluster, mirror, is_compacted=compacted))

    def ends(self, topic: str, *, at_source: bool = False) -> list[int]:
        cluster = (self.source_admin if at_source else self.admin).cluster
        from millstream.raw_client import TopicPartition as Place
        from millstream.raw_client.offsets import LATEST

        places = [Place(topic, index) for index in range(cluster.partitions_of(topic))]
        found = cluster.offsets(dict.fromkeys(places, LATEST), read_committed=False)
        return [found[place].offset for place in places]

    def await_equal(self, topic: str, source_topic: str | None = None) -> None:
        """Waits until the mirror has everything; then compares every batch."""

        def has_all() -> None:
            assert self.state(topic) != ""
            assert self.ends(topic) == self.ends(source_topic or topic, at_source=True)

        eventually(has_all)
        differences = [row.difference for row in self.verified(topic) if row.difference]
        assert not differences, differences
