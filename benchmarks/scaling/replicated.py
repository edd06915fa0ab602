"""Records of 1 KB to a topic with a given number of replicas, by librdkafka with acks=all."""

from __future__ import annotations

import time
import uuid

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.compare import cluster_wire, librdkafka, wire
from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.cluster_topic import wait_for
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS

_RECORD_BYTES = 1024
_RECORDS_AT_ONCE = 20_000


def produce_replicated(target: ClusterTarget, replicas: int, seconds: float) -> int:
    """Bytes of records that were acknowledged. The topic is deleted afterwards."""
    name = f"scaling-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    wanted = NewTopic(name, num_partitions=THROUGHPUT_PARTITIONS, replication_factor=replicas)
    for future in admin.create_topics([wanted], operation_timeout=60).values():
        future.result(timeout=90)
    wait_for(lambda: _known_everywhere(target, name), f"{name} known everywhere")
    producer = librdkafka.Producer(target.bootstrap, name, acks="all")
    written = 0
    try:
        started = time.monotonic()
        while not written or time.monotonic() - started < seconds:
            producer.send(_RECORDS_AT_ONCE, _RECORD_BYTES)
            written += _RECORDS_AT_ONCE * _RECORD_BYTES
    finally:
        producer.close()
        for future in admin.delete_topics([name], operation_timeout=60).values():
            future.result(timeout=90)
    return written


def _known_everywhere(target: ClusterTarget, name: str) -> bool:
    for address in target.addresses.values():
        with wire.connect(address) as connection:
            known = cluster_wire.parse_metadata(wire.ask(connection, cluster_wire.metadata_request(name)))
        if len(known.topics.get(name, {})) < THROUGHPUT_PARTITIONS:
            return False
    return True
