"""Three nodes, three replicas, acks=all, two in sync: throughput of produce, and what an acknowledgement takes.

Throughput with librdkafka at its defaults and with Kafka's own ProducerPerformance; latency with an open-loop producer
at a steady rate without linger, from when a message was due to its acknowledgement. CPU is that of all three nodes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.cluster_topic import replicated_topic
from benchmarks.compare.loads.open_loop_producer import produce_count
from benchmarks.compare.loads.produce_java import run_producer_performance
from benchmarks.compare.measure import CLUSTER_GOAL, CPU_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS

_SIZES = (("1 KB", 1024, 200_000), ("100 B", 100, 1_000_000))
_JAVA_RECORDS = 200_000
_RATE = 2_000
_LATENCY_SECONDS = 8.0
_LATENCY_WARM_UP_SECONDS = 2.0


class ClusterProduce(Load):
    name: ClassVar[str] = "cluster-produce"
    title: ClassVar[str] = "Produce to three replicas"
    measures: Sequence[Measure] = (
        *(
            Measure(str(size), f"3 replicas: produce {label}, acks=all, librdkafka", "MB/s", "higher", CLUSTER_GOAL)
            for label, size, _ in _SIZES
        ),
        Measure("java", "3 replicas: produce 1 KB, acks=all, ProducerPerformance", "MB/s", "higher", CLUSTER_GOAL),
        Measure("cpu", "3 replicas: CPU of all nodes, produce 1 KB, librdkafka", "s/GB", "lower", CPU_GOAL),
        Measure("p50", f"3 replicas: ack p50 at {_RATE:,} msg/s", "ms", "lower"),
        Measure("p99", f"3 replicas: ack p99 at {_RATE:,} msg/s", "ms", "lower", 0.3),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        assert isinstance(target, ClusterTarget)
        values: dict[str, float] = {}
        for _, size, full in _SIZES:
            mb_s, cpu_s_per_gb = _throughput(target, size, scale.records(full))
            values[str(size)] = mb_s
            if size == 1024:
                values["cpu"] = cpu_s_per_gb
        count = scale.records(_JAVA_RECORDS)
        with replicated_topic(target, THROUGHPUT_PARTITIONS, expected_bytes=count * 1024) as topic:
            values["java"] = run_producer_performance(target, topic, 1024, count, ("acks=all",))
        return values | _latency(target, scale)


def _throughput(target: ClusterTarget, size: int, count: int) -> tuple[float, float]:
    with replicated_topic(target, THROUGHPUT_PARTITIONS, expected_bytes=count * size) as topic:
        producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
        producer.send(THROUGHPUT_PARTITIONS * 10, size)  # connections and metadata are not what is measured
        cpu_before = _cpu(target)
        seconds = producer.send(count, size)
        cpu_s = _cpu(target) - cpu_before
        producer.close()
        arrived = sum(librdkafka.end_offsets(target.bootstrap, topic, THROUGHPUT_PARTITIONS))
        if arrived != count + THROUGHPUT_PARTITIONS * 10:
            raise RuntimeError(f"{target.name}: {arrived} records in the log after producing {count}")
    return count * size / seconds / 1e6, cpu_s / (count * size / 1e9)


def _latency(target: ClusterTarget, scale: Scale) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    warm_up = int(_RATE * scale.seconds(_LATENCY_WARM_UP_SECONDS))
    count = int(_RATE * scale.seconds(_LATENCY_SECONDS))
    with replicated_topic(target, 1, expected_bytes=(warm_up + count) * 1024) as topic:
        here, there = context.Pipe()
        arguments = (target.bootstrap, topic, _RATE, 1024, warm_up, count, there)
        producer = context.Process(target=produce_count, args=arguments)
        producer.start()
        try:
            if not here.poll(120):
                raise RuntimeError(f"{target.name}: the producer did not finish")
            delays_ns, failures = here.recv()
        finally:
            producer.join(timeout=5)
            if producer.is_alive():
                producer.kill()
                producer.join()
    if failures or len(delays_ns) < count:
        raise RuntimeError(f"{target.name}: {count - len(delays_ns)} not acknowledged: {failures}")
    return {"p50": delays_ns[len(delays_ns) // 2] / 1e6, "p99": delays_ns[len(delays_ns) * 99 // 100] / 1e6}


def _cpu(target: ClusterTarget) -> float:
    return sum(cpu_seconds(pid) for pid in target.pids.values())
