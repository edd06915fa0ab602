"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and DescribeGroups, for the classic groups of a shard.

JoinGroup: who may become a member, who must begin again, and who comes back to an old place.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.operations import Outcome, Reply, Writes
from millstream.node.groups.core.classic.group import Answer, ClassicGroup, Client, GroupState, Member, Protocol
from millstream.node.groups.core.classic.rebalance import NEW_MEMBER_TIMEOUT_MS, Rebalance, joined_answer, synced_answer
from millstream.node.groups.core.consumer.group import ConsumerGroup
from millstream.node.groups.core.group import LONGEST_TEXT
from millstream.node.groups.core.records import RecordType, read_key, read_value

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer


_FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
_FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9
_LONGEST_NAME_IN_AN_ID = 249


class Joins:
    def __init__(self, shard: "GroupShard", rebalance: Rebalance) -> None:
        self._shard = shard
        self._rebalance = rebalance

    def join(self, request: Message, client: Client, version: int, now_ms: int) -> Outcome[Answer]:
        """Answers when the joining phase is over; KafkaError where there is nothing to wait for."""
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
        answer = self._join_new(group, joining) if not request.member_id else self._join_known(group, joining)
        return writes.outcome(answer)

    def _group_to_join(self, request: Message, writes: Writes, now_ms: int) -> ClassicGroup:
        group = self._shard.groups.get(request.group_id)
        if group is None or isinstance(group, ConsumerGroup):
            empty = group
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {request.group_id} is not known.")
            group = ClassicGroup(request.group_id, now_ms)
            if request.protocol_type and request.protocols:  # else it is refused, and leaves nothing behind
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
            # Counted are those who have joined: in a group that is too large, the last to come are put out.
            joined = sum(each.is_joining for each in group.members.values())
            return (member is not None and member.is_joining) or joined < limit
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _join_new(self, group: ClassicGroup, joining: "_Joining") -> "Answer | Reply[Answer]":
        instance_id = joining.request.group_instance_id
        name = (instance_id or joining.client.client_id)[:_LONGEST_NAME_IN_AN_ID]
        new_id = f"{name}-{_random_uuid(self._shard.randomness.getrandbits)}"
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is not None:
                return self._return_static(group, known, new_id, joining)
        elif joining.version >= _FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
            self._rebalance.expect(group, new_id, joining.request.session_timeout_ms, joining.now_ms)
            return {"error_code": ErrorCode.MEMBER_ID_REQUIRED, "member_id": new_id}
        return self._add(group, new_id, joining)

    def _add(self, group: ClassicGroup, member_id: str, joining: "_Joining") -> Reply[Answer]:
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
            group.someone_joined = True
        reply: Reply[Answer] = Reply()
        self._shard.timers.cancel(("classic pending", group.group_id, member_id))
        group.add(member, reply, request.protocol_type)
        self._rebalance.extend_session(group, member, now_ms, NEW_MEMBER_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(group, joining.writes, now_ms)
        return reply

    def _join_known(self, group: ClassicGroup, joining: "_Joining") -> "Answer | Reply[Answer]":
        request, member_id = joining.request, joining.request.member_id
        if member_id in group.pending:
            if request.group_instance_id is not None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "This member id was not given to a static member.")
            return self._add(group, member_id, joining)
        group.check_member(member_id, request.group_instance_id)
        member = group.members[member_id]
        unchanged = member.protocols == joining.protocols
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            return joined_answer(group, member)  # it did not get the answer, so it asks again
        if group.state is GroupState.STABLE and unchanged and group.leader != member_id:
            return joined_answer(group, member)
        return self._rejoin(group, member, joining)

    def _rejoin(self, group: ClassicGroup, member: Member, joining: "_Joining") -> Reply[Answer]:
        reply = _update(member, joining)
        self._rebalance.prepare_or_complete(group, joining.writes, joining.now_ms)
        return reply

    def _return_static(
        self, group: ClassicGroup, old_id: str, new_id: str, joining: "_Joining"
    ) -> "Answer | Reply[Answer]":
        """A static member came back: it takes its old place, and nobody else needs to move."""
        writes, now_ms = joining.writes, joining.now_ms
        leader_before = group.leader
        member = group.replace_static(joining.request.group_instance_id, old_id, new_id)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        reply = _update(member, joining)
        member.alarm_at_ms = None
        self._rebalance.extend_session(group, member, now_ms)
        if group.state is not GroupState.STABLE or group.elect_protocol() != group.protocol:
            self._rebalance.prepare_or_complete(group, writes, now_ms)
            return reply
        member.joining = None
        group.learn_topics()

        def committed(error: KafkaError | None) -> None:
            if error is not None:
                member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                group.replace_static(joining.request.group_instance_id, new_id, old_id)
                reply.resolve({"error_code": error.code, "member_id": ""})
                return
            answer = joined_answer(group, member)
            if joining.version >= _FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
                answer["skip_assignment"] = group.leader == member.id
            else:
                # Told its old id as the leader's, it does not take itself for the leader and assigns nothing.
                answer |= {"leader": leader_before or "", "members": []}
            reply.resolve(answer)

        writes.add(group.metadata_record({each.id: each.assignment for each in group.members.values()}), then=committed)
        return reply


class _Joining:
    """A JoinGroup on its way."""

    def __init__(self, request: Message, client: Client, version: int, now_ms: int, writes: Writes) -> None:
        self.request = request
        self.client = client
        self.version = version
        self.now_ms = now_ms
        self.writes = writes
        self.protocols = tuple(Protocol(each.name, each.metadata) for each in request.protocols)
        # Version 0 has no rebalance time-out; the session time-out served as both.
        given_ms = request.rebalance_timeout_ms
        self.rebalance_timeout_ms = given_ms if version > 0 else request.session_timeout_ms


def _update(member: Member, joining: _Joining) -> Reply[Answer]:
    """The member joins again, perhaps with other abilities; an older request of its own is over."""
    member.answer_join({"error_code": ErrorCode.REBALANCE_IN_PROGRESS, "member_id": member.id})
    member.protocols = joining.protocols
    member.rebalance_timeout_ms = joining.rebalance_timeout_ms
    member.session_timeout_ms = joining.request.session_timeout_ms
    reply: Reply[Answer] = Reply()
    member.joining = reply
    return reply


def _check_lengths(request: Message) -> None:
    """What is too long for the group's record would otherwise be found out by its leader, in its SyncGroup."""
    for text in (request.group_instance_id or "", request.protocol_type, *(each.name for each in request.protocols)):
        if len(text) > LONGEST_TEXT:
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
        # While we live, the group in memory is ahead of its record: it took the step that the record tells of.
        if not self._shard.live or not isinstance(known, ClassicGroup):
            self._shard.groups[group_id] = _restored(group_id, read_value(RecordType.GROUP_METADATA, value))

    def _forget(self, group: ClassicGroup) -> None:
        # A group that goes with its members has become one of another kind: whoever waits comes again and finds that.
        again: Answer = {"error_code": ErrorCode.REBALANCE_IN_PROGRESS}
        for member in group.members.values():
            member.answer_join({**again, "member_id": member.id})
            member.answer_sync(again)
        for member_id in (*group.members, *group.pending):
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
        return  # the members look after their topics themselves

    def add_simple_group(self, group_id: str) -> None:
        """A group that is known from its offsets alone."""
        self._shard.groups[group_id] = ClassicGroup(group_id)

    def adopt(self, group: ClassicGroup, now_ms: int) -> None:
        """A consumer group has become this classic one: its members are to join it."""
        for member in group.members.values():
            self._rebalance.extend_session(group, member, now_ms)
        self._rebalance.prepare(group, Writes(), now_ms)

    def join(self, request: Message, client: Client, version: int, now_ms: int) -> Outcome[Answer]:
        """JoinGroup; see `joining`."""
        return self._joins.join(request, client, version, now_ms)

    # SyncGroup

    def sync(self, request: Message, now_ms: int) -> Outcome[Answer]:
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self._shard.consumer.classic.sync(known, request, now_ms)
        group = self._known_group(request.group_id)
        group.check_member(request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        for asked, actual in ((request.protocol_type, group.kind), (request.protocol_name, group.protocol)):
            if asked is not None and asked != actual:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The group uses {actual!r}, not {asked!r}.")
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group is rebalancing: join again.")
        member = group.members[request.member_id]
        self._rebalance.has_synced(group, member.id)
        if group.state is GroupState.STABLE:
            self._rebalance.extend_session(group, member, now_ms)
            return Outcome(synced_answer(group, member))
        reply: Reply[Answer] = Reply()
        member.answer_sync({"error_code": ErrorCode.REBALANCE_IN_PROGRESS})  # the same member, asking twice
        member.syncing = reply
        if group.leader != member.id:
            return Outcome(reply)
        given = {row.member_id: row.assignment for row in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation

        def committed(error: KafkaError | None) -> None:
            # Meanwhile somebody may have joined or left, and all this be over.
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            if error is None:
                self._rebalance.give_assignments(group, assignments, now_ms)
            else:
                self._rebalance.refuse_assignments(group, error.code, now_ms)

        return Outcome(reply, [group.metadata_record(assignments)], committed)

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: Message, now_ms: int) -> Outcome[Answer]:
        known = self._shard.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self._shard.consumer.classic.heartbeat(known, request, now_ms)
        group = self._known_group(request.group_id)
        group.check_member(request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        self._rebalance.extend_session(group, group.members[request.member_id], now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group is rebalancing: join again.")
        return Outcome({"error_code": ErrorCode.NONE})

    def leave(self, group_id: str, leaving: Collection[tuple[str, str | None]], now_ms: int) -> Outcome[list[Answer]]:
        """Members by id and instance id; an empty id with an instance id is an admin who removes a static member."""
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._shard.consumer.classic.leave(group, leaving, now_ms)
        if not isinstance(group, ClassicGroup):
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return Outcome([{"member_id": m, "group_instance_id": i, "error_code": unknown} for m, i in leaving])
        writes = Writes()
        rows = []
        somebody_left = False
        for member_id, instance_id in leaving:
            code = ErrorCode.NONE
            try:
                somebody_left |= self._leave(group, member_id, instance_id)
            except KafkaError as error:
                code = error.code
            rows.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        if somebody_left:
            self._rebalance.after_removal(group, writes, now_ms)
        return writes.outcome(rows)

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
        is_stable = group.state is GroupState.STABLE
        return {
            "group_id": group_id,
            "group_state": group.state,
            "protocol_type": group.protocol_type,
            "protocol_data": (group.protocol or "") if is_stable else "",
            "members": [
                {
                    "member_id": member.id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client.client_id,
                    "client_host": member.client.host,
                    "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                    "member_assignment": member.assignment if is_stable else b"",
                }
                for member in group.members.values()
            ],
        }


def _check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION, f"The group is in generation {group.generation}, not {generation}."
        )


def _restored(group_id: str, value: Message) -> ClassicGroup:
    """The group as its record tells."""
    since_ms = value.current_state_timestamp
    group = ClassicGroup(group_id, None if since_ms < 0 else since_ms)
    for row in value.members:
        timeout_ms = row.rebalance_timeout or row.session_timeout
        protocols = (Protocol(value.protocol or "", row.subscription),)
        client = Client(row.client_id, row.client_host)
        member = Member(
            row.member_id, row.group_instance_id, client, timeout_ms, row.session_timeout, protocols, row.assignment
        )
        group.add(member, None, value.protocol_type)
    group.kind = value.protocol_type or None
    group.generation = value.generation
    group.protocol = value.protocol
    group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.learn_topics()
    return group
