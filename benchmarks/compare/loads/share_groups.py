"""Queues: how fast one share consumer (librdkafka, implicit acceptance) takes records, and how long it takes from
producing a record to its acceptance being confirmed, one record at a time."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from benchmarks.compare import librdkafka
from benchmarks.compare.measure import LATENCY_GOAL, Load, LoadUnavailableError, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

_SIZE_BYTES = 100
_FULL_RECORDS = 1_000_000
_FULL_ROUND_TRIPS = 1_000
_TIMEOUT_SECONDS = 60.0


class ShareGroups(Load):
    name: ClassVar[str] = "share-groups"
    title: ClassVar[str] = "Queues (share groups)"
    measures: Sequence[Measure] = (
        Measure("records_s", "share consumer, 100 B records, librdkafka", "records/s", "higher", 1.5),
        Measure("p50_ms", "produce to confirmed acceptance, p50", "ms", "lower", LATENCY_GOAL),
        Measure("p99_ms", "produce to confirmed acceptance, p99", "ms", "lower", LATENCY_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        if not hasattr(confluent_kafka, "ShareConsumer"):
            raise LoadUnavailableError("this confluent-kafka has no ShareConsumer")
        return {**self._throughput(target, scale), **self._latency(target, scale)}

    def _throughput(self, target: Target, scale: Scale) -> dict[str, float]:
        count = scale.records(_FULL_RECORDS)
        with temporary_topic(target, 1, count * _SIZE_BYTES) as topic:
            producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
            producer.send(count, _SIZE_BYTES)
            producer.close()
            consumer = _consumer(target.bootstrap, topic, "implicit")
            read = first = 0
            begin = 0.0
            until = time.monotonic() + _TIMEOUT_SECONDS
            while read < count and time.monotonic() < until:
                got = len(consumer.poll(1.0))
                read += got
                if got and not first:  # joining the group is not part of it
                    first, begin = got, time.monotonic()
            seconds = time.monotonic() - begin
            consumer.close()
            if read < count:
                raise librdkafka.LibrdkafkaError(f"{read} of {count} records came in {_TIMEOUT_SECONDS:.0f} s")
        # A tiny run may come in one piece; then there is nothing to time.
        return {"records_s": max(read - first, 1) / max(seconds, 1e-6)}

    def _latency(self, target: Target, scale: Scale) -> dict[str, float]:
        count = scale.records(_FULL_ROUND_TRIPS, least=20)
        with temporary_topic(target, 1, count * _SIZE_BYTES) as topic:
            producer = confluent_kafka.Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
            consumer = _consumer(target.bootstrap, topic, "explicit")
            waits = [_round_trip(producer, consumer, topic) for _ in range(count + count // 10)]
            consumer.close()
        settled = sorted(waits[count // 10 :])
        return {
            "p50_ms": statistics.median(settled) * 1000,
            "p99_ms": settled[min(len(settled) - 1, int(len(settled) * 0.99))] * 1000,
        }


def _consumer(bootstrap: str, topic: str, mode: str) -> Any:
    group = f"bench-{uuid.uuid4()}"
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[earliest])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(timeout=30)
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": mode, "log_level": 0}
    consumer = confluent_kafka.ShareConsumer(settings)
    consumer.subscribe([topic])
    return consumer


def _round_trip(producer: Any, consumer: Any, topic: str) -> float:
    begin = time.perf_counter()
    producer.produce(topic, b"x" * _SIZE_BYTES)
    producer.poll(0)
    until = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < until:
        messages = [each for each in consumer.poll(1.0) if each.error() is None]
        if messages:
            for message in messages:
                consumer.acknowledge(message)
            consumer.commit_sync()
            return time.perf_counter() - begin
    raise librdkafka.LibrdkafkaError("a record did not come to its share consumer")
