"""A topic that lives for one load: created with explicit partitions by the admin client, deleted afterwards."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.compare.target import Target

# Throughput loads spread over a handful of partitions, as a topic on one broker would have; latency and small requests use one.
THROUGHPUT_PARTITIONS = 6


def create(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)]).values():
        future.result(timeout=30)


def delete(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([name]).values():
        future.result(timeout=30)


@contextmanager
def temporary_topic(target: Target, partitions: int) -> Iterator[str]:
    """Settles the disk first, so that no load pays for writing back what an earlier one left dirty."""
    name = f"compare-{uuid.uuid4().hex[:12]}"
    create(target.bootstrap, name, partitions)
    os.sync()
    try:
        yield name
    finally:
        delete(target.bootstrap, name)
