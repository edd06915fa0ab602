"""Consumer groups of both protocols, streams and share groups: list, describe, offsets and lag, resets, deletion."""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.admin.errors import GroupNotEmptyError, check
from millstream.admin.offsets import OffsetMove, ResetTarget, plan_reset
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import LATEST, Cluster, CoordinatorKind, RefusedError, SetupError, TopicPartition
from millstream.raw_client.errors import error_code, refusal

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
_DESCRIBE_API = {
    CONSUMER: "consumer_group_describe",
    SHARE: "share_group_describe",
    STREAMS: "streams_group_describe",
}
_STREAMS_ASSIGNOR = "sticky"
"""The only assignor of streams groups; the response does not name it."""
_LAST_WITH_NAMES = 9
"""Later versions of OffsetFetch use topic ids."""
_IDLE_STATES = frozenset({"Empty", "Dead"})
_NOT_EMPTY = frozenset(
    {
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
Ask = Callable[..., Message]
"""Sends a request, given its name and fields, to the broker that coordinates the groups."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    name: str
    type: str
    """classic, consumer, share or streams."""
    state: str
    protocol_type: str
    """Of a classic group: `consumer`, `connect`, …; empty if it never had members."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and the partitions assigned to it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class Group:
    """A group with its members."""

    name: str
    type: str
    """classic, consumer, share or streams."""
    state: str
    assignor: str
    coordinator: int
    """The broker's id, -1 if that is not known."""
    members: list[GroupMember]
    coordinator_address: str = ""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Committed offsets, or start offsets of a share group. Only `GroupAdmin.groups_on` fills them in."""
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Lags as the broker counts them, for share groups. Only `GroupAdmin.groups_on` fills them in."""
    protocol_type: str = ""
    """Of a classic group: empty if it never had members. Only `GroupAdmin.groups_on` fills it in."""

    @property
    def lag(self) -> int:
        """The sum of `lags`."""
        return sum(self.lags.values())

    @property
    def is_active(self) -> bool:
        """Whether it has members, or is about to have some."""
        return bool(self.members) or self.state not in _IDLE_STATES

    def owner(self, partition: TopicPartition) -> GroupMember | None:
        """The member to which the partition is assigned."""
        return next((member for member in self.members if partition in member.assignment), None)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The offset of a group in one partition."""

    offset: int
    """The committed offset, or the start offset of a share group."""
    end: int
    """The end of the log for consumers of committed records; -1 if it is not known, as for a deleted topic."""
    counted_lag: int | None = None
    """The broker's count for a share group: records after the start offset may be acknowledged already."""

    @property
    def lag(self) -> int | None:
        if self.counted_lag is not None:
            return self.counted_lag
        return max(0, self.end - self.offset) if self.end >= 0 else None


class GroupAdmin:
    """Reads and changes groups. Thread safe; every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # Reading

    def groups(self, *, share: bool = False) -> list[GroupListing]:
        """All consumer and streams groups, or all share groups, by name."""
        found: dict[str, GroupListing] = {}
        for response in self._cluster.call_every_broker("list_groups", states_filter=[], types_filter=[]).values():
            for row in _listings(response):
                if (row.type == SHARE) == share:
                    found[row.name] = row
        return [found[name] for name in sorted(found)]

    def find(self, name: str, *, share: bool = False) -> Group | None:
        """The group with its members; None if it does not exist."""
        try:
            return self.group(name, share=share)
        except RefusedError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None

    def group(self, name: str, *, share: bool = False) -> Group:
        """The group with its members; GROUP_ID_NOT_FOUND if it does not exist."""
        ask = self._coordinator_of(name)
        if share:
            type_, row = SHARE, ask(_DESCRIBE_API[SHARE], group_ids=[name]).groups[0]
        else:
            type_, row = CONSUMER, _row_of_type(ask, CONSUMER, name)
            if row is None:
                type_, row = STREAMS, _row_of_type(ask, STREAMS, name)
            if row is None:
                type_, row = CLASSIC, ask("describe_groups", groups=[name]).groups[0]
        check(f"group {name!r}", row)
        if row.group_state == "Dead" and type_ == CLASSIC:
            raise refusal(f"group {name!r}", ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
        assignor, members = _described(type_, row)
        address = self._cluster.coordinator_of(name, CoordinatorKind.GROUP)
        coordinators = [row.node_id for row in self._cluster.brokers() if (row.host, row.port) == tuple(address)]
        coordinator = coordinators[0] if coordinators else -1
        return Group(name, type_, row.group_state, assignor, coordinator, members, str(address))

    def groups_on(self, broker: int, *, timeout_s: float) -> list[Group]:
        """All groups of all types that a broker coordinates, with their offsets, in a few requests.

        Groups whose details cannot be read have no members and no offsets. Nothing is repeated.
        """
        ask: Ask = partial(self._ask_broker, broker, timeout_s)
        listed = _listings(ask("list_groups", states_filter=[], types_filter=[]))
        names: dict[str, list[str]] = {}
        for row in listed:
            names.setdefault(row.type, []).append(row.name)
        described: dict[str, tuple[str, list[GroupMember]]] = {}
        for type_, of_type in names.items():
            if type_ in _DESCRIBE_API:
                response = ask(_DESCRIBE_API[type_], group_ids=of_type)
            else:
                response = ask("describe_groups", groups=of_type)
            described |= {row.group_id: _described(type_, row) for row in response.groups if not row.error_code}
        committed = _committed_offsets(ask, [row.name for row in listed if row.type != SHARE])
        starts, lags = _share_offsets(ask, names.get(SHARE, []))
        nothing: tuple[str, list[GroupMember]] = ("", [])
        return [
            Group(
                row.name,
                row.type,
                row.state,
                *_ordered(broker, described.get(row.name, nothing)),
                offsets=(starts if row.type == SHARE else committed).get(row.name, {}),
                lags=lags.get(row.name, {}),
                protocol_type=row.protocol_type,
            )
            for row in listed
        ]

    # Offsets

    def offsets(self, name: str, *, share: bool = False) -> dict[TopicPartition, int]:
        """Committed offsets, or the start offsets of a share group."""
        ask = self._coordinator_of(name)
        if share:
            return _share_offsets(ask, [name], strict=True)[0].get(name, {})
        return _committed_offsets(ask, [name], strict=True).get(name, {})

    def progress(self, name: str, *, share: bool = False) -> dict[TopicPartition, GroupOffset]:
        """Offset, end and lag of all partitions in which the group has an offset."""
        if not share:
            return self.measured(self.offsets(name))
        starts, lags = _share_offsets(self._coordinator_of(name), [name], strict=True)
        return self.measured(starts.get(name, {}), lags.get(name, {}))

    def measured(
        self, offsets: Mapping[TopicPartition, int], lags: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, GroupOffset]:
        """Offsets together with the ends of their logs."""
        ends = self.ends(offsets)
        counted = lags or {}
        return {each: GroupOffset(offsets[each], ends.get(each, -1), counted.get(each)) for each in sorted(offsets)}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of logs for consumers of committed records. Partitions that do not exist any more are absent."""
        existing = self._cluster.topics({each.topic for each in partitions}) if partitions else {}
        there = [
            each
            for each in partitions
            if each.topic in existing and each.partition < len(existing[each.topic].partitions)
        ]
        found = self._cluster.offsets(dict.fromkeys(there, LATEST)) if there else {}
        return {each: row.offset for each, row in found.items()}

    def reset_offsets(
        self,
        name: str,
        target: ResetTarget,
        partitions: Iterable[TopicPartition],
        *,
        share: bool = False,
        dry_run: bool = False,
    ) -> list[OffsetMove]:
        """Moves the offsets of a group and returns the moves; with `dry_run` it only returns them.

        The group must have no members: GroupNotEmptyError. A consumer group that does not exist is created by its
        offsets; a share group must exist.
        """
        group = self.find(name, share=share)
        if group is None and share:
            raise refusal(f"group {name!r}", ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
        if group is not None and not dry_run:
            check_not_active(group)
        committed = self.offsets(name, share=share) if group is not None else {}
        moves = plan_reset(self._cluster, committed, partitions, target)
        if moves and not dry_run:
            self.set_offsets(name, {move.partition: move.new for move in moves}, share=share)
        return moves

    def set_offsets(self, name: str, offsets: Mapping[TopicPartition, int], *, share: bool = False) -> None:
        """Sets offsets as they are given. The group must have no members: GroupNotEmptyError."""
        try:
            if share:
                self._set_start_offsets(name, offsets)
            else:
                self._cluster.commit_offsets(name, offsets)
        except RefusedError as error:
            raise _not_empty(name, error) from error

    def delete_offsets(self, name: str, topic: str) -> None:
        """Deletes the committed offsets of a group for one topic. No member may be subscribed to it:
        GROUP_SUBSCRIBED_TO_TOPIC."""
        partitions = [place.partition for place in self.offsets(name) if place.topic == topic]
        if not partitions:
            raise refusal(f"group {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"it has no offsets of {topic!r}")
        rows = [{"name": topic, "partitions": [{"partition_index": each} for each in sorted(partitions)]}]
        response = self._coordinator_of(name)("offset_delete", group_id=name, topics=rows)
        check(f"group {name!r}", response)
        for row in (row for each in response.topics for row in each.partitions):
            check(f"the offset of group {name!r} for partition {row.partition_index} of {topic!r}", row)

    def delete(self, name: str) -> None:
        """Deletes a group and its offsets. It must have no members: GroupNotEmptyError."""
        try:
            check(f"group {name!r}", self._coordinator_of(name)("delete_groups", groups_names=[name]).results[0])
        except RefusedError as error:
            raise _not_empty(name, error) from error

    def _set_start_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append({"partition_index": index, "start_offset": offset})
        rows = [{"topic_name": topic, "partitions": partitions} for topic, partitions in topics.items()]
        response = self._coordinator_of(name)("alter_share_group_offsets", group_id=name, topics=rows)
        for row in (response, *(row for topic in response.responses for row in topic.partitions)):
            check(f"group {name!r}", row)

    def _coordinator_of(self, name: str) -> Ask:
        return partial(self._cluster.call_coordinator, name, CoordinatorKind.GROUP)

    def _ask_broker(self, broker: int, timeout_s: float, api: str, /, **fields: Any) -> Message:
        return self._cluster.call(api, node=broker, once=True, within_s=timeout_s, **fields)


def check_not_active(group: Group) -> None:
    """Raises GroupNotEmptyError if the group has members."""
    if group.is_active:
        count = len(group.members)
        raise GroupNotEmptyError(
            f"group {group.name!r} is {group.state.lower()} with {count} member{'' if count == 1 else 's'}:"
            " stop its consumers first, or wait until their session has timed out"
        )


def _not_empty(name: str, error: RefusedError) -> RefusedError:
    if error.code not in _NOT_EMPTY:
        return error
    return GroupNotEmptyError(
        f"group {name!r} is active, and the broker refuses changes by others ({error.code.name}):"
        " stop its consumers first"
    )


def _ordered(broker: int, described: tuple[str, list[GroupMember]]) -> tuple[str, int, list[GroupMember]]:
    assignor, members = described
    return assignor, broker, members


# Responses


def _listings(response: Message) -> list[GroupListing]:
    return [
        GroupListing(row.group_id, (row.group_type or CLASSIC).lower(), row.group_state or "", row.protocol_type)
        for row in response.groups
    ]


def _row_of_type(ask: Ask, type_: str, name: str) -> Message | None:
    """The group as one of this type; None if it is of another type, or the broker does not have such groups."""
    try:
        row: Message = ask(_DESCRIBE_API[type_], group_ids=[name]).groups[0]
    except SetupError:
        return None
    is_other = error_code(row.error_code) in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
    return None if is_other else row


def _described(type_: str, row: Message) -> tuple[str, list[GroupMember]]:
    """The assignor and the members."""
    if type_ == STREAMS:
        return _STREAMS_ASSIGNOR, _streams_members(row)
    if type_ in _DESCRIBE_API:
        return row.assignor_name, [_member(each) for each in row.members]
    return row.protocol_data, [_classic_member(each) for each in row.members]


def _streams_members(group: Message) -> list[GroupMember]:
    """Members with the partitions that their active tasks read."""
    inputs: dict[str, list[str]] = {}
    for each in group.topology.subtopologies or () if group.topology is not None else ():
        inputs[each.subtopology_id] = [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
    return [
        GroupMember(
            row.member_id,
            row.instance_id,
            row.client_id,
            row.client_host.lstrip("/"),
            [
                TopicPartition(topic, index)
                for task in row.assignment.active_tasks
                for topic in inputs.get(task.subtopology_id, ())
                for index in task.partitions
            ],
        )
        for row in group.members
    ]


def _member(row: Message) -> GroupMember:
    return GroupMember(
        row.member_id,
        getattr(row, "instance_id", None),
        row.client_id,
        row.client_host.lstrip("/"),
        [
            TopicPartition(topic.topic_name, index)
            for topic in row.assignment.topic_partitions
            for index in topic.partitions
        ],
    )


def _classic_member(row: Message) -> GroupMember:
    return GroupMember(
        row.member_id,
        getattr(row, "group_instance_id", None),
        row.client_id,
        row.client_host.lstrip("/"),
        read_assignment(bytes(row.member_assignment)),
    )


def read_assignment(data: bytes) -> list[TopicPartition]:
    """The assignment of a member of the classic protocol, as consumers encode it; empty if it is encoded otherwise."""
    found: list[TopicPartition] = []
    try:
        _, topics = struct.unpack_from(">hi", data)
        at = 6
        for _ in range(topics):
            (size,) = struct.unpack_from(">H", data, at)  # unsigned, so that the position always grows
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            (count,) = struct.unpack_from(">I", data, at)
            found += [TopicPartition(topic, index) for index in struct.unpack_from(f">{count}i", data, at + 4)]
            at += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def _committed_offsets(ask: Ask, names: Sequence[str], *, strict: bool = False) -> dict[str, dict[TopicPartition, int]]:
    """By group. With `strict` an error of a group is raised, otherwise the group is left out."""
    if not names:
        return {}
    response = ask(
        "offset_fetch",
        at_most=_LAST_WITH_NAMES,
        groups=[{"group_id": name, "topics": None} for name in names],
        group_id=names[0],  # old versions have fields for one group
        topics=None,
        require_stable=False,
    )
    found: dict[str, dict[TopicPartition, int]] = {}
    for name, row in [(row.group_id, row) for row in response.groups] or [(names[0], response)]:
        if strict:
            check(f"group {name!r}", row)
        if not row.error_code:
            found[name] = {
                TopicPartition(topic.name, each.partition_index): each.committed_offset
                for topic in row.topics
                for each in topic.partitions
                if not each.error_code and each.committed_offset >= 0
            }
    return found


def _share_offsets(
    ask: Ask, names: Sequence[str], *, strict: bool = False
) -> tuple[dict[str, dict[TopicPartition, int]], dict[str, dict[TopicPartition, int]]]:
    """Start offsets and lags, by group."""
    starts: dict[str, dict[TopicPartition, int]] = {}
    lags: dict[str, dict[TopicPartition, int]] = {}
    if not names:
        return starts, lags
    groups = [{"group_id": name, "topics": None} for name in names]
    for row in ask("describe_share_group_offsets", groups=groups).groups:
        if strict:
            check(f"group {row.group_id!r}", row)
        for topic in row.topics:
            for each in topic.partitions:
                if each.error_code == ErrorCode.NONE and each.start_offset >= 0:
                    partition = TopicPartition(topic.topic_name, each.partition_index)
                    starts.setdefault(row.group_id, {})[partition] = each.start_offset
                    if each.lag >= 0:
                        lags.setdefault(row.group_id, {})[partition] = each.lag
    return starts, lags
