"""Consume throughput with librdkafka at its default settings, reading a topic of 1 KB records from the page cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.measure import CPU_GOAL, THROUGHPUT_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic

_SIZE_BYTES = 1024
_FULL_RECORDS = 800_000


class ConsumeLibrdkafka(Load):
    name: ClassVar[str] = "consume-librdkafka"
    title: ClassVar[str] = "Consume with librdkafka"
    measures: Sequence[Measure] = (
        Measure("mb_s", "consume 1 KB, librdkafka (assign, no group)", "MB/s", "higher", THROUGHPUT_GOAL),
        Measure("cpu", "broker CPU, consume 1 KB, librdkafka", "s/GB", "lower", CPU_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        count = scale.records(_FULL_RECORDS)
        with temporary_topic(target, THROUGHPUT_PARTITIONS, count * _SIZE_BYTES) as topic:
            producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
            producer.send(count, _SIZE_BYTES)
            producer.close()
            cpu_before = cpu_seconds(target.pid)
            read, seconds = librdkafka.consume_all(target.bootstrap, topic, THROUGHPUT_PARTITIONS)
            cpu_s = cpu_seconds(target.pid) - cpu_before
        read_bytes = read * _SIZE_BYTES
        return {"mb_s": read_bytes / seconds / 1e6, "cpu": cpu_s / (read_bytes / 1e9)}
