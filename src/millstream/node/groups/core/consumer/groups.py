"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, for the consumer groups of a shard; sessions of members.

The functions at the top check a heartbeat request independently of the group's state.
"""

import base64
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import ConsumerGroupHeartbeatRequest
from millstream.node.coordination.core.expression import TopicPatterns
from millstream.node.coordination.core.state_machine import CoordinatorResult, TopicCatalog, Writes
from millstream.node.groups.core.classic.group import ClassicGroup, Client
from millstream.node.groups.core.consumer.classic_members import ClassicMembers, Migration
from millstream.node.groups.core.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerSettings,
    Member,
    MemberState,
    assignment_record,
    moved_to_id,
    target_rows,
)
from millstream.node.groups.core.consumer.rebalance import GroupChange
from millstream.node.groups.core.consumer.replay import ConsumerReplay
from millstream.node.groups.core.group import MAX_TEXT_LENGTH

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer


_FIRST_VERSION_WITH_MEMBER_ID_OF_CLIENT = 1


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """KafkaError for a request that is invalid in any state of the group."""
    epoch = request.member_epoch
    if version >= _FIRST_VERSION_WITH_MEMBER_ID_OF_CLIENT or epoch > 0 or epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        _refuse_if(not request.member_id.strip(), "MemberId can't be empty.")
    _refuse_if(not request.group_id.strip(), "GroupId can't be empty.")
    _refuse_if(request.instance_id is not None and not request.instance_id.strip(), "InstanceId can't be empty.")
    _refuse_if(request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty.")
    for text in (request.member_id, request.instance_id, request.rack_id, request.subscribed_topic_regex):
        _refuse_if(text is not None and len(text) > MAX_TEXT_LENGTH, "A name or an expression is too long.")
    if epoch == LEAVE_STATIC_EPOCH:
        _refuse_if(request.instance_id is None, "InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        _refuse_if(True, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    elif epoch == JOIN_EPOCH:
        _refuse_if(request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        _refuse_if(
            request.topic_partitions is None or bool(request.topic_partitions),
            "TopicPartitions must be empty when (re-)joining.",
        )
        _refuse_if(
            request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> dict[UUID, set[int]] | None:
    """The partitions that the member reports; None if it reports none."""
    if request.topic_partitions is None:
        return None
    owned: dict[UUID, set[int]] = {}
    for row in request.topic_partitions:
        owned.setdefault(row.topic_id, set()).update(row.partitions)
    return {topic_id: numbers for topic_id, numbers in owned.items() if numbers}


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all fields: the member has just joined, or missed a response."""
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and has_subscription and request.topic_partitions is not None


def check_member_epoch(member: Member, epoch: int, owned: dict[UUID, set[int]] | None) -> None:
    """FENCED_MEMBER_EPOCH unless the member has its current epoch, or missed only the last response."""
    if epoch in (member.epoch, JOIN_EPOCH):
        return
    if epoch == member.previous_epoch and epoch < member.epoch and owned is not None:
        within = all(numbers <= member.assigned.get(topic_id, {}).keys() for topic_id, numbers in owned.items())
        if within:
            return
    relation = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


ResponseFields = dict[str, Any]
_WAITING_HEARTBEAT_MS = 1000
"""The heartbeat interval of a member that waits for partitions, because other members may revoke them at any time."""


class ConsumerGroups:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self._replay = ConsumerReplay(shard)
        self.settings = ConsumerSettings(shard)
        self.patterns = TopicPatterns()
        self.migration = Migration(shard, self.settings)
        self.classic = ClassicMembers(self, shard.timers)
        self.checks_rights = False
        """Whether there is an authorizer: a regular expression matches only topics that the member may describe."""
        self.may_describe: Callable[[str], bool] | None = None
        """The rights of the member whose heartbeat is handled now."""

    # For changes of groups

    @property
    def topics(self) -> TopicCatalog:
        return self._shard.topics

    @property
    def default_assignor(self) -> str:
        return self.settings.assignors[0]

    def assignment_interval_ms(self, group_id: str) -> int:
        return self.settings.assignment_interval_ms(group_id)

    # Records

    def replayers(self) -> "Mapping[int, Replayer]":
        return self._replay.replayers()

    def learn_patterns(self) -> None:
        """Matches the topics with the expressions of all groups, before requests arrive."""
        for group in self._shard.groups.values():
            for text in group.patterns if isinstance(group, ConsumerGroup) else ():
                with suppress(KafkaError):  # written with a higher limit; its members get the error
                    pattern = self.patterns.get(text)
                    pattern.learn(pattern.unknown(self.topics))

    def loaded(self, now_ms: int) -> None:
        for group in self._shard.groups.values():
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self.extend_session(group, member, now_ms)
                    self.watch_revocation(group, member, now_ms)

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        return  # the next heartbeat of a group compares the version of the catalog

    # ConsumerGroupHeartbeat

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, version: int, now_ms: int
    ) -> CoordinatorResult[ResponseFields]:
        check_heartbeat(request, version, self.settings.assignors)
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request, now_ms)
        writes = Writes()
        joins = request.member_epoch == JOIN_EPOCH
        group = self._group_to_join(request.group_id, writes) if joins else self.find(request.group_id)
        member_id = request.member_id or self.new_id()
        self.check_room(group, member_id, request.instance_id)
        owned = owned_partitions(request)
        change = GroupChange(group, self, writes, now_ms)
        if request.instance_id is None:
            before = self._dynamic_member(group, member_id, request.member_epoch, owned)
        else:
            before = self._static_member(change, member_id, request, owned)
        updated = _updated_member(before, request, client)
        subscription_changed = change.put(updated)
        change.refresh()
        change.assign()
        member = change.step(updated, owned, subscription_changed=subscription_changed)
        writes.add(then=lambda error: None if error else self._on_written(group, member, now_ms))
        response: ResponseFields = {
            "member_id": member.id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self._next_heartbeat_ms(change, member),
        }
        if joins or is_full(request) or member.assigned != before.assigned:
            response["assignment"] = {"topic_partitions": target_rows(member.assigned)}
        return writes.result(response)

    def _next_heartbeat_ms(self, change: GroupChange, member: Member) -> int:
        interval_ms = self.settings.heartbeat_interval_ms(change.group.group_id)
        waits = member.state is MemberState.UNRELEASED or change.epoch > change.assignment_epoch
        return min(interval_ms, _WAITING_HEARTBEAT_MS) if waits else interval_ms

    def _on_written(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        if self._shard.groups[group.group_id] is not group:
            for each in group.members.values():  # a new group, perhaps a classic one before
                self.member_active(group.group_id, each, now_ms)
        self.member_active(group.group_id, member, now_ms)

    def member_active(self, group_id: str, member: Member, now_ms: int) -> None:
        group = self.find(group_id)  # replayed records may have created it
        self.extend_session(group, member, now_ms)
        self.watch_revocation(group, member, now_ms)

    def _group_to_join(self, group_id: str, writes: Writes) -> ConsumerGroup:
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None or group.is_simple:
            return ConsumerGroup(group_id)
        if isinstance(group, ClassicGroup):
            return self.migration.upgrade(group, writes)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    def find(self, group_id: str) -> ConsumerGroup:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
        return group

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        limit = self.settings.max_size
        known = member_id in group.members or (instance_id is not None and instance_id in group.static_members)
        if len(group.members) >= limit and not known:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def new_id(self) -> str:
        """A random id, in Kafka's format."""
        return base64.urlsafe_b64encode(self._shard.randomness.randbytes(16)).rstrip(b"=").decode()

    def new_uuid(self) -> UUID:
        """For member ids in the format of classic groups."""
        return UUID(int=self._shard.randomness.getrandbits(128), version=4)

    def _dynamic_member(
        self, group: ConsumerGroup, member_id: str, epoch: int, owned: dict[UUID, set[int]] | None
    ) -> Member:
        member = group.members.get(member_id)
        if member is None:
            return Member(member_id) if epoch == JOIN_EPOCH else group.find_member(member_id)
        check_member_epoch(member, epoch, owned)
        return member

    def _static_member(
        self,
        change: GroupChange,
        member_id: str,
        request: ConsumerGroupHeartbeatRequest,
        owned: dict[UUID, set[int]] | None,
    ) -> Member:
        group, epoch = change.group, request.member_epoch
        assert request.instance_id is not None, "a static member has an instance id"
        if epoch != JOIN_EPOCH:
            member = group.find_static_member(request.instance_id, member_id)
            check_member_epoch(member, epoch, owned)
            return member
        known = group.members.get(group.static_members.get(request.instance_id, ""))
        if known is None:
            return group.members.get(member_id) or Member(member_id)
        if known.id == member_id and not known.is_away:
            return known  # it was fenced, and joins again
        if not known.is_away and known.classic is None:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the "
                f"instance id is owned by {known.id} member.",
            )
        back = moved_to_id(known, member_id)
        change.replace(known, back)
        return back

    # Leaving

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> CoordinatorResult[ResponseFields]:
        group = self.find(request.group_id)
        if request.instance_id is None:
            member = group.find_member(request.member_id)
        else:
            member = group.find_static_member(request.instance_id, request.member_id)
        response: ResponseFields = {"member_id": request.member_id, "member_epoch": request.member_epoch}
        writes = Writes()
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # Its session continues: it must return before the session ends.
            gone = member.away(LEAVE_STATIC_EPOCH)
            writes.add(assignment_record(group.group_id, gone))
        else:
            self.remove_members(group, [member], writes, now_ms)
        return writes.result(response)

    def remove_members(self, group: ConsumerGroup, members: Collection[Member], writes: Writes, now_ms: int) -> None:
        """Removes members. The others get the effects with their next heartbeats."""
        gone = {member.id for member in members}
        left = [member for member in group.members.values() if member.id not in gone]
        if self.migration.can_downgrade(left):
            self.migration.downgrade(group, left, writes, now_ms)
            return
        change = GroupChange(group, self, writes, now_ms)
        for member in members:
            change.remove(member)
        change.refresh()

    def topics_differ(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Whether the topics that the group reads have changed since its epoch started."""
        change = GroupChange(group, self, Writes(), now_ms)
        change.refresh()
        if change.epoch == group.epoch:
            group.seen_topics = self.topics.version
        return change.epoch != group.epoch

    # Sessions

    def extend_session(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """Extends the member's session. Usually this only notes the time: a timer that runs too early sets itself
        again."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self.settings.session_timeout_ms(group.group_id)
        group.sessions[member.id] = now_ms + timeout_ms
        key = ("consumer session", group.group_id, member.id)
        if key not in self._shard.timers:
            self._set_session_timer(group.group_id, member.id, now_ms + timeout_ms)

    def _set_session_timer(self, group_id: str, member_id: str, deadline_ms: int) -> None:
        key = ("consumer session", group_id, member_id)
        self._shard.timers.set(key, deadline_ms, lambda now_ms: self._session_over(group_id, member_id, now_ms))

    def _session_over(self, group_id: str, member_id: str, now_ms: int) -> CoordinatorResult[None] | None:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return None
        deadline_ms = group.sessions.get(member_id, now_ms)
        if deadline_ms > now_ms:
            self._set_session_timer(group_id, member_id, deadline_ms)
            return None
        return self.expire(group_id, member_id, now_ms)

    def watch_revocation(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """A member must revoke partitions within its rebalance timeout."""
        key = ("consumer revocation", group.group_id, member.id)
        if member.state is not MemberState.UNREVOKED or member.is_away:
            self._shard.timers.cancel(key)
            return
        if key in self._shard.timers:
            return
        group_id, member_id, epoch = group.group_id, member.id, member.epoch

        def over(at_ms: int) -> CoordinatorResult[None] | None:
            known = self._shard.groups.get(group_id)
            late = known.members.get(member_id) if isinstance(known, ConsumerGroup) else None
            if not isinstance(known, ConsumerGroup) or late is None:
                return None
            if late.state is not MemberState.UNREVOKED or late.epoch != epoch:
                return None
            return self.expire(group_id, member_id, at_ms)

        self._shard.timers.set(key, now_ms + max(0, member.rebalance_timeout_ms), over)

    def expire(self, group_id: str, member_id: str, now_ms: int) -> CoordinatorResult[None] | None:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return None
        writes = Writes()
        # A timer runs once. If the write fails, this one retries.
        group.sessions[member_id] = now_ms
        self._set_session_timer(group_id, member_id, now_ms + self.settings.session_timeout_ms(group_id))
        self.remove_members(group, [group.members[member_id]], writes, now_ms)
        return writes.result(None)

    # ConsumerGroupDescribe

    def describe(self, group_id: str) -> ResponseFields:
        """KafkaError (GROUP_ID_NOT_FOUND) if there is no such consumer group."""
        return self.find(group_id).describe(self._shard.topics, self.default_assignor)


def _updated_member(before: Member, request: ConsumerGroupHeartbeatRequest, client: Client) -> Member:
    """The member with the fields of the request; fields that the request leaves out stay."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    if (
        names is None
        and pattern is None
        and request.rebalance_timeout_ms == -1
        and request.instance_id in (None, before.instance_id)
        and request.rack_id in (None, before.rack)
        and request.server_assignor in (None, before.assignor)
        and client.client_id == before.client_id
        and client.host == before.client_host
        and before.classic is None
    ):
        return before  # most heartbeats
    return replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack=before.rack if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topics=before.topics if names is None else frozenset(names),
        pattern=before.pattern if pattern is None else (pattern or None),
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )
