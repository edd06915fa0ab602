"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and DescribeGroups, for the classic groups of a shard."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.outcome import Outcome, Reply
from millstream.node.coordination.core.writes import Writes
from millstream.node.groups.core.classic.classic_group import ClassicGroup
from millstream.node.groups.core.classic.group_state import GroupState
from millstream.node.groups.core.classic.joining import Joins
from millstream.node.groups.core.classic.member import Answer, Client, Member, Protocol
from millstream.node.groups.core.classic.rebalance import Rebalance, synced_answer
from millstream.node.groups.core.consumer.consumer_group import ConsumerGroup
from millstream.node.groups.core.group_records import RecordType, read_key, read_value

if TYPE_CHECKING:
    from millstream.node.groups.core.group_shard import GroupShard, Replayer

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
