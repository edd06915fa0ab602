"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and DescribeGroups, for the classic groups of a shard.

`Joins` serves JoinGroup: new members, members that join again, static members that return. `Rebalance` has the steps
between requests: sessions, the joining phase, the assignment phase, and their timeouts. `ClassicGroups` has the other
requests and the records.

Nothing is durable before the leader's assignment. A generation without an assignment may be lost.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from millstream.node.coordination.core.state_machine import CoordinatorResult, DeferredResponse, Writes
from millstream.node.groups.core.classic.group import ClassicGroup, Client, GroupState, Member, Protocol, ResponseFields
from millstream.node.groups.core.consumer.group import ConsumerGroup
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.groups.core.records import RecordType, read_key, read_value
from millstream.node.groups.core.streams.group import StreamsGroup

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer


NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""The limit for a first JoinGroup: its client may have given up and joined again as another member."""


class Rebalance:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self._timers = shard.timers

    # Sessions

    def extend_session(self, group: ClassicGroup, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """Extends the member's session. Usually this only notes the time: a timer that runs too early sets itself
        again."""
        member.expires_at_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_at_ms is None or member.timer_at_ms > member.expires_at_ms:
            self._set_session_timer(group, member)

    def _set_session_timer(self, group: ClassicGroup, member: Member) -> None:
        member.timer_at_ms = member.expires_at_ms
        key = ("classic session", group.group_id, member.id)
        self._timers.set(key, member.expires_at_ms, lambda now_ms: self._session_expired(group, member, now_ms))

    def _session_expired(self, group: ClassicGroup, member: Member, now_ms: int) -> CoordinatorResult[None] | None:
        member.timer_at_ms = None
        if group.members.get(member.id) is not member or member.cannot_expire:
            return None
        if member.expires_at_ms > now_ms:
            self._set_session_timer(group, member)
            return None
        writes = Writes()
        self.remove(group, member.id)
        self.after_removal(group, writes, now_ms)
        return writes.result(None)

    def add_pending(self, group: ClassicGroup, member_id: str, timeout_ms: int, now_ms: int) -> None:
        """A member id was given out. JoinGroup must use it before the timeout."""
        group.pending.add(member_id)
        key = ("classic pending", group.group_id, member_id)
        self._timers.set(key, now_ms + timeout_ms, lambda at_ms: self._pending_expired(group, member_id, at_ms))

    def _pending_expired(self, group: ClassicGroup, member_id: str, now_ms: int) -> CoordinatorResult[None] | None:
        if member_id not in group.pending:
            return None
        writes = Writes()
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_joined(group, writes, now_ms)
        elif group.is_simple and group.group_id not in self._shard.offsets.by_group:
            self._shard.groups.pop(group.group_id, None)  # no member joined, and nothing was written
        return writes.result(None)

    def remove(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(("classic session", group.group_id, member_id))
        self._timers.cancel(("classic pending", group.group_id, member_id))
        group.remove(member_id)

    def after_removal(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, writes, now_ms)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_joined(group, writes, now_ms)

    # The joining phase

    def prepare_or_complete(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        if group.can_rebalance:
            self.prepare(group, writes, now_ms)
        else:
            self.complete_join_if_all_joined(group, writes, now_ms)

    def prepare(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        """Starts a rebalance: all members must join again. Waiting SyncGroups get REBALANCE_IN_PROGRESS."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                if member.respond_to_sync({"error_code": ErrorCode.REBALANCE_IN_PROGRESS}):
                    self.extend_session(group, member, now_ms)
        self._timers.cancel(("classic sync", group.group_id))
        is_first = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, now_ms)
        if is_first:
            delay_ms = self._shard.config()[settings.GROUP_INITIAL_REBALANCE_DELAY_MS]
            group.has_new_members = False
            self._wait_for_more(group, delay_ms, max(0, group.rebalance_timeout_ms - delay_ms), now_ms)
        elif group.all_have_joined:
            self.complete_join(group, writes, now_ms)
        else:
            self._set_join_timer(group, now_ms)

    def _wait_for_more(self, group: ClassicGroup, delay_ms: int, left_ms: int, now_ms: int) -> None:
        """A new group waits for more members, and waits again if some joined."""

        def expired(at_ms: int) -> CoordinatorResult[None] | None:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return None
            if group.has_new_members and left_ms > 0:
                group.has_new_members = False
                next_delay_ms = min(delay_ms, left_ms)
                self._wait_for_more(group, next_delay_ms, left_ms - next_delay_ms, at_ms)
                return None
            writes = Writes()
            self.complete_join(group, writes, at_ms)
            return writes.result(None)

        self._timers.set(("classic join", group.group_id), now_ms + delay_ms, expired)

    def _set_join_timer(self, group: ClassicGroup, now_ms: int) -> None:
        def expired(at_ms: int) -> CoordinatorResult[None] | None:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return None
            writes = Writes()
            self.complete_join(group, writes, at_ms)
            return writes.result(None)

        self._timers.set(("classic join", group.group_id), now_ms + group.rebalance_timeout_ms, expired)

    def complete_join_if_all_joined(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        # The first rebalance of a group has its own delay, also when all known members have joined.
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_have_joined
        ):
            self.complete_join(group, writes, now_ms)

    def complete_join(self, group: ClassicGroup, writes: Writes, now_ms: int) -> None:
        """Ends the joining phase. Members that have not joined are removed, except static ones; the others start a
        generation."""
        self._timers.cancel(("classic join", group.group_id))
        for member in list(group.members.values()):
            if not member.is_joining and not member.is_static:
                self.remove(group, member.id)
        if group.members and not group.elect_leader_among_joined():
            self._set_join_timer(group, now_ms)  # only static members, none has joined: their sessions decide
            return
        group.begin_generation(now_ms)
        if group.state is GroupState.EMPTY:
            writes.add(group.metadata_record({}))
            return
        self._set_sync_timer(group, now_ms)
        for member in group.members.values():
            group.not_synced.add(member.id)
            was_joining = member.is_joining
            member.respond_to_join(group.join_response(member))
            member.is_new = False
            if was_joining:
                self.extend_session(group, member, now_ms)

    # The assignment phase

    def _set_sync_timer(self, group: ClassicGroup, now_ms: int) -> None:
        generation = group.generation

        def expired(at_ms: int) -> CoordinatorResult[None] | None:
            waits = group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
            if group.generation != generation or not waits or not group.not_synced:
                return None
            for member_id in sorted(group.not_synced):
                self.remove(group, member_id)
            writes = Writes()
            self.prepare(group, writes, at_ms)
            return writes.result(None)

        self._timers.set(("classic sync", group.group_id), now_ms + group.rebalance_timeout_ms, expired)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        group.not_synced.discard(member_id)
        if not group.not_synced:
            self._timers.cancel(("classic sync", group.group_id))

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int) -> None:
        group.move_to(GroupState.STABLE, now_ms)
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.respond_to_sync(group.sync_response(member)):
                self.extend_session(group, member, now_ms)

    def fail_assignment(self, group: ClassicGroup, code: ErrorCode, now_ms: int) -> None:
        """The assignment could not be written: all members get the error, and the group rebalances."""
        for member in group.members.values():
            member.assignment = b""
            if member.respond_to_sync({"error_code": code}):
                self.extend_session(group, member, now_ms)
        self.prepare(group, Writes(), now_ms)


_FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9
_MAX_NAME_LENGTH_IN_ID = 249


class Joins:
    def __init__(self, shard: "GroupShard", rebalance: Rebalance) -> None:
        self._shard = shard
        self._rebalance = rebalance

    def join(
        self, request: JoinGroupRequest, client: Client, version: int, now_ms: int
    ) -> CoordinatorResult[ResponseFields]:
        """Responds when the joining phase ends; KafkaError if the request is refused."""
        config = self._shard.config()
        shortest, longest = config[settings.GROUP_MIN_SESSION_TIMEOUT_MS], config[settings.GROUP_MAX_SESSION_TIMEOUT_MS]
        if not shortest <= request.session_timeout_ms <= longest:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT, f"session.timeout.ms must be from {shortest} to {longest}."
            )
        _check_lengths(request)
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup) and not known.is_empty:
            return self._shard.consumer.classic.join(known, request, client, version, now_ms)
        writes = Writes()
        group = self._group_to_join(request, writes, now_ms)
        if not self._has_room_for(group, request.member_id):
            self._rebalance.remove(group, request.member_id)
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"Group {group.group_id} is full.")
        if not group.supports(request.protocol_type, (protocol.name for protocol in request.protocols)):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Group {group.group_id} is of type {group.protocol_type!r}, and its members share no protocol with "
                "this one.",
            )
        joining = _Joining(request, client, version, now_ms, writes)
        response = self._join_new(group, joining) if not request.member_id else self._join_known(group, joining)
        return writes.result(response)

    def _group_to_join(self, request: JoinGroupRequest, writes: Writes, now_ms: int) -> ClassicGroup:
        group = self._shard.groups.get(request.group_id)
        if group is None or (isinstance(group, ConsumerGroup | StreamsGroup) and group.is_empty):
            empty = group
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {request.group_id} is not known.")
            group = ClassicGroup(request.group_id, now_ms)
            if request.protocol_type and request.protocols:  # otherwise the request is refused, and no group is created
                self._shard.groups[request.group_id] = group
                writes.extend(empty.deletion_records() if empty is not None else ())
        if not isinstance(group, ClassicGroup):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Group {request.group_id} is a {group.type} group."
            )
        return group

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._shard.config()[settings.GROUP_MAX_SIZE]
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Members that have joined count: in a group that is too large, the last ones are refused.
            joined = sum(each.is_joining for each in group.members.values())
            return (member is not None and member.is_joining) or joined < limit
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _join_new(
        self, group: ClassicGroup, joining: "_Joining"
    ) -> "ResponseFields | DeferredResponse[ResponseFields]":
        instance_id = joining.request.group_instance_id
        name = (instance_id or joining.client.client_id)[:_MAX_NAME_LENGTH_IN_ID]
        new_id = f"{name}-{_random_uuid(self._shard.randomness.getrandbits)}"
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is not None:
                return self._return_static(group, known, new_id, joining)
        elif joining.version >= _FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
            self._rebalance.add_pending(group, new_id, joining.request.session_timeout_ms, joining.now_ms)
            return {"error_code": ErrorCode.MEMBER_ID_REQUIRED, "member_id": new_id}
        return self._add(group, new_id, joining)

    def _add(self, group: ClassicGroup, member_id: str, joining: "_Joining") -> DeferredResponse[ResponseFields]:
        request, now_ms = joining.request, joining.now_ms
        member = Member(
            member_id,
            request.group_instance_id,
            joining.client,
            joining.rebalance_timeout_ms,
            request.session_timeout_ms,
            joining.protocols,
            is_new=True,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.has_new_members = True
        deferred: DeferredResponse[ResponseFields] = DeferredResponse()
        self._shard.timers.cancel(("classic pending", group.group_id, member_id))
        group.add(member, deferred, request.protocol_type)
        self._rebalance.extend_session(group, member, now_ms, NEW_MEMBER_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(group, joining.writes, now_ms)
        return deferred

    def _join_known(
        self, group: ClassicGroup, joining: "_Joining"
    ) -> "ResponseFields | DeferredResponse[ResponseFields]":
        request, member_id = joining.request, joining.request.member_id
        if member_id in group.pending:
            if request.group_instance_id is not None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "This member id was not given to a static member.")
            return self._add(group, member_id, joining)
        group.check_member(member_id, request.group_instance_id)
        member = group.members[member_id]
        unchanged = member.protocols == joining.protocols
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            return group.join_response(member)  # it did not get the response, and sent the request again
        if group.state is GroupState.STABLE and unchanged and group.leader != member_id:
            return group.join_response(member)
        return self._rejoin(group, member, joining)

    def _rejoin(self, group: ClassicGroup, member: Member, joining: "_Joining") -> DeferredResponse[ResponseFields]:
        deferred = _update(member, joining)
        self._rebalance.prepare_or_complete(group, joining.writes, joining.now_ms)
        return deferred

    def _return_static(
        self, group: ClassicGroup, old_id: str, new_id: str, joining: "_Joining"
    ) -> "ResponseFields | DeferredResponse[ResponseFields]":
        """A static member returns: it keeps its assignment, and the group does not rebalance."""
        writes, now_ms = joining.writes, joining.now_ms
        leader_before = group.leader
        instance_id = joining.request.group_instance_id
        assert instance_id is not None, "a static member has an instance id"
        member = group.replace_static(instance_id, old_id, new_id)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        deferred = _update(member, joining)
        member.timer_at_ms = None
        self._rebalance.extend_session(group, member, now_ms)
        if group.state is not GroupState.STABLE or group.elect_protocol() != group.protocol:
            self._rebalance.prepare_or_complete(group, writes, now_ms)
            return deferred
        member.joining = None
        group.update_topics()

        def committed(error: KafkaError | None) -> None:
            if error is not None:
                member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                group.replace_static(instance_id, new_id, old_id)
                deferred.resolve({"error_code": error.code, "member_id": ""})
                return
            response = group.join_response(member)
            if joining.version >= _FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
                response["skip_assignment"] = group.leader == member.id
            else:
                # With its old id as the leader's, it does not assign partitions as a leader would.
                response |= {"leader": leader_before or "", "members": []}
            deferred.resolve(response)

        writes.add(group.metadata_record({each.id: each.assignment for each in group.members.values()}), then=committed)
        return deferred


class _Joining:
    """The fields of one JoinGroup."""

    def __init__(self, request: JoinGroupRequest, client: Client, version: int, now_ms: int, writes: Writes) -> None:
        self.request = request
        self.client = client
        self.version = version
        self.now_ms = now_ms
        self.writes = writes
        self.protocols = tuple(Protocol(each.name, each.metadata) for each in request.protocols)
        # Version 0 has no rebalance timeout; the session timeout is used for both.
        given_ms = request.rebalance_timeout_ms
        self.rebalance_timeout_ms = given_ms if version > 0 else request.session_timeout_ms


def _update(member: Member, joining: _Joining) -> DeferredResponse[ResponseFields]:
    """The member joins again, perhaps with other protocols. Its earlier JoinGroup gets REBALANCE_IN_PROGRESS."""
    member.respond_to_join({"error_code": ErrorCode.REBALANCE_IN_PROGRESS, "member_id": member.id})
    member.protocols = joining.protocols
    member.rebalance_timeout_ms = joining.rebalance_timeout_ms
    member.session_timeout_ms = joining.request.session_timeout_ms
    deferred: DeferredResponse[ResponseFields] = DeferredResponse()
    member.joining = deferred
    return deferred


def _check_lengths(request: JoinGroupRequest) -> None:
    """Refuses texts that are too long for the group's record, before the leader's SyncGroup fails because of them."""
    for text in (request.group_instance_id or "", request.protocol_type, *(each.name for each in request.protocols)):
        if len(text) > MAX_TEXT_LENGTH:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"A name of {len(text)} characters is too long.")


def _random_uuid(getrandbits: Callable[[int], int]) -> UUID:
    return UUID(int=getrandbits(128), version=4)


_FIRST_DESCRIBE_WITH_NOT_FOUND = 6


class ClassicGroups:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self._rebalance = Rebalance(shard)
        self._joins = Joins(shard, self._rebalance)

    # Records

    def replayers(self) -> "Mapping[int, Replayer]":
        return {RecordType.GROUP_METADATA: self._replay}

    def _replay(self, key: bytes, value: bytes | None) -> None:
        group_id = read_key(key).group
        known = self._shard.groups.get(group_id)
        if value is None:
            if isinstance(known, ClassicGroup):
                self._forget(known)
            return
        # While the shard is live, the group in memory is ahead of its record.
        if not self._shard.live or not isinstance(known, ClassicGroup):
            self._shard.groups[group_id] = ClassicGroup.from_record(
                group_id, read_value(RecordType.GROUP_METADATA, value)
            )

    def _forget(self, group: ClassicGroup) -> None:
        # The group has become one of another type: waiting clients send their requests again, and find that type.
        again: ResponseFields = {"error_code": ErrorCode.REBALANCE_IN_PROGRESS}
        for member in group.members.values():
            member.respond_to_join({**again, "member_id": member.id})
            member.respond_to_sync(again)
        for member_id in (*group.members, *sorted(group.pending)):
            self._rebalance.remove(group, member_id)
        group.state = GroupState.DEAD
        del self._shard.groups[group.group_id]

    def loaded(self, now_ms: int) -> None:
        limit = self._shard.config()[settings.GROUP_MAX_SIZE]
        for group in self._shard.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    self._rebalance.extend_session(group, member, now_ms)
                if len(group.members) > limit:
                    self._rebalance.prepare(group, Writes(), now_ms)

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        return  # the members follow their topics themselves

    def add_simple_group(self, group_id: str) -> None:
        """Adds a group that only has offsets."""
        self._shard.groups[group_id] = ClassicGroup(group_id)

    def adopt(self, group: ClassicGroup, now_ms: int) -> None:
        """A consumer group has become this classic group: its members must join it."""
        for member in group.members.values():
            self._rebalance.extend_session(group, member, now_ms)
        self._rebalance.prepare(group, Writes(), now_ms)

    def join(
        self, request: JoinGroupRequest, client: Client, version: int, now_ms: int
    ) -> CoordinatorResult[ResponseFields]:
        """JoinGroup; see `Joins`."""
        return self._joins.join(request, client, version, now_ms)

    # SyncGroup

    def sync(self, request: SyncGroupRequest, now_ms: int) -> CoordinatorResult[ResponseFields]:
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self._shard.consumer.classic.sync(known, request, now_ms)
        group = self._known_group(request.group_id)
        group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
        for requested, actual in ((request.protocol_type, group.kind), (request.protocol_name, group.protocol)):
            if requested is not None and requested != actual:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The group uses {actual!r}, not {requested!r}."
                )
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group is rebalancing: join again.")
        member = group.members[request.member_id]
        self._rebalance.has_synced(group, member.id)
        if group.state is GroupState.STABLE:
            self._rebalance.extend_session(group, member, now_ms)
            return CoordinatorResult(group.sync_response(member))
        deferred: DeferredResponse[ResponseFields] = DeferredResponse()
        member.respond_to_sync({"error_code": ErrorCode.REBALANCE_IN_PROGRESS})  # an earlier one
        member.syncing = deferred
        if group.leader != member.id:
            return CoordinatorResult(deferred)
        given = {row.member_id: row.assignment for row in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation

        def committed(error: KafkaError | None) -> None:
            # Members may have joined or left since, and the generation may have ended.
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            if error is None:
                self._rebalance.assign(group, assignments, now_ms)
            else:
                self._rebalance.fail_assignment(group, error.code, now_ms)

        return CoordinatorResult(deferred, [group.metadata_record(assignments)], committed)

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> CoordinatorResult[ResponseFields]:
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self._shard.consumer.classic.heartbeat(known, request, now_ms)
        group = self._known_group(request.group_id)
        group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
        self._rebalance.extend_session(group, group.members[request.member_id], now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group is rebalancing: join again.")
        return CoordinatorResult({"error_code": ErrorCode.NONE})

    def leave(
        self, group_id: str, leaving: Collection[tuple[str, str | None]], now_ms: int
    ) -> CoordinatorResult[list[ResponseFields]]:
        """Members by id and instance id. An empty id with an instance id: an admin removes a static member."""
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._shard.consumer.classic.leave(group, leaving, now_ms)
        if not isinstance(group, ClassicGroup):
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return CoordinatorResult(
                [{"member_id": m, "group_instance_id": i, "error_code": unknown} for m, i in leaving]
            )
        writes = Writes()
        rows = []
        has_removed = False
        for member_id, instance_id in leaving:
            code = ErrorCode.NONE
            try:
                has_removed |= self._leave(group, member_id, instance_id)
            except KafkaError as error:
                code = error.code
            rows.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        if has_removed:
            self._rebalance.after_removal(group, writes, now_ms)
        return writes.result(rows)

    def _leave(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> bool:
        if not member_id:
            if instance_id is None or instance_id not in group.static_members:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"No member has the instance id {instance_id}.")
            member_id = group.static_members[instance_id]
        elif member_id not in group.pending:
            group.check_member(member_id, instance_id)
        self._rebalance.remove(group, member_id)
        return True

    def _known_group(self, group_id: str) -> ClassicGroup:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"There is no classic group {group_id!r}.")
        return group

    # DescribeGroups

    def describe(self, group_id: str, version: int) -> dict[str, Any]:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            row: dict[str, Any] = {"group_id": group_id, "group_state": GroupState.DEAD}
            if version >= _FIRST_DESCRIBE_WITH_NOT_FOUND:
                what = "not found" if group is None else "not a classic group"
                row["error_code"] = ErrorCode.GROUP_ID_NOT_FOUND
                row["error_message"] = f"Group {group_id} is {what}." if group else f"Group {group_id} {what}."
            return row
        return group.describe()
