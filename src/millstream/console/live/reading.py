"""Reads brokers, topics, quorum, disks, reassignments and groups from the cluster.

Each request has a short timeout, so that a broker that hangs does not delay the others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from millstream.console.live.snapshot import (
    NO_QUORUM,
    Broker,
    Disk,
    Group,
    Member,
    Partition,
    Quorum,
    QuorumNode,
    Reassignment,
    Topic,
)
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import (
    Cursor,
    MalformedMessage,
    fixed_reader,
    read_length_int16,
    text_reader,
)
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


SHARE = "share"
CONSUMER = "consumer"
CLASSIC = "classic"
_LAST_WITH_NAMES = 9
_read_int16, _read_int32 = fixed_reader("h"), fixed_reader("i")
_read_text = text_reader(read_length_int16, nullable=False)
_DESCRIBE = {CONSUMER: "consumer_group_describe", SHARE: "share_group_describe"}


def read_groups(cluster: Cluster, broker: int) -> list[Group]:
    """All groups that a broker coordinates, without lag: where logs end is known elsewhere."""
    listed: dict[str, tuple[str, str]] = {}
    answer = _ask(cluster, broker, "list_groups", states_filter=[], types_filter=[])
    for row in answer.groups:
        listed[row.group_id] = ((row.group_type or CLASSIC).lower(), row.group_state or "")
    by_kind: dict[str, list[str]] = {}
    for name, (kind, _) in listed.items():
        by_kind.setdefault(kind, []).append(name)
    described: dict[str, tuple[str, tuple[Member, ...]]] = {}
    for kind, names in by_kind.items():
        described |= _describe(cluster, broker, kind, names)
    offsets = _offsets(cluster, broker, [name for name, (kind, _) in listed.items() if kind != SHARE])
    shared, lags = _share_offsets(cluster, broker, by_kind.get(SHARE, []))
    groups = []
    for name, (kind, state) in listed.items():
        assignor, members = described.get(name, ("", ()))
        at = shared.get(name, {}) if kind == SHARE else offsets.get(name, {})
        groups.append(Group(name, kind, state, assignor, broker, members, at, lags.get(name, {})))
    return groups


def _describe(
    cluster: Cluster, broker: int, kind: str, names: Sequence[str]
) -> dict[str, tuple[str, tuple[Member, ...]]]:
    if kind not in _DESCRIBE:
        answer = _ask(cluster, broker, "describe_groups", groups=names)
        return {
            row.group_id: (row.protocol_data, tuple(_classic_member(each) for each in row.members))
            for row in answer.groups
            if not row.error_code
        }
    answer = _ask(cluster, broker, _DESCRIBE[kind], group_ids=names)
    return {
        row.group_id: (row.assignor_name, tuple(_member(each) for each in row.members))
        for row in answer.groups
        if not row.error_code
    }


def _member(row: Message) -> Member:
    places = [
        TopicPartition(topic.topic_name, number)
        for topic in row.assignment.topic_partitions
        for number in topic.partitions
    ]
    instance = getattr(row, "instance_id", None)
    return Member(row.member_id, row.client_id, row.client_host.lstrip("/"), instance, tuple(places))


def _classic_member(row: Message) -> Member:
    return Member(
        row.member_id,
        row.client_id,
        row.client_host.lstrip("/"),
        getattr(row, "group_instance_id", None),
        _assignment(bytes(row.member_assignment)),
    )


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What a consumer's leader gave it: version, then topics with their partitions. Other protocols have other bytes,
    and then nothing is said of them."""
    cursor = Cursor(data)
    places = []
    try:
        _read_int16(cursor)
        for _ in range(cursor.array_count(_read_int32(cursor))):
            topic = _read_text(cursor)
            count = cursor.array_count(_read_int32(cursor))
            places += [TopicPartition(topic, _read_int32(cursor)) for _ in range(count)]
    except MalformedMessage:
        return ()
    return tuple(places)


def _offsets(cluster: Cluster, broker: int, names: Sequence[str]) -> dict[str, Mapping[TopicPartition, int]]:
    if not names:
        return {}
    asked = [{"group_id": name, "topics": None} for name in names]
    answer = _ask(cluster, broker, "offset_fetch", at_most=_LAST_WITH_NAMES, groups=asked, require_stable=False)
    return {
        group.group_id: {
            TopicPartition(topic.name, row.partition_index): row.committed_offset
            for topic in group.topics
            for row in topic.partitions
            if not row.error_code and row.committed_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }


def _share_offsets(
    cluster: Cluster, broker: int, names: Sequence[str]
) -> tuple[dict[str, dict[TopicPartition, int]], dict[str, dict[TopicPartition, int]]]:
    starts: dict[str, dict[TopicPartition, int]] = {}
    lags: dict[str, dict[TopicPartition, int]] = {}
    if not names:
        return starts, lags
    asked = [{"group_id": name, "topics": None} for name in names]
    for group in _ask(cluster, broker, "describe_share_group_offsets", groups=asked).groups:
        for topic in group.topics:
            for row in topic.partitions:
                if row.error_code == ErrorCode.NONE and row.start_offset >= 0:
                    place = TopicPartition(topic.topic_name, row.partition_index)
                    starts.setdefault(group.group_id, {})[place] = row.start_offset
                    if row.lag >= 0:
                        lags.setdefault(group.group_id, {})[place] = row.lag
    return starts, lags


def _ask(cluster: Cluster, broker: int, api: str, *, at_most: int | None = None, **fields: Any) -> Message:
    return cluster.call(api, node=broker, once=True, within_s=PATIENCE_S * 2, at_most=at_most, **fields)
