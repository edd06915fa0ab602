"""Topics on a cluster: replicated, with leaders where a load wants them, and waiting until all of it is so."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.compare import cluster_wire, wire
from benchmarks.compare.cluster_target import NODES, ClusterTarget
from benchmarks.compare.cluster_wire import ClusterMetadata, PartitionRow
from benchmarks.compare.topic import settle

_CONFIG = {"min.insync.replicas": "2", "file.delete.delay.ms": "1000"}
_TIMEOUT_SECONDS = 120.0


def ask_metadata(target: ClusterTarget, node_id: int, topic: str | None) -> ClusterMetadata:
    with wire.connect(target.addresses[node_id]) as connection:
        return cluster_wire.parse_metadata(wire.ask(connection, cluster_wire.metadata_request(topic)))


def controller_of(target: ClusterTarget) -> int:
    with wire.connect(target.addresses[next(iter(target.pids))]) as connection:
        return cluster_wire.parse_quorum_leader(wire.ask(connection, cluster_wire.describe_quorum_request()))


def wait_for(done: Callable[[], bool], what: str, timeout_s: float = _TIMEOUT_SECONDS, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(pause_s)


def wait_until_whole(target: ClusterTarget, topic: str, partitions: int) -> None:
    """Every node runs and says that every partition has its leader and all its replicas in sync."""

    def whole() -> bool:
        for node_id in target.addresses:
            try:
                known = ask_metadata(target, node_id, topic)
            except OSError:
                return False
            rows = known.topics.get(topic, {})
            if len(known.brokers) < NODES or len(rows) < partitions:
                return False
            if not all(row.whole for row in rows.values()):
                return False
        return True

    wait_for(whole, f"{topic} in sync everywhere")


def rows_at(target: ClusterTarget, node_id: int, topic: str) -> dict[int, PartitionRow]:
    return dict(ask_metadata(target, node_id, topic).topics.get(topic, {}))


@contextmanager
def replicated_topic(
    target: ClusterTarget, partitions: int, *, leader: int | None = None, expected_bytes: int = 0
) -> Iterator[str]:
    """A fresh topic on all nodes, led where the cluster likes or by `leader`; deleted afterwards."""
    name = f"compare-{uuid.uuid4().hex[:12]}"
    if leader is None:
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=NODES, config=_CONFIG)
    else:
        others = [node_id for node_id in target.addresses if node_id != leader]
        # Half of them fall to each of the others when the leader goes.
        rows = [[leader, *others] if partition % 2 else [leader, *others[::-1]] for partition in range(partitions)]
        wanted = NewTopic(name, num_partitions=partitions, replica_assignment=rows, config=_CONFIG)
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    created = admin.create_topics([wanted], operation_timeout=60)
    for future in created.values():
        future.result(timeout=90)
    wait_until_whole(target, name, partitions)
    settle(expected_bytes * NODES)
    try:
        yield name
    finally:
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        for future in admin.delete_topics([name], operation_timeout=60).values():
            future.result(timeout=90)
