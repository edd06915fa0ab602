"""A topic that lives for one load: created with explicit partitions by the admin client, deleted afterwards."""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from benchmarks.compare import cluster_wire, wire
from benchmarks.compare.target import Target

# Throughput loads spread over a handful of partitions, as a topic on one broker would have; latency and small
# requests use one.
THROUGHPUT_PARTITIONS = 6

# On both brokers: a deleted topic's page cache is free a second later, not a minute, or it would weigh on the loads
# that follow.
_TOPIC_CONFIG = {"file.delete.delay.ms": "1000"}

_PARTITIONS_AT_ONCE = 5_000
"""Kafka refuses requests that need more than 10,000 metadata records."""

_MADV_POPULATE_WRITE = 23


def settle(expected_bytes: int) -> None:
    """Make the machine's state the same before every load.

    Nothing is left dirty, so no load pays for writing back what an earlier one wrote. And memory for the bytes to
    come is touched and freed: on a virtual machine the first touch of a page goes to the hypervisor at several
    seconds per GB, which would be charged to whichever broker happens to come first.
    """
    os.sync()
    size = max(expected_bytes, mmap.PAGESIZE)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        try:
            memory.madvise(_MADV_POPULATE_WRITE)
        except OSError:  # a kernel before 5.14
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 1


def create(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    first = min(partitions, _PARTITIONS_AT_ONCE)
    wanted = NewTopic(name, num_partitions=first, replication_factor=1, config=_TOPIC_CONFIG)
    for future in admin.create_topics([wanted]).values():
        future.result(timeout=30)
    for total in range(first + _PARTITIONS_AT_ONCE, partitions + _PARTITIONS_AT_ONCE, _PARTITIONS_AT_ONCE):
        for future in admin.create_partitions([NewPartitions(name, min(total, partitions))]).values():
            future.result(timeout=60)
    _wait_until_led(bootstrap, name, partitions)


def _wait_until_led(bootstrap: str, name: str, partitions: int) -> None:
    """The controller says yes before the broker serves; librdkafka would retry, the raw-socket loads do not."""
    deadline = time.monotonic() + 120
    while len(places := leaders(bootstrap, name)) < partitions:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name}: only {len(places)} of {partitions} partitions have a leader")
        time.sleep(0.01)
    for leader in set(places.values()):
        with wire.connect(leader) as connection:
            for partition in (each for each, place in places.items() if place == leader):
                probe = wire.fetch_request(name, partition, 0, max_wait_ms=0)
                while error := wire.fetch_error(wire.ask(connection, probe), name):
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{name}-{partition} is not served: Fetch has error {error}")
                    time.sleep(0.01)


def leaders(bootstrap: str, name: str) -> dict[int, str]:
    """HOST:PORT of the leader of each partition that has one. A node with several cores has an address for each."""
    with wire.connect(bootstrap.split(",")[0]) as connection:
        known = cluster_wire.parse_metadata(wire.ask(connection, cluster_wire.metadata_request(name)))
    rows = known.topics.get(name, {})
    return {partition: known.brokers[row.leader] for partition, row in rows.items() if row.leader in known.brokers}


def delete(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([name]).values():
        future.result(timeout=30)


@contextmanager
def temporary_topic(target: Target, partitions: int, expected_bytes: int) -> Iterator[str]:
    """A fresh topic on a settled machine; `expected_bytes` is what the load is going to write to it."""
    name = f"compare-{uuid.uuid4().hex[:12]}"
    create(target.bootstrap, name, partitions)
    settle(expected_bytes)
    try:
        yield name
    finally:
        delete(target.bootstrap, name)
