"""Topics in a cluster.

One broker makes a topic, and the others hear of it a little later: a test that then asks another broker must wait until
every broker knows the topic.
"""

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import EmbeddedCluster
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire


def make_topic(
    cluster: EmbeddedCluster,
    name: str,
    partitions: int = 1,
    replicas: int = 3,
    config: Mapping[str, str] | None = None,
) -> str:
    """Makes a topic; every broker that runs knows it when this returns."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    new = NewTopic(name, partitions, replicas, config=dict(config or {}))
    try:
        admin.create_topics([new], operation_timeout=30)[name].result(TIMEOUT_SECONDS)
    except KafkaException as problem:
        if problem.args[0].code() != KafkaError._DESTROY_BROKER:
            raise
        # librdkafka gave the request up: a broker that had just come back was not in the metadata yet.
        _make_again(admin, new)
    await_topic(cluster, name, partitions)
    return name


def _make_again(admin: AdminClient, new: NewTopic) -> None:
    try:
        admin.create_topics([new], operation_timeout=30)[new.topic].result(TIMEOUT_SECONDS)
    except KafkaException as problem:
        if problem.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def delete_topic(cluster: EmbeddedCluster, name: str) -> None:
    """Deletes a topic. Asked again if the request was lost with a broker that was killed."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            admin.delete_topics([name], operation_timeout=30)[name].result(TIMEOUT_SECONDS)
        except KafkaException as problem:
            code = problem.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return  # an earlier request has deleted it
            if code not in (KafkaError._TRANSPORT, KafkaError._DESTROY_BROKER) or time.monotonic() > deadline:
                raise
        else:
            return


def await_topic(cluster: EmbeddedCluster, name: str, partitions: int | None = None) -> None:
    """Waits until each broker that runs knows the topic, with its partitions, and a leader for each of them."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for number in cluster.brokers:
        if not cluster.running(number):
            continue
        with Wire(cluster.address(number)) as wire:
            while trouble := _trouble(wire, name, partitions):
                assert time.monotonic() < deadline, f"broker {number}: {trouble}"
                time.sleep(0.02)


def _trouble(wire: Wire, name: str, partitions: int | None) -> str:
    (row,) = wire.call("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics
    if row.error_code:
        return f"it says {row.error_code} of {name}"
    if not row.partitions or (partitions is not None and len(row.partitions) < partitions):
        return f"it knows {len(row.partitions)} partitions of {name}"
    leaderless = [each.partition_index for each in row.partitions if each.leader_id < 0]
    return f"it knows no leader of partitions {leaderless} of {name}" if leaderless else ""
