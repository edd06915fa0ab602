"""Consume throughput with the Java consumer: Kafka's own ConsumerPerformance where the broker has consumer groups.

ConsumerPerformance always joins a group. While a target has no group coordinator, `AssignedConsumer.java` reads the
same topic with `assign()` instead, on both targets alike, and the measure's remark says which of the two was used.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.compare import librdkafka, wire
from benchmarks.compare.loads.produce_java import require_distribution
from benchmarks.compare.measure import CPU_GOAL, THROUGHPUT_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic
from tools import apache_kafka

_SIZE_BYTES = 1024
_FULL_RECORDS = 800_000
_ASSIGNED_CONSUMER = Path(__file__).with_name("AssignedConsumer.java")


def has_consumer_groups(target: Target) -> bool:
    """Whether the broker offers the APIs a group needs: JoinGroup, SyncGroup and Heartbeat."""
    with wire.connect(target.bootstrap) as connection:
        offered = wire.offered_apis(wire.ask(connection, wire.api_versions_request()))
    return {11, 12, 14} <= offered


class ConsumeJava(Load):
    name: ClassVar[str] = "consume-java"
    title: ClassVar[str] = "Consume with the Java consumer"
    measures: Sequence[Measure] = (
        Measure("mb_s", "consume 1 KB, Java consumer", "MB/s", "higher", THROUGHPUT_GOAL),
        Measure("cpu", "broker CPU, consume 1 KB, Java consumer", "s/GB", "lower", CPU_GOAL),
    )

    def __init__(self, with_groups: bool = False) -> None:
        self._with_groups = with_groups

    @staticmethod
    def remark(with_groups: bool) -> str:
        if with_groups:
            return "The Java consumer was Kafka's own ConsumerPerformance (without the time its group takes to form)."
        return (
            "The Java consumer was a small assign() consumer on both brokers (second pass): ConsumerPerformance needs "
            "a consumer group and not every broker here has a group coordinator."
        )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        count = scale.records(_FULL_RECORDS)
        distribution = require_distribution()
        with temporary_topic(target, THROUGHPUT_PARTITIONS, count * _SIZE_BYTES) as topic:
            producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
            producer.send(count, _SIZE_BYTES)
            producer.close()
            read_topic = _with_consumer_performance if self._with_groups else _with_assigned_consumer
            cpu_before = cpu_seconds(target.pid)
            records_s = read_topic(distribution, target, topic, count)
            cpu_s = cpu_seconds(target.pid) - cpu_before
        passes = 1 if self._with_groups else 2
        return {"mb_s": records_s * _SIZE_BYTES / 1e6, "cpu": cpu_s / (passes * count * _SIZE_BYTES / 1e9)}


def _with_assigned_consumer(
    distribution: apache_kafka.KafkaDistribution, target: Target, topic: str, count: int
) -> float:
    command = distribution.command(
        str(_ASSIGNED_CONSUMER), target.bootstrap, topic, jvm=apache_kafka.DEFAULT_PERF_TOOL_HEAP
    )
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    if run.returncode != 0:
        raise RuntimeError(f"the Java consumer on {target.name} failed: {run.stdout[-500:]}{run.stderr[-1500:]}")
    read, seconds = run.stdout.split()[-2:]
    if int(read) != count:
        raise RuntimeError(f"the Java consumer read {read} of {count} records on {target.name}")
    return count / float(seconds)


def _with_consumer_performance(
    distribution: apache_kafka.KafkaDistribution, target: Target, topic: str, count: int
) -> float:
    run = distribution.run(
        apache_kafka.CONSUMER_PERFORMANCE,
        *("--bootstrap-server", target.bootstrap, "--topic", topic, "--num-records", str(count)),
        *("--group", f"compare-{uuid.uuid4().hex[:8]}", "--hide-header", "--timeout", "30000"),
        jvm=apache_kafka.DEFAULT_PERF_TOOL_HEAP,
    )
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    columns = (
        [each.strip() for each in run.stdout.strip().splitlines()[-1:][0].split(",")] if run.stdout.strip() else []
    )
    if run.returncode != 0 or len(columns) < 10:
        raise RuntimeError(f"ConsumerPerformance on {target.name} failed: {run.stdout[-500:]}{run.stderr[-1500:]}")
    return float(columns[9])  # without the time the group took to form
