"""The broker under fire: its process, its log, and a topic whose records must stay what they are."""

import os
import re
import time
from uuid import UUID

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.testing import EmbeddedBroker
from tests.system.fuzz.values import PARTITIONS, TOPICS
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, request_names

KEPT_TOPIC = "Kept.Safe"
"""No request that the fuzzer makes names it, and no flipped bit leads to it."""

_TROUBLE = re.compile(rb"handler_failed|Traceback|Exception in callback|never retrieved|maintenance_failed")
_KEPT_PER_CHECK = 100
_SETTINGS = {
    "millstream.max.partitions.per.topic": 50,
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.check.interval.ms": 1000,
}
# Spelled out for the topic, so that no broker-wide setting a frame may change reaches it.
_KEPT_CONFIG = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "cleanup.policy": "delete",
    "segment.bytes": "1048576",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "flush.before.ack": "false",
    "min.insync.replicas": "1",
}


class Trouble(Exception):
    """The broker did something it must not do."""


class Target:
    def __init__(self) -> None:
        self.broker = EmbeddedBroker(_SETTINGS)
        self._log_position = 0
        self._kept: list[bytes] = []

    def __enter__(self) -> "Target":
        self.broker.start()
        with Wire(self.address) as wire:
            wire.create_topic(KEPT_TOPIC, 1, **{name.replace(".", "_"): value for name, value in _KEPT_CONFIG.items()})
        self.tidy()
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close()

    @property
    def address(self) -> str:
        return self.broker.bootstrap_servers

    def offered(self) -> list[tuple[str, int, int]]:
        """(API, first version, last version) as the broker says, by the names of our schemas."""
        names = request_names()
        return [(names[key], first, last) for key, first, last in self.offered_keys()]

    def offered_keys(self) -> list[tuple[int, int, int]]:
        with Wire(self.address) as wire:
            rows = wire.call("api_versions", 0).api_keys
        # Produce is offered from version 0, as Kafka does, and taken from version 3.
        return [(r.api_key, 3 if r.api_key == 0 else r.min_version, r.max_version) for r in rows]

    def tidy(self) -> list[UUID]:
        """Only the topics that requests speak of, each with its partitions; returns their ids."""
        with Wire(self.address) as wire:
            found = {topic.name: topic for topic in wire.call("metadata", 12, topics=None).topics}
            whole = {name for name in TOPICS if name in found and len(found[name].partitions) == PARTITIONS}
            kept = {KEPT_TOPIC, *whole}
            surplus = [
                {"name": name, "topic_id": UUID(int=0)}
                for name in found
                if name not in kept and not name.startswith("__")
            ]
            wire.call("delete_topics", 6, topics=surplus, timeout_ms=30_000)
            for name in TOPICS:
                if name not in whole:
                    wire.create_topic(name, PARTITIONS)
            found = {topic.name: topic for topic in wire.call("metadata", 12, topics=None).topics}
            return [found[name].topic_id for name in TOPICS]

    # What must hold

    def probe(self) -> None:
        """The broker responds to a new client."""
        try:
            with Wire(self.address) as wire:
                wire.call("api_versions", 3, client_software_name="probe", client_software_version="1")
        except OSError as error:
            state = "runs" if self.broker.running else "is dead"
            raise Trouble(f"no response within {TIMEOUT_SECONDS:g} s ({error}); its process {state}") from error

    def check_log(self) -> None:
        with open(self.broker.log_file, "rb") as log:
            log.seek(self._log_position)
            news = log.read()
        found = _TROUBLE.search(news)
        if found is not None:
            start = news.rfind(b"\n", 0, found.start()) + 1
            self._log_position += len(news)
            raise Trouble("the broker logged:\n" + news[start : start + 3000].decode(errors="replace"))
        self._log_position += news.rfind(b"\n") + 1

    def check_kept(self) -> None:
        """A real client can write, and reads back all that was ever acknowledged."""
        unsure: list[str] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                unsure.append(str(error))

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 1, "message.timeout.ms": 60_000})
        fresh = [b"%d" % (len(self._kept) + number) for number in range(_KEPT_PER_CHECK)]
        for value in fresh:
            producer.produce(KEPT_TOPIC, value, on_delivery=delivered)
        if producer.flush(TIMEOUT_SECONDS) or unsure:
            raise Trouble(f"a producer could not write any more: {unsure[:3]}")
        self._kept += fresh
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
        )
        try:
            consumer.assign([TopicPartition(KEPT_TOPIC, 0, 0)])
            found: list[bytes | None] = []
            deadline = time.monotonic() + 60
            while len(found) < len(self._kept) and time.monotonic() < deadline:
                for message in consumer.consume(10_000, 1.0):
                    if message.error():
                        raise Trouble(f"a consumer met {message.error()}")
                    found.append(message.value())
        except KafkaException as error:
            raise Trouble(f"a consumer met {error}") from error
        finally:
            consumer.close()
        if found != self._kept:
            raise Trouble(f"{len(self._kept)} records were acknowledged, {len(found)} came back, or others")

    def resident_mb(self) -> float:
        with open(f"/proc/{self.broker.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.broker.pid}/fd"))
