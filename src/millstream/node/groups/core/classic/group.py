"""One classic group: its members, generation, states and record.

| state               | meaning                                     | may follow                         |
|---------------------|---------------------------------------------|------------------------------------|
| Empty               | no members; perhaps offsets                 | PreparingRebalance (all left)      |
| PreparingRebalance  | waiting for all members to join             | Empty, CompletingRebalance, Stable |
| CompletingRebalance | all have joined; waiting for the assignment | PreparingRebalance                 |
| Stable              | every member can have its assignment        | CompletingRebalance                |
| Dead                | deleted; only stale references still see it | any other                          |

The result of a request in each state:

| request   | Empty              | PreparingRebalance    | CompletingRebalance        | Stable                        |
|-----------|--------------------|-----------------------|----------------------------|-------------------------------|
| JoinGroup | first rebalance    | waits                 | same metadata: response;   | leader or new metadata:       |
|           |                    |                       | else new rebalance         | new rebalance; else response  |
| SyncGroup | UNKNOWN_MEMBER_ID  | REBALANCE_IN_PROGRESS | waits for the leader       | the assignment                |
| Heartbeat | UNKNOWN_MEMBER_ID  | REBALANCE_IN_PROGRESS | success                    | success                       |
| Leave     | UNKNOWN_MEMBER_ID  | one member less       | new rebalance              | new rebalance                 |
| Commit    | without generation | success               | REBALANCE_IN_PROGRESS      | success                       |

The topics of a member of type "consumer" are read from the subscription bytes of its JoinGroup.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import (
    Cursor,
    MalformedMessage,
    fixed_reader,
    read_length_int16,
    read_length_int32,
)
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.state_machine import CoordinatorRecord, DeferredResponse
from millstream.node.groups.core.group import Group, GroupType
from millstream.node.groups.core.records import RecordType, group_record


class GroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_E, _P, _C, _S, _D = GroupState

ALLOWED_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    _E: frozenset({_P}),
    _P: frozenset({_E, _C, _S}),
    _C: frozenset({_P}),
    _S: frozenset({_C}),
    _D: frozenset({_E, _P, _C, _S}),
}
"""For each state, the states that it may follow."""


ResponseFields = dict[str, Any]


class Protocol(NamedTuple):
    """An assignment protocol that a member supports, with its metadata for the leader."""

    name: str
    metadata: bytes


class Client(NamedTuple):
    """The client of a request, as in DescribeGroups."""

    client_id: str
    host: str


@dataclass(slots=True, eq=False)
class Member:
    id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """In order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """It has no response to its first JoinGroup yet. It cannot send heartbeats, so its session timeout does not apply.
    """
    joining: DeferredResponse[ResponseFields] | None = field(default=None, repr=False)
    """The waiting JoinGroup."""
    syncing: DeferredResponse[ResponseFields] | None = field(default=None, repr=False)
    """The waiting SyncGroup."""
    expires_at_ms: int = 0
    timer_at_ms: int | None = None
    """The time of the session timer; None if there is none."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_joining(self) -> bool:
        return self.joining is not None

    @property
    def cannot_expire(self) -> bool:
        """A member that waits for a response is alive."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def respond_to_join(self, response: ResponseFields) -> None:
        waiting, self.joining = self.joining, None
        if waiting is not None:
            waiting.resolve(response)

    def respond_to_sync(self, response: ResponseFields) -> bool:
        """Whether a SyncGroup was waiting."""
        waiting, self.syncing = self.syncing, None
        if waiting is not None:
            waiting.resolve(response)
        return waiting is not None


CONSUMER = "consumer"
"""The protocol type of consumers. Kafka Connect and others have their own."""

_read_version = fixed_reader("h")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members; None if one of the subscriptions cannot be read."""
    topics: set[str] = set()
    try:
        for each in metadata:
            topics.update(_topics(each))
    except MalformedMessage:
        return None
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str]:
    cursor = Cursor(metadata)
    version = _read_version(cursor)
    if version < 0:
        raise MalformedMessage(f"a subscription of version {version}")
    names = []
    for _ in range(cursor.array_count(max(0, read_length_int32(cursor)))):
        names.append(cursor.take_bytes(read_length_int16(cursor)).decode(errors="replace"))
    return names


class ClassicGroup(Group):
    type = GroupType.CLASSIC

    def __init__(self, group_id: str, now_ms: int | None = None) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms = now_ms
        """None for a group that only has offsets."""
        self.generation = 0
        self.kind: str | None = None
        """The protocol type, "consumer" for consumers; None before the first member joins."""
        self.protocol: str | None = None
        """The assignment protocol of this generation."""
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.pending: set[str] = set()
        """Member ids that were given out, and that no JoinGroup has used yet."""
        self.not_synced: set[str] = set()
        """Members that have not sent SyncGroup in this generation."""
        self.topics: frozenset[str] | None = None
        """The topics that the members read, if known."""
        self.has_new_members = False
        """Whether members joined since the first rebalance was last delayed."""

    # State

    def move_to(self, state: GroupState, now_ms: int) -> None:
        assert self.state in ALLOWED_PREVIOUS_STATES[state], (
            f"group {self.group_id}: {state} may not follow on {self.state}"
        )
        self.previous_state, self.state = self.state, state
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in ALLOWED_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]

    @property
    def all_have_joined(self) -> bool:
        return not self.pending and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Members

    def add(self, member: Member, joining: DeferredResponse[ResponseFields] | None, kind: str) -> None:
        if not self.members:
            self.kind = kind
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self.pending.discard(member.id)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        member.joining = joining

    def remove(self, member_id: str) -> None:
        """Removes a member. Its waiting requests get UNKNOWN_MEMBER_ID, so that it joins again."""
        self.pending.discard(member_id)
        self.not_synced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        gone: ResponseFields = {"error_code": ErrorCode.UNKNOWN_MEMBER_ID}
        member.respond_to_join({**gone, "member_id": member_id})
        member.respond_to_sync(gone)

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """The instance joined with a new member id. Requests with the old id get FENCED_INSTANCE_ID."""
        member = self.members.pop(old_id)
        self.members[new_id] = member
        fenced: ResponseFields = {"error_code": ErrorCode.FENCED_INSTANCE_ID}
        member.respond_to_join({**fenced, "member_id": old_id})
        member.respond_to_sync(fenced)
        member.id = new_id
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.not_synced:
            self.not_synced.discard(old_id)
            self.not_synced.add(new_id)
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance has another member id now."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"No member has the instance id {instance_id}.")
            if known != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"Another member has taken over the instance id {instance_id}."
                )
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {self.group_id} has no member {member_id!r}.")

    def elect_leader_among_joined(self) -> bool:
        """Makes sure that the leader has joined; False if no member has."""
        leader = self.members.get(self.leader or "")
        if leader is None or not leader.is_joining:
            joined = next((member for member in self.members.values() if member.is_joining), None)
            if joined is None:
                return False
            self.leader = joined.id
        return True

    # Protocols

    def supports(self, kind: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can join."""
        if self.state is GroupState.EMPTY:
            return bool(kind) and any(True for _ in names)
        return kind == self.kind and not self._common_protocols().isdisjoint(names)

    def _common_protocols(self) -> frozenset[str]:
        counts = Counter(chain.from_iterable({p.name for p in m.protocols} for m in self.members.values()))
        return frozenset(name for name, count in counts.items() if count == len(self.members))

    def elect_protocol(self) -> str:
        """Each member votes for its preferred protocol among those that all members support."""
        common = self._common_protocols()
        votes = Counter(next(p.name for p in member.protocols if p.name in common) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.not_synced.clear()
        if self.members:
            self.protocol = self.elect_protocol()
            self.move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.move_to(GroupState.EMPTY, now_ms)
        self.update_topics()

    def update_topics(self) -> None:
        if self.kind != CONSUMER:
            self.topics = None
        else:
            self.topics = subscribed_topics(member.metadata(self.protocol) for member in self.members.values())

    # For offsets and admin requests

    @property
    def state_name(self) -> str:
        return self.state

    @property
    def protocol_type(self) -> str:
        return self.kind or ""

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY and not self.pending

    @property
    def is_simple(self) -> bool:
        return self.is_empty and self.kind is None

    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int, version: int) -> None:
        if self._accepts_any_commit(generation):
            return
        if generation < 0 and not member_id and instance_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "Only members can commit while the group has members.")
        self._check_member_and_generation(member_id, instance_id, generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group waits for its assignment.")

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        if self._accepts_any_commit(generation):
            return
        if generation >= 0 or member_id or instance_id is not None:
            self._check_member_and_generation(member_id, instance_id, generation)

    def _accepts_any_commit(self, generation: int) -> bool:
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Group {self.group_id} is being deleted.")
        return generation < 0 and self.state is GroupState.EMPTY

    def _check_member_and_generation(self, member_id: str, instance_id: str | None, generation: int) -> None:
        self.check_member(member_id, instance_id)
        self.check_generation(generation)

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION, f"The group is in generation {self.generation}, not {generation}."
            )

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        return

    def check_offset_delete(self) -> None:
        if self.state is not GroupState.EMPTY and self.kind != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} has members.")

    def check_deletion(self) -> None:
        if self.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        if self.topics is None:
            return self.kind == CONSUMER  # unknown subscriptions: keep the offsets
        return topic in self.topics

    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        if self.kind is None:
            return committed_at_ms
        if self.state is GroupState.EMPTY:
            return committed_at_ms if self.state_since_ms is None else self.state_since_ms
        if self.kind == CONSUMER and self.topics is not None and self.state is GroupState.STABLE:
            return committed_at_ms
        return None

    def record_activity(self, member_id: str, now_ms: int) -> None:
        member = self.members.get(member_id)
        if member is not None and self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            member.expires_at_ms = max(member.expires_at_ms, now_ms + member.session_timeout_ms)

    # Responses

    def join_response(self, member: Member) -> ResponseFields:
        """The response to JoinGroup. Only the leader gets the list of members."""
        return {
            "error_code": ErrorCode.NONE,
            "generation_id": self.generation,
            "protocol_type": self.kind,
            "protocol_name": self.protocol or "",
            "leader": self.leader or "",
            "member_id": member.id,
            "members": self._members_for_leader() if self.leader == member.id else [],
        }

    def _members_for_leader(self) -> list[ResponseFields]:
        return [
            {"member_id": each.id, "group_instance_id": each.instance_id, "metadata": each.metadata(self.protocol)}
            for each in self.members.values()
        ]

    def sync_response(self, member: Member) -> ResponseFields:
        """The response to SyncGroup."""
        return {
            "error_code": ErrorCode.NONE,
            "protocol_type": self.kind,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def describe(self) -> ResponseFields:
        """The group's row in the response to DescribeGroups."""
        is_stable = self.state is GroupState.STABLE
        return {
            "group_id": self.group_id,
            "group_state": self.state,
            "protocol_type": self.protocol_type,
            "protocol_data": (self.protocol or "") if is_stable else "",
            "members": [
                {
                    "member_id": member.id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client.client_id,
                    "client_host": member.client.host,
                    "member_metadata": member.metadata(self.protocol) if is_stable else b"",
                    "member_assignment": member.assignment if is_stable else b"",
                }
                for member in self.members.values()
            ],
        }

    # Records

    @classmethod
    def from_record(cls, group_id: str, value: Message) -> "ClassicGroup":
        """The group that a GroupMetadata record describes."""
        since_ms = value.current_state_timestamp
        group = cls(group_id, None if since_ms < 0 else since_ms)
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
        group.update_topics()
        return group

    def deletion_records(self) -> list[CoordinatorRecord]:
        return [group_record(RecordType.GROUP_METADATA, {"group": self.group_id}, None)]

    def metadata_record(self, assignments: dict[str, bytes]) -> CoordinatorRecord:
        """The record of the group as it is now, with these assignments."""
        members = [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client.client_id,
                "client_host": member.client.host,
                "rebalance_timeout": member.rebalance_timeout_ms,
                "session_timeout": member.session_timeout_ms,
                "subscription": member.metadata(self.protocol),
                "assignment": assignments.get(member.id, b""),
            }
            for member in self.members.values()
        ]
        value = {
            "protocol_type": self.kind or "",
            "generation": self.generation,
            "protocol": self.protocol,
            "leader": self.leader,
            "current_state_timestamp": -1 if self.state_since_ms is None else self.state_since_ms,
            "members": members,
        }
        return group_record(RecordType.GROUP_METADATA, {"group": self.group_id}, value)
