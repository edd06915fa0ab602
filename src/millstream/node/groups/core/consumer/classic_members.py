"""Members of the classic protocol in a consumer group; migration of groups between the two protocols.

`ClassicMembers` serves JoinGroup, SyncGroup, Heartbeat and LeaveGroup. Such a member joins and syncs without waiting
for others: the broker assigns, and there is no leader. Where a consumer-protocol member gets a change with its
heartbeat, a classic member gets REBALANCE_IN_PROGRESS and joins again.

`Migration` changes the type of a running group: from classic to consumer when the first consumer-protocol member joins,
and back when the last one leaves. Members, partitions and offsets stay.

The functions at the top read and write the subscription and assignment bytes of the classic protocol.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.config.table import groups as classic_settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import Message, Schema, split_entries
from millstream.formats.protocol.wire_types import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from millstream.node.coordination.core.state_machine import CoordinatorResult, TopicCatalog, Writes
from millstream.node.groups.core.classic.group import ClassicGroup, Client, GroupState
from millstream.node.groups.core.classic.group import Member as ClassicMember
from millstream.node.groups.core.classic.group import Protocol as ClassicProtocol
from millstream.node.groups.core.consumer.group import (
    ClassicMetadata,
    ConsumerGroup,
    ConsumerSettings,
    Member,
    MemberState,
    Protocol,
    assignment_record,
    epoch_record,
    member_record,
    moved_to_id,
    target_epoch_record,
    target_record,
)
from millstream.node.groups.core.consumer.rebalance import GroupChange
from millstream.node.groups.core.group import MAX_TEXT_LENGTH

if TYPE_CHECKING:
    from millstream.node.coordination.core.state_machine import Timers
    from millstream.node.groups.core.consumer.groups import ConsumerGroups
    from millstream.node.groups.core.shard import GroupShard


PROTOCOL_TYPE = "consumer"
_INT16 = struct.Struct(">h")


@cache
def _schema(name: str) -> Schema:
    text = files("millstream.node.groups.core.consumer").joinpath("consumer.schema").read_text()
    return Schema(split_entries(text)["data", name])


def _read(name: str, data: bytes) -> Message:
    schema = _schema(name)
    version = subscription_version(data)
    if version < 0:
        raise MalformedMessage(f"{name} of version {version}")
    return schema.read(Cursor(data, 2), min(version, schema.versions.high))


def subscription_version(data: bytes) -> int:
    if len(data) < _INT16.size:
        raise MalformedMessage("no version")
    return int(_INT16.unpack_from(data)[0])


def read_subscription(data: bytes) -> Message:
    """MalformedMessage if the bytes are not a subscription."""
    return _read("subscription", data)


def read_assignment(data: bytes) -> Message:
    """MalformedMessage if the bytes are not an assignment. No bytes are an empty assignment."""
    return _read("assignment", data) if data else _schema("assignment").root.new()


def assignment_bytes(partitions: Mapping[UUID, Iterable[int]], topics: TopicCatalog, version: int) -> bytes:
    """Deleted topics have no name and are left out."""
    rows = [
        {"topic": topic.name, "partitions": sorted(numbers)}
        for topic_id, numbers in partitions.items()
        if (topic := topics.by_id(topic_id)) is not None
    ]
    schema = _schema("assignment")
    version = min(version, schema.versions.high)
    return _INT16.pack(version) + schema.encode({"assigned_partitions": rows}, version)


def by_topic_id(rows: Iterable[Message], topics: TopicCatalog) -> dict[UUID, set[int]]:
    """Partitions by topic id, for topics that exist."""
    found: dict[UUID, set[int]] = {}
    for row in rows:
        topic = topics.get(row.topic)
        numbers = set() if topic is None else {n for n in row.partitions if 0 <= n < topic.partition_count}
        if topic is not None and numbers:
            found.setdefault(topic.id, set()).update(numbers)
    return found


ResponseFields = dict[str, Any]
_FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
_MAX_NAME_LENGTH_IN_ID = 249


class ClassicMembers:
    def __init__(self, groups: "ConsumerGroups", timers: "Timers") -> None:
        self._groups = groups
        self._timers = timers

    # JoinGroup

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, version: int, now_ms: int
    ) -> CoordinatorResult[ResponseFields]:
        instance_id = request.group_instance_id
        name = (instance_id or client.client_id)[:_MAX_NAME_LENGTH_IN_ID]
        member_id = request.member_id or f"{name}-{self._groups.new_uuid()}"
        if len(member_id) > MAX_TEXT_LENGTH:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "No member has an id that long.")
        self._groups.check_room(group, member_id, instance_id)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type != PROTOCOL_TYPE or not _has_common_protocol(group, names):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        needs_id = not request.member_id and instance_id is None
        if needs_id and version >= _FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
            return CoordinatorResult({"error_code": ErrorCode.MEMBER_ID_REQUIRED, "member_id": member_id})
        try:
            subscription = read_subscription(request.protocols[0].metadata)
        except MalformedMessage as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The subscription is malformed: {error}") from None
        writes = Writes()
        change = GroupChange(group, self._groups, writes, now_ms)
        before = self._member_to_join(change, member_id, request)
        updated = _updated_member(before, request, subscription, client, version)
        if self._groups.migration.can_downgrade([*_without(change, before), updated]):
            return self._join_as_classic_group(group, change, before, updated, now_ms)
        changed = change.put(updated)
        change.refresh()
        change.assign(at_once=True)
        owned = by_topic_id(subscription.owned_partitions, self._groups.topics)
        member = change.step(updated, owned, subscription_changed=changed)
        writes.add(then=lambda error: None if error else self._joined(group.group_id, member, now_ms))
        return writes.result(
            {
                "error_code": ErrorCode.NONE,
                "generation_id": member.epoch,
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": names[0],
                "leader": "",
                "member_id": member.id,
                "members": [],
            }
        )

    def _member_to_join(self, change: GroupChange, member_id: str, request: JoinGroupRequest) -> Member:
        group, instance_id = change.group, request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id) or Member(member_id)
        if request.member_id:
            return group.find_static_member(instance_id, member_id)
        known = group.members.get(group.static_members.get(instance_id, ""))
        if known is None:
            return Member(member_id)
        back = moved_to_id(known, member_id)
        change.replace(known, back)
        return back

    def _join_as_classic_group(
        self, group: ConsumerGroup, change: GroupChange, before: Member, updated: Member, now_ms: int
    ) -> CoordinatorResult[ResponseFields]:
        """The last consumer-protocol member joined with the classic protocol: the group becomes a classic one.

        The member gets REBALANCE_IN_PROGRESS, and then joins the classic group.
        """
        writes = Writes()
        self._groups.migration.downgrade(group, [*_without(change, before), updated], writes, now_ms)
        return writes.result({"error_code": ErrorCode.REBALANCE_IN_PROGRESS, "member_id": updated.id})

    def _joined(self, group_id: str, member: Member, now_ms: int) -> None:
        self._groups.member_active(group_id, member, now_ms)
        self._timers.cancel(("consumer join", group_id, member.id))
        self._expect_request(group_id, member, "consumer sync", now_ms)

    def _expect_request(self, group_id: str, member: Member, what: str, now_ms: int) -> None:
        """The next request of the member must arrive within its rebalance timeout."""
        key = (what, group_id, member.id)
        if key not in self._timers:
            deadline_ms = now_ms + max(0, member.rebalance_timeout_ms)
            self._timers.set(key, deadline_ms, lambda at_ms: self._groups.expire(group_id, member.id, at_ms))

    # SyncGroup and Heartbeat

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, now_ms: int) -> CoordinatorResult[ResponseFields]:
        member, classic = self._known(group, request)
        for requested, actual in (
            (request.protocol_type, PROTOCOL_TYPE),
            (request.protocol_name, classic.protocols[0].name),
        ):
            if requested is not None and requested != actual:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The group uses {actual!r}, not {requested!r}."
                )
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._require_join(group, member, now_ms)
        self._timers.cancel(("consumer sync", group.group_id, member.id))
        self._groups.extend_session(group, member, now_ms)
        version = subscription_version(classic.protocols[0].metadata)
        return CoordinatorResult(
            {
                "error_code": ErrorCode.NONE,
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": classic.protocols[0].name,
                "assignment": assignment_bytes(member.assigned, self._groups.topics, version),
            }
        )

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[ResponseFields]:
        member, _ = self._known(group, request)
        self._groups.extend_session(group, member, now_ms)
        gets_more = member.state is MemberState.UNRELEASED and not _waits_for_others(group, member)
        if group.epoch > member.epoch or member.state is MemberState.UNREVOKED or gets_more:
            self._require_join(group, member, now_ms)
        if group.seen_topics != self._groups.topics.version and self._groups.topics_differ(group, now_ms):
            # A classic client watches for new partitions only as leader, and there is no leader here.
            self._require_join(group, member, now_ms)
        return CoordinatorResult({"error_code": ErrorCode.NONE})

    def _require_join(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        self._expect_request(group.group_id, member, "consumer join", now_ms)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group has changed: join again.")

    def _known(
        self, group: ConsumerGroup, request: SyncGroupRequest | HeartbeatRequest
    ) -> tuple[Member, ClassicMetadata]:
        member = _classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION, f"The generation is {member.epoch}, not {request.generation_id}."
            )
        assert member.classic is not None
        return member, member.classic

    # LeaveGroup

    def leave(
        self, group: ConsumerGroup, leaving: Collection[tuple[str, str | None]], now_ms: int
    ) -> CoordinatorResult[list[ResponseFields]]:
        writes = Writes()
        rows = []
        gone: dict[str, Member] = {}
        for member_id, instance_id in leaving:
            code = ErrorCode.NONE
            try:
                if not member_id and instance_id is not None:
                    known = group.static_members.get(instance_id, "")
                    member = _classic_member(group, known, instance_id)
                else:
                    member = _classic_member(group, member_id, instance_id)
                gone[member.id] = member
            except KafkaError as error:
                code = error.code
            rows.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        if gone:
            self._groups.remove_members(group, list(gone.values()), writes, now_ms)
        return writes.result(rows)


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is None:
        member = group.find_member(member_id)
    else:
        member = group.find_static_member(instance_id, member_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.id} does not use the classic protocol.")
    return member


def _without(change: GroupChange, member: Member) -> list[Member]:
    return [each for each in change.members.values() if each.id != member.id]


def _has_common_protocol(group: ConsumerGroup, names: list[str]) -> bool:
    sides = [{each.name for each in member.classic.protocols} for member in group.members.values() if member.classic]
    return any(all(name in side for side in sides) for name in names)


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    return any(
        number not in member.assigned.get(topic_id, {}) and group.owner_of(topic_id, number) is not None
        for topic_id, numbers in group.targets.get(member.id, {}).items()
        for number in numbers
    )


def _updated_member(
    before: Member, request: JoinGroupRequest, subscription: Message, client: Client, version: int
) -> Member:
    rebalance_ms = request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms
    protocols = tuple(Protocol(each.name, each.metadata) for each in request.protocols)
    return replace(
        before,
        instance_id=request.group_instance_id,
        rack=subscription.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topics=frozenset(subscription.topics),
        pattern=None,
        rebalance_timeout_ms=rebalance_ms,
        assignor=None,
        classic=ClassicMetadata(request.session_timeout_ms, protocols),
    )


_COMMON_PROTOCOLS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Members of these protocols do not need the leader's user data; librdkafka's leaders send some. A custom assignor
(that of Kafka Streams, for example) needs it, so such a group cannot migrate."""
_GENERATIONS_AHEAD = 100
"""More generations than a group can start before it writes one."""


class Migration:
    def __init__(self, shard: "GroupShard", settings: ConsumerSettings) -> None:
        self._shard = shard
        self._settings = settings

    # Classic to consumer

    def upgrade(self, old: ClassicGroup, writes: Writes) -> ConsumerGroup:
        """The group as a consumer group; its records come before those of the member that joins."""
        if old.is_empty:
            writes.extend(old.deletion_records())
            return ConsumerGroup(old.group_id)
        self._check_upgrade(old)
        new = ConsumerGroup(old.group_id)
        new.epoch = new.assignment_epoch = old.generation
        try:
            for classic in old.members.values():
                member = _from_classic(classic, old, self._shard.topics)
                new.put(member)
                new.targets[member.id] = {topic_id: frozenset(owned) for topic_id, owned in member.assigned.items()}
        except MalformedMessage as error:
            raise _refused(old.group_id, f"the embedded consumer protocol is malformed ({error})") from None
        # Waiting clients of the classic group send their requests again when its tombstone is written, and find the new
        # group.
        writes.extend(old.deletion_records())
        group_id = new.group_id
        writes.extend(member_record(group_id, member) for member in new.members.values())
        writes.add(epoch_record(group_id, new.epoch, new.metadata_hash))
        writes.extend(target_record(group_id, member_id, target) for member_id, target in new.targets.items())
        writes.add(target_epoch_record(group_id, new.assignment_epoch, new.assigned_at_ms))
        writes.extend(assignment_record(group_id, member) for member in new.members.values())
        return new

    def _check_upgrade(self, old: ClassicGroup) -> None:
        if not self._settings.allows_upgrade:
            raise _refused(old.group_id, "online upgrade is disabled")
        if old.protocol_type != PROTOCOL_TYPE:
            raise _refused(old.group_id, "the group does not use the consumer embedded protocol")
        if len(old.members) > self._settings.max_size:
            raise _refused(old.group_id, "the group size exceeds the consumer group maximum size")

    # Consumer to classic

    def can_downgrade(self, members: Collection[Member]) -> bool:
        """Whether a group of these members should be a classic group."""
        return (
            bool(members)
            and all(member.classic is not None for member in members)
            and self._settings.allows_downgrade
            and len(members) <= self._shard.config()[classic_settings.GROUP_MAX_SIZE]
        )

    def downgrade(self, old: ConsumerGroup, members: Collection[Member], writes: Writes, now_ms: int) -> None:
        """Writes the group as a classic group with these members. They must join it when that is written."""
        new = ClassicGroup(old.group_id, now_ms)
        for member in members:
            new.add(_to_classic(member, self._shard.topics), None, PROTOCOL_TYPE)
        new.protocol = new.elect_protocol()
        new.state = GroupState.STABLE
        new.update_topics()
        assignments = {member.id: member.assignment for member in new.members.values()}
        # A member in this generation gets REBALANCE_IN_PROGRESS; others lose their partitions first.
        generation = max(old.assignment_epoch, *(member.epoch for member in members))
        # The record has a generation without members. So after a crash all members must join again.
        new.generation = generation + _GENERATIONS_AHEAD
        record = new.metadata_record(assignments)
        new.generation = generation

        def written(error: KafkaError | None) -> None:
            if error is None:
                self._shard.groups[new.group_id] = new
                self._shard.classic.adopt(new, now_ms)

        writes.extend(old.deletion_records())
        writes.add(record, then=written)


def _refused(group_id: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
    )


def _from_classic(classic: ClassicMember, group: ClassicGroup, topics: TopicCatalog) -> Member:
    subscription = read_subscription(classic.metadata(group.protocol) or classic.protocols[0].metadata)
    assignment = read_assignment(classic.assignment)
    if assignment.user_data and group.protocol not in _COMMON_PROTOCOLS:
        raise _refused(group.group_id, "an unsupported custom assignor is in use")
    owned = by_topic_id(assignment.assigned_partitions, topics)
    return Member(
        classic.id,
        classic.instance_id,
        subscription.rack_id,
        classic.client.client_id,
        classic.client.host,
        frozenset(subscription.topics),
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        classic=ClassicMetadata(classic.session_timeout_ms, tuple(Protocol(*each) for each in classic.protocols)),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={topic_id: dict.fromkeys(sorted(numbers), group.generation) for topic_id, numbers in owned.items()},
    )


def _to_classic(member: Member, topics: TopicCatalog) -> ClassicMember:
    assert member.classic is not None
    protocols = tuple(ClassicProtocol(*each) for each in member.classic.protocols)
    return ClassicMember(
        member.id,
        member.instance_id,
        Client(member.client_id, member.client_host),
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        protocols,
        assignment_bytes(member.assigned, topics, subscription_version(protocols[0].metadata)),
    )
