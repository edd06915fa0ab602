"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup, from members of a consumer group that speak the classic protocol.

Such a member joins and syncs without waiting for others: the broker assigns, and there is no leader. Where a member of
the new protocol is told of a change with its next heartbeat, this one is told to join again.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.outcome import Outcome
from millstream.node.coordination.core.writes import Writes
from millstream.node.groups.core.classic.member import Client
from millstream.node.groups.core.consumer.consumer_group import ConsumerGroup, moved_to_id
from millstream.node.groups.core.consumer.consumer_protocol import (
    PROTOCOL_TYPE,
    assignment_bytes,
    by_topic_id,
    read_subscription,
    subscription_version,
)
from millstream.node.groups.core.consumer.group_change import GroupChange
from millstream.node.groups.core.consumer.member import ClassicSide, Member, MemberState, Protocol
from millstream.node.groups.core.group import LONGEST_TEXT

if TYPE_CHECKING:
    from millstream.node.coordination.core.timers import Timers
    from millstream.node.groups.core.consumer.consumer_groups import ConsumerGroups

Answer = dict[str, Any]
_FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
_LONGEST_NAME_IN_AN_ID = 249


class ClassicMembers:
    def __init__(self, groups: "ConsumerGroups", timers: "Timers") -> None:
        self._groups = groups
        self._timers = timers

    # JoinGroup

    def join(
        self, group: ConsumerGroup, request: Message, client: Client, version: int, now_ms: int
    ) -> Outcome[Answer]:
        instance_id = request.group_instance_id
        name = (instance_id or client.client_id)[:_LONGEST_NAME_IN_AN_ID]
        member_id = request.member_id or f"{name}-{self._groups.new_uuid()}"
        if len(member_id) > LONGEST_TEXT:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "No member has an id that long.")
        self._groups.check_room(group, member_id, instance_id)
        names = [protocol.name for protocol in request.protocols]
        if request.protocol_type != PROTOCOL_TYPE or not _has_common_protocol(group, names):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        needs_id = not request.member_id and instance_id is None
        if needs_id and version >= _FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
            return Outcome({"error_code": ErrorCode.MEMBER_ID_REQUIRED, "member_id": member_id})
        try:
            subscription = read_subscription(request.protocols[0].metadata)
        except MalformedMessage as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The subscription is malformed: {error}") from None
        writes = Writes()
        change = GroupChange(group, self._groups, writes, now_ms)
        before = self._member_to_join(change, member_id, request)
        told = _told(before, request, subscription, client, version)
        if self._groups.migration.can_downgrade([*_without(change, before), told]):
            return self._join_as_classic_group(group, change, before, told, now_ms)
        changed = change.put(told)
        change.refresh()
        change.assign(at_once=True)
        owned = by_topic_id(subscription.owned_partitions, self._groups.topics)
        member = change.step(told, owned, subscription_changed=changed)
        writes.add(then=lambda error: None if error else self._joined(group.group_id, member, now_ms))
        return writes.outcome(
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

    def _member_to_join(self, change: GroupChange, member_id: str, request: Message) -> Member:
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
        self, group: ConsumerGroup, change: GroupChange, before: Member, told: Member, now_ms: int
    ) -> Outcome[Answer]:
        """The last member of the new protocol came back with the old one: from here on it is a classic group.

        The member is told to ask again, and then joins that.
        """
        writes = Writes()
        self._groups.migration.downgrade(group, [*_without(change, before), told], writes, now_ms)
        return writes.outcome({"error_code": ErrorCode.REBALANCE_IN_PROGRESS, "member_id": told.id})

    def _joined(self, group_id: str, member: Member, now_ms: int) -> None:
        self._groups.heard(group_id, member, now_ms)
        self._timers.cancel(("consumer join", group_id, member.id))
        self._expect(group_id, member, "consumer sync", now_ms)

    def _expect(self, group_id: str, member: Member, what: str, now_ms: int) -> None:
        """It has its rebalance time-out for its next request."""
        key = (what, group_id, member.id)
        if key not in self._timers:
            deadline_ms = now_ms + max(0, member.rebalance_timeout_ms)
            self._timers.set(key, deadline_ms, lambda at_ms: self._groups.expire(group_id, member.id, at_ms))

    # SyncGroup and Heartbeat

    def sync(self, group: ConsumerGroup, request: Message, now_ms: int) -> Outcome[Answer]:
        member, classic = self._known(group, request)
        for asked, actual in (
            (request.protocol_type, PROTOCOL_TYPE),
            (request.protocol_name, classic.protocols[0].name),
        ):
            if asked is not None and asked != actual:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The group uses {actual!r}, not {asked!r}.")
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._tell_to_join(group, member, now_ms)
        self._timers.cancel(("consumer sync", group.group_id, member.id))
        self._groups.extend_session(group, member, now_ms)
        version = subscription_version(classic.protocols[0].metadata)
        return Outcome(
            {
                "error_code": ErrorCode.NONE,
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": classic.protocols[0].name,
                "assignment": assignment_bytes(member.assigned, self._groups.topics, version),
            }
        )

    def heartbeat(self, group: ConsumerGroup, request: Message, now_ms: int) -> Outcome[Answer]:
        member, _ = self._known(group, request)
        self._groups.extend_session(group, member, now_ms)
        gets_more = member.state is MemberState.UNRELEASED and not _waits_for_others(group, member)
        if group.epoch > member.epoch or member.state is MemberState.UNREVOKED or gets_more:
            self._tell_to_join(group, member, now_ms)
        if group.seen_topics != self._groups.topics.version and self._groups.topics_differ(group, now_ms):
            # Its own client looks after new partitions only as a leader, and here it never is one.
            self._tell_to_join(group, member, now_ms)
        return Outcome({"error_code": ErrorCode.NONE})

    def _tell_to_join(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        self._expect(group.group_id, member, "consumer join", now_ms)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group has changed: join again.")

    def _known(self, group: ConsumerGroup, request: Message) -> tuple[Member, ClassicSide]:
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
    ) -> Outcome[list[Answer]]:
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
        return writes.outcome(rows)


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


def _told(before: Member, request: Message, subscription: Message, client: Client, version: int) -> Member:
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
        classic=ClassicSide(request.session_timeout_ms, protocols),
    )
