"""Brokers, topics, quorum, disks and moves, each asked with a short patience: one that hangs must not stop the rest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from millstream.console.live.snapshot import (
    NO_QUORUM,
    Broker,
    Disk,
    Partition,
    Quorum,
    QuorumNode,
    Reassignment,
    Topic,
)
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import LATEST, Cluster, SetupError, TopicPartition, UnreachableError, WireError

PATIENCE_S = 1.0
_METADATA_TOPIC = "__cluster_metadata"
_MIN_IN_SYNC = "min.insync.replicas"
_TOPIC = 2
_TOPICS_PER_REQUEST = 500


_TRIES = 3


def ask_any(cluster: Cluster, api: str, **fields: Any) -> Message:
    """Asks any broker. One that hangs takes all of a try's time, and is the last to be asked by the next."""
    for left in reversed(range(_TRIES)):
        try:
            return cluster.call(api, once=True, within_s=PATIENCE_S, **fields)
        except UnreachableError as error:
            if not error.late or not left:
                raise
    raise AssertionError("the last try answers or raises")


def read_brokers(cluster: Cluster) -> tuple[str, int, tuple[Broker, ...]]:
    """The cluster's id, who answers for the controller, and all brokers, fenced ones too where brokers tell of them."""
    answer = ask_any(cluster, "describe_cluster", include_fenced_brokers=True)
    rows = [
        Broker(row.broker_id, row.host, row.port, row.rack, getattr(row, "is_fenced", False)) for row in answer.brokers
    ]
    return answer.cluster_id, answer.controller_id, tuple(sorted(rows, key=lambda row: row.id))


def read_topics(cluster: Cluster) -> dict[str, Topic]:
    answer = ask_any(cluster, "metadata", topics=None, allow_auto_topic_creation=False)
    topics = {}
    for topic in sorted(answer.topics, key=lambda topic: str(topic.name)):
        partitions = tuple(
            Partition(
                topic.name,
                row.partition_index,
                row.leader_id,
                row.leader_epoch,
                tuple(row.replica_nodes),
                tuple(row.isr_nodes),
            )
            for row in sorted(topic.partitions, key=lambda row: int(row.partition_index))
        )
        topics[topic.name] = Topic(topic.name, topic.topic_id, topic.is_internal, partitions)
    return topics


def read_ends(cluster: Cluster, broker: int, led: Sequence[Partition]) -> dict[TopicPartition, int]:
    """Where the logs end that a broker leads. A leader that has moved is left out: the next look will know better."""
    topics: dict[str, list[dict[str, int]]] = {}
    for each in led:
        row = {"partition_index": each.index, "current_leader_epoch": -1, "timestamp": LATEST}
        topics.setdefault(each.topic, []).append(row)
    answer = cluster.call(
        "list_offsets",
        node=broker,
        once=True,
        within_s=PATIENCE_S,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": name, "partitions": rows} for name, rows in topics.items()],
    )
    return {
        TopicPartition(topic.name, row.partition_index): row.offset
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code == ErrorCode.NONE
    }


def read_quorum(cluster: Cluster) -> Quorum | None:
    """None where brokers know of no quorum (those of another make, or age); without a leader, one that says so."""
    asked = [{"topic_name": _METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    try:
        answer = ask_any(cluster, "describe_quorum", topics=asked)
    except SetupError:
        return None
    except WireError:
        return NO_QUORUM
    if answer.error_code or answer.topics[0].partitions[0].error_code:
        return NO_QUORUM
    row = answer.topics[0].partitions[0]
    ends = {each.replica_id: each.log_end_offset for each in row.current_voters}
    newest = ends.get(row.leader_id, row.high_watermark)
    now_ms = max((each.last_caught_up_timestamp for each in row.current_voters), default=-1)  # the leader's time

    def nodes(rows: Iterable[Message], *, voters: bool) -> Iterator[QuorumNode]:
        for each in rows:
            end, caught_up = each.log_end_offset, each.last_caught_up_timestamp
            yield QuorumNode(
                each.replica_id,
                voters,
                each.replica_id == row.leader_id,
                end,
                None if end < 0 else max(0, newest - end),
                None if caught_up < 0 else max(0, now_ms - caught_up),
            )

    found = [*nodes(row.current_voters, voters=True), *nodes(row.observers, voters=False)]
    found.sort(key=lambda node: (not node.is_voter, node.id))
    return Quorum(row.leader_id, row.leader_epoch, row.high_watermark, tuple(found))


def read_disk(cluster: Cluster, broker: int) -> Disk:
    answer = cluster.call("describe_log_dirs", node=broker, once=True, within_s=PATIENCE_S * 2, topics=None)
    sizes: dict[TopicPartition, int] = {}
    lags: dict[TopicPartition, int] = {}
    totals, free, cordoned = [], [], False
    for directory in answer.results:
        totals.append(getattr(directory, "total_bytes", -1))
        free.append(getattr(directory, "usable_bytes", -1))
        cordoned = cordoned or bool(getattr(directory, "is_cordoned", False))
        for topic in directory.topics:
            for row in topic.partitions:
                place = TopicPartition(topic.name, row.partition_index)
                sizes[place] = sizes.get(place, 0) + row.partition_size
                lags[place] = row.offset_lag
    known = bool(totals) and min(totals) >= 0
    return Disk(
        sum(sizes.values()),
        sum(totals) if known else None,
        sum(free) if known else None,
        cordoned,
        sizes,
        lags,
        _failed(answer),
    )


def read_failed_directories(cluster: Cluster, broker: Broker) -> tuple[str, ...]:
    """Log directories whose disk fails, of a broker that is not up: it still responds to this request."""
    with cluster.only(broker.address) as alone:
        answer = alone.call("describe_log_dirs", once=True, within_s=PATIENCE_S, topics=None)
    return _failed(answer)


def _failed(answer: Message) -> tuple[str, ...]:
    return tuple(row.log_dir for row in answer.results if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR)


def read_reassignments(cluster: Cluster) -> tuple[Reassignment, ...]:
    answer = ask_any(cluster, "list_partition_reassignments", topics=None)
    return tuple(
        Reassignment(
            TopicPartition(topic.name, row.partition_index),
            tuple(row.replicas),
            tuple(row.adding_replicas),
            tuple(row.removing_replicas),
        )
        for topic in answer.topics
        for row in topic.partitions
    )


def read_min_in_sync(cluster: Cluster, topics: Sequence[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for at in range(0, len(topics), _TOPICS_PER_REQUEST):
        resources = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": [_MIN_IN_SYNC]}
            for name in topics[at : at + _TOPICS_PER_REQUEST]
        ]
        answer = ask_any(cluster, "describe_configs", resources=resources)
        for row in answer.results:
            for config in row.configs:
                if config.name == _MIN_IN_SYNC and config.value is not None:
                    found[row.resource_name] = int(config.value)
    return found
