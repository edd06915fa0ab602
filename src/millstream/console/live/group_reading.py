"""Groups of all kinds as their coordinators tell of them: a broker is asked at once for all that it coordinates."""

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.console.live.cluster_reading import PATIENCE_S
from millstream.console.live.snapshot import Group, Member
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import (
    Cursor,
    MalformedMessage,
    fixed_reader,
    read_length_int16,
    text_reader,
)
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster, TopicPartition

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
