"""Produce throughput with librdkafka at its defaults (linger 5 ms, 1 MB batches), and the broker's CPU per GB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.measure import CPU_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic

# (label, record size, records of a full run, goal): about 500 MB of 1 KB records, 2.5 million small ones.
SIZES = (("1 KB", 1024, 500_000, 1.4), ("100 B", 100, 2_500_000, 1.1))
ACKS = ("1", "all")


def measures(prefix: str = "") -> list[Measure]:
    found = []
    for label, size, _, goal in SIZES:
        for acks in ACKS:
            key = f"{size}_{acks}"
            found.append(Measure(key, f"{prefix}produce {label}, acks={acks}, librdkafka", "MB/s", "higher", goal))
    for label, size, _, _ in SIZES:
        title = f"{prefix}broker CPU, produce {label}, librdkafka"
        found.append(Measure(f"{size}_cpu", title, "s/GB", "lower", CPU_GOAL))
    return found


class ProduceLibrdkafka(Load):
    name: ClassVar[str] = "produce-librdkafka"
    title: ClassVar[str] = "Produce with librdkafka"
    measures: Sequence[Measure] = measures()

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        values: dict[str, float] = {}
        for _, size, full, _ in SIZES:
            count = scale.records(full)
            cpu_s = 0.0
            for acks in ACKS:
                with temporary_topic(target, THROUGHPUT_PARTITIONS, count * size) as topic:
                    producer = librdkafka.Producer(target.bootstrap, topic, acks=acks)
                    producer.send(1, size)  # connections and metadata are not what is measured
                    cpu_before = cpu_seconds(target.pid)
                    seconds = producer.send(count, size)
                    cpu_s += cpu_seconds(target.pid) - cpu_before
                    producer.close()
                    arrived = sum(librdkafka.end_offsets(target.bootstrap, topic, THROUGHPUT_PARTITIONS))
                    if arrived != count + 1:
                        raise RuntimeError(f"{target.name}: {arrived} records in the log after producing {count + 1}")
                values[f"{size}_{acks}"] = count * size / seconds / 1e6
            values[f"{size}_cpu"] = cpu_s / (len(ACKS) * count * size / 1e9)
        return values
