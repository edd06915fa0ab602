"""Consumer groups of both protocols and share groups, asked and changed over the wire."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import LATEST, Cluster, CoordinatorKind, TopicPartition
from millstream.raw_client.errors import error_code, refusal

_LAST_WITH_NAMES = 9
"""Later versions of OffsetFetch go by topic ids."""
SHARE = "share"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    name: str
    type: str
    """classic, consumer or share."""
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    name: str
    type: str
    state: str
    assignor: str
    coordinator: int
    """Its broker's id, -1 if that is not known."""
    members: list[GroupMember]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a group is in one partition."""

    offset: int
    end: int
    """As far as what is committed; -1 if not known."""

    @property
    def lag(self) -> int | None:
        return max(0, self.end - self.offset) if self.end >= 0 else None


class GroupAdmin:
    """Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def groups(self, *, share: bool = False) -> list[ListedGroup]:
        found: dict[str, ListedGroup] = {}
        for answer in self._cluster.call_every_broker("list_groups", states_filter=[], types_filter=[]).values():
            for row in answer.groups:
                type_ = row.group_type.lower() or "classic"
                if (type_ == SHARE) == share:
                    found[row.group_id] = ListedGroup(row.group_id, type_, row.group_state)
        return [found[name] for name in sorted(found)]

    def group(self, name: str, *, share: bool = False) -> GroupDetail:
        """GROUP_ID_NOT_FOUND if there is none."""
        if share:
            return self._described(name, SHARE, "share_group_describe")
        try:
            return self._described(name, "consumer", "consumer_group_describe")
        except _OtherKindError:
            return self._classic(name)

    def _described(self, name: str, type_: str, api: str) -> GroupDetail:
        row = self._ask(name, api, group_ids=[name]).groups[0]
        code = error_code(row.error_code)
        if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION) and type_ != SHARE:
            raise _OtherKindError
        _check(name, row)
        members = [
            GroupMember(
                member.member_id,
                getattr(member, "instance_id", None),
                member.client_id,
                member.client_host.lstrip("/"),
                [
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ],
            )
            for member in row.members
        ]
        return GroupDetail(name, type_, row.group_state, row.assignor_name, self._coordinator(name), members)

    def _classic(self, name: str) -> GroupDetail:
        row = self._ask(name, "describe_groups", groups=[name]).groups[0]
        _check(name, row)
        if row.group_state == "Dead":
            raise refusal(f"group {name!r}", ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
        members = [
            GroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host.lstrip("/"),
                read_assignment(bytes(member.member_assignment)),
            )
            for member in row.members
        ]
        return GroupDetail(name, "classic", row.group_state, row.protocol_data, self._coordinator(name), members)

    def delete(self, name: str) -> None:
        row = self._ask(name, "delete_groups", groups_names=[name]).results[0]
        _check(name, row)

    # Offsets

    def progress(self, name: str, *, share: bool = False) -> dict[TopicPartition, Progress]:
        """Of all partitions in which the group has an offset."""
        offsets = self._share_offsets(name) if share else self._offsets(name)
        return self.measured(offsets)

    def measured(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Progress]:
        """Beside the ends of their partitions; a topic that was deleted has no end."""
        existing = self._cluster.topics({place.topic for place in offsets}) if offsets else {}
        there = [
            place
            for place in offsets
            if place.topic in existing and place.partition < len(existing[place.topic].partitions)
        ]
        ends = self._cluster.offsets(dict.fromkeys(there, LATEST)) if there else {}
        return {
            place: Progress(offsets[place], ends[place].offset if place in ends else -1) for place in sorted(offsets)
        }

    def set_offsets(self, name: str, offsets: Mapping[TopicPartition, int], *, share: bool = False) -> None:
        """The group must have no members."""
        if not share:
            self._cluster.commit_offsets(name, offsets)
            return
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append({"partition_index": partition, "start_offset": offset})
        rows = [{"topic_name": topic, "partitions": places} for topic, places in topics.items()]
        answer = self._ask(name, "alter_share_group_offsets", group_id=name, topics=rows)
        _check(name, answer)
        for row in answer.responses:
            for place in row.partitions:
                _check(name, place)

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        answer = self._ask(
            name,
            "offset_fetch",
            at_most=_LAST_WITH_NAMES,
            groups=[{"group_id": name, "topics": None}],
            group_id=name,
            topics=None,
            require_stable=False,
        )
        found = answer.groups[0] if answer.groups else answer
        _check(name, found)
        return {
            TopicPartition(topic.name, row.partition_index): row.committed_offset
            for topic in found.topics
            for row in topic.partitions
            if row.committed_offset >= 0
        }

    def _share_offsets(self, name: str) -> dict[TopicPartition, int]:
        answer = self._ask(name, "describe_share_group_offsets", groups=[{"group_id": name, "topics": None}])
        _check(name, answer.groups[0])
        return {
            TopicPartition(topic.topic_name, row.partition_index): row.start_offset
            for topic in answer.groups[0].topics
            for row in topic.partitions
            if row.error_code == ErrorCode.NONE and row.start_offset >= 0
        }

    def _coordinator(self, name: str) -> int:
        address = self._cluster.coordinator_of(name, CoordinatorKind.GROUP)
        for broker in self._cluster.brokers():
            if (broker.host, broker.port) == (address.host, address.port):
                return broker.node_id
        return -1

    def _ask(self, name: str, api: str, **fields: Any) -> Message:
        return self._cluster.call_coordinator(name, CoordinatorKind.GROUP, api, **fields)


class _OtherKindError(Exception):
    """The group is not of the protocol that was asked for."""


def read_assignment(data: bytes) -> list[TopicPartition]:
    """What a member of the classic protocol has, as clients write it; nothing if it is not written so."""
    found: list[TopicPartition] = []
    try:
        _, topics = struct.unpack_from(">hi", data)
        at = 6
        for _ in range(topics):
            (size,) = struct.unpack_from(">H", data, at)  # without a sign: it must lead on, never back
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (count,) = struct.unpack_from(">I", data, at)
            found += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", data, at + 4)]
            at += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def _check(name: str, row: Message) -> None:
    if row.error_code:
        raise refusal(f"group {name!r}", error_code(row.error_code), getattr(row, "error_message", None))
