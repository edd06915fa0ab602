"""10,000 partitions with three replicas each: how long creating them takes, what a Metadata request for all of them
takes, and what one costs in memory.

On a fresh cluster of its own, as deleting so many would weigh on what follows; ten topics, since a Kafka controller
refuses to create as many in one. Memory is resident, of all three nodes, after minus before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import ClassVar

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.compare import cluster_wire, wire
from benchmarks.compare.cluster_target import NODES, ClusterFactory, ClusterTarget
from benchmarks.compare.cluster_topic import ask_metadata, wait_for
from benchmarks.compare.measure import MEMORY_GOAL, Load, Measure, Scale
from benchmarks.compare.process_stat import resident_megabytes
from benchmarks.compare.target import Target, start

_TOPICS = 10
_PARTITIONS_EACH = 1_000
_REQUESTS = 15
_SETTLE_SECONDS = 3.0


class ClusterMetadataLoad(Load):
    name: ClassVar[str] = "cluster-metadata"
    title: ClassVar[str] = "10,000 partitions"
    most_rounds: ClassVar[int] = 1
    measures: Sequence[Measure] = (
        Measure(
            "create", "create 10,000 partitions of 3 replicas, until every node names their leaders", "s", "lower", 1.0
        ),
        Measure("metadata", "Metadata of 10,000 partitions, request to last byte", "ms", "lower", 1.0),
        Measure("memory", "memory per partition, 3 nodes together", "KB", "lower", MEMORY_GOAL),
    )

    def __init__(self, fresh_cluster: ClusterFactory) -> None:
        self._fresh_cluster = fresh_cluster

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        fresh = self._fresh_cluster(target.name)
        each = scale.records(_PARTITIONS_EACH, least=3)
        try:
            start(fresh)
            wait_for(lambda: _brokers(fresh) == NODES, "registration of all brokers")
            time.sleep(scale.seconds(_SETTLE_SECONDS))
            before_mb = _resident(fresh)
            create_s = _create(fresh, each)
            time.sleep(scale.seconds(_SETTLE_SECONDS))
            metadata_ms = _metadata_ms(fresh)
            used_mb = max(_resident(fresh) - before_mb, 0.0)
            return {"create": create_s, "metadata": metadata_ms, "memory": used_mb * 1024 / (_TOPICS * each)}
        finally:
            fresh.stop()


def _create(target: ClusterTarget, partitions_each: int) -> float:
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    began = time.perf_counter()
    for number in range(_TOPICS):
        wanted = NewTopic(f"many-{number}", num_partitions=partitions_each, replication_factor=NODES)
        for future in admin.create_topics([wanted], operation_timeout=300, request_timeout=300).values():
            future.result(timeout=330)

    def led_everywhere() -> bool:
        for node_id in target.addresses:
            topics = ask_metadata(target, node_id, None).topics
            rows = [row for name, rows in topics.items() if name.startswith("many-") for row in rows.values()]
            if len(rows) < _TOPICS * partitions_each or any(row.leader < 0 for row in rows):
                return False
        return True

    wait_for(led_everywhere, "leaders of all partitions", timeout_s=900)
    return time.perf_counter() - began


def _metadata_ms(target: ClusterTarget) -> float:
    request = cluster_wire.metadata_request(None)
    found = []
    for node_id in target.addresses:
        with wire.connect(target.addresses[node_id]) as connection:
            for _ in range(_REQUESTS):
                began = time.perf_counter()
                wire.ask(connection, request)
                found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)


def _brokers(target: ClusterTarget) -> int:
    return min(len(ask_metadata(target, node_id, None).brokers) for node_id in target.addresses)


def _resident(target: ClusterTarget) -> float:
    return sum(resident_megabytes(pid) for pid in target.pids.values())
