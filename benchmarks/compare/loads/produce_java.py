"""Produce throughput with Kafka's own ProducerPerformance, at the Java producer's defaults and with larger batches.

The defaults (16 KB batches, linger 5 ms, idempotent when acks=all) make a broker respond to many smallish requests; the
larger batches (256 KB, linger 10 ms) are what Kafka's own tuning advice suggests for throughput. Payloads come from a
file because the tool otherwise spends its time drawing random bytes, and would measure that. What
is reported is the tool's steady state, without the first two fifths of the records, while its own JVM compiles.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.compare.measure import CPU_GOAL, THROUGHPUT_GOAL, Load, LoadUnavailableError, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic
from tools import apache_kafka

_SUMMARY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec", re.MULTILINE)
_WARM_UP_SHARE = 0.4  # of the records: the tool's own JVM compiles during these, and its summary leaves them out
_LARGER_BATCHES = ("batch.size=262144", "linger.ms=10")


@dataclass(frozen=True, slots=True)
class _Variant:
    key: str
    title: str
    size_bytes: int
    full_records: int
    acks: str
    settings: tuple[str, ...] = ()


_VARIANTS = (
    _Variant("1024_1", "produce 1 KB, acks=1, ProducerPerformance", 1024, 350_000, "1"),
    _Variant("1024_all", "produce 1 KB, acks=all, ProducerPerformance", 1024, 350_000, "all"),
    _Variant("100_1", "produce 100 B, acks=1, ProducerPerformance", 100, 1_200_000, "1"),
    _Variant("100_all", "produce 100 B, acks=all, ProducerPerformance", 100, 1_200_000, "all"),
    _Variant(
        "1024_big", "produce 1 KB, acks=all, ProducerPerformance, 256 KB batches", 1024, 500_000, "all", _LARGER_BATCHES
    ),
)


def require_distribution() -> apache_kafka.KafkaDistribution:
    try:
        return apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as missing:
        raise LoadUnavailableError(f"Kafka's Java tools are not available: {missing}") from missing


class ProduceJava(Load):
    name: ClassVar[str] = "produce-java"
    title: ClassVar[str] = "Produce with Kafka's ProducerPerformance"
    measures: Sequence[Measure] = (
        *(Measure(each.key, each.title, "MB/s", "higher", THROUGHPUT_GOAL) for each in _VARIANTS),
        Measure("1024_cpu", "broker CPU, produce 1 KB, ProducerPerformance", "s/GB", "lower", CPU_GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        values: dict[str, float] = {}
        for variant in _VARIANTS:
            cpu_before = cpu_seconds(target.pid)
            count = scale.records(variant.full_records)
            values[variant.key] = _run_tool(target, variant, count)
            if variant.key == "1024_all":
                cpu_s = cpu_seconds(target.pid) - cpu_before
                values["1024_cpu"] = cpu_s / (count * variant.size_bytes / 1e9)
        return values


def _run_tool(target: Target, variant: _Variant, count: int) -> float:
    with temporary_topic(target, THROUGHPUT_PARTITIONS, count * variant.size_bytes) as topic:
        settings = (f"acks={variant.acks}", *variant.settings)
        return run_producer_performance(target, topic, variant.size_bytes, count, settings)


def run_producer_performance(
    target: Target, topic: str, size_bytes: int, count: int, settings: Sequence[str], options: Sequence[str] = ()
) -> float:
    """MB/s of the tool's steady state."""
    distribution = require_distribution()
    with tempfile.TemporaryDirectory() as directory:
        payloads = Path(directory) / "payloads"
        lines = ["".join(chr(97 + (i * 7 + line) % 26) for i in range(size_bytes)) for line in range(20)]
        payloads.write_text("\n".join(lines))
        run = distribution.run(
            apache_kafka.PRODUCER_PERFORMANCE,
            *("--topic", topic, "--num-records", str(count), "--throughput", "-1"),
            *("--warmup-records", str(int(count * _WARM_UP_SHARE)), "--bootstrap-server", target.bootstrap),
            *options,
            *("--payload-file", str(payloads), "--command-property"),
            *settings,
            jvm=apache_kafka.DEFAULT_PERF_TOOL_HEAP,
        )
    steady = _SUMMARY.search(run.stdout)
    if run.returncode != 0 or steady is None:
        raise RuntimeError(f"ProducerPerformance on {target.name} failed: {run.stdout[-500:]}{run.stderr[-1500:]}")
    return float(steady[2]) * size_bytes / 1e6
