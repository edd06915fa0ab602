"""What consumer groups and streams groups have in common: the coordinator assigns work to their members, step by step.

Such a group has epochs, members and targets, and is what its records describe. `AssignedReplay` replays the records
that both types have, when the log is loaded and after each append. Compaction may have removed older records, so any
record of a group may be its first. Share groups are not among them: their members take a target over at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.group import Group
from millstream.node.groups.core.records import RecordType, read_key, read_value

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The static member has left temporarily; its assignment is kept for it."""
FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
"""The version of OffsetCommit."""


class GroupState(StrEnum):
    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Of a streams group: topics of the topology are missing, or not partitioned as they must be."""
    ASSIGNING = "Assigning"
    """The group has changed since the target was computed."""
    RECONCILING = "Reconciling"
    """Members are moving to the target."""
    STABLE = "Stable"


class AssignedMember(Protocol):
    """Immutable: a change makes a new one."""

    @property
    def id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def is_reconciled_to(self, epoch: int) -> bool: ...


M = TypeVar("M", bound=AssignedMember)
T = TypeVar("T")


class AssignedGroup(Group, Generic[M, T]):
    first_epoch: ClassVar[int]
    """The epoch of a group without members, and of its first, empty target."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.first_epoch
        self.metadata_hash = 0
        """A hash of the topics that the group reads, in this epoch."""
        self.assignment_epoch = self.first_epoch
        """The epoch of the targets."""
        self.assigned_at_ms = 0
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        # Not in the log
        self.sessions: dict[str, int] = {}
        """For each member, the end of its session."""

    @abstractmethod
    def put(self, member: M) -> None: ...

    @abstractmethod
    def remove(self, member_id: str) -> None: ...

    @abstractmethod
    def check_epoch(self, member: M, epoch: int) -> None:
        """KafkaError if the member is in another epoch."""

    def find_member(self, member_id: str) -> M:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state

    @property
    def protocol_type(self) -> str:
        return self.type

    @property
    def is_empty(self) -> bool:
        return not self.members

    # For offsets and admin requests

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        if generation < 0 and (not self.members or (not member_id and instance_id is None)):
            return  # no member is named: an old producer
        self.check_epoch(self.find_member(member_id), generation)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        self.check_epoch(self.find_member(member_id or ""), member_epoch)

    def check_offset_delete(self) -> None:
        return

    def check_deletion(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} has members.")

    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        return committed_at_ms


class RecordTypes(NamedTuple):
    """The types of the records that both types of groups have."""

    epoch: RecordType
    member: RecordType
    target_epoch: RecordType
    target: RecordType
    assignment: RecordType


G = TypeVar("G", bound=AssignedGroup[Any, Any])


class AssignedReplay(ABC, Generic[G]):
    group_class: type[G]
    record_types: ClassVar[RecordTypes]
    member_timers: ClassVar[tuple[str, ...]]
    """The timers that end with a member."""

    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard

    def replayers(self) -> "Mapping[int, Replayer]":
        types = self.record_types
        return {
            types.epoch: self._epoch,
            types.member: self._member,
            types.target_epoch: self._target_epoch,
            types.target: self._target,
            types.assignment: self._assignment,
            **self.more_replayers(),
        }

    @abstractmethod
    def more_replayers(self) -> "Mapping[int, Replayer]":
        """For the records that only this type of group has."""

    @abstractmethod
    def read_epoch(self, group: G, value: Message) -> None:
        """The fields of the group's metadata record that only this type of group has."""

    @abstractmethod
    def read_member(self, group: G, member_id: str, value: Message) -> None:
        """The metadata record of a member."""

    @abstractmethod
    def read_target(self, group: G, member_id: str, value: Message) -> None: ...

    @abstractmethod
    def read_assignment(self, group: G, member_id: str, value: Message) -> None: ...

    @abstractmethod
    def remove_assignment(self, group: G, member_id: str) -> None:
        """Of a member that the group has."""

    def forget_group(self, group_id: str) -> None:
        """What is not in the log, of a deleted group."""
        return

    def known(self, key: Message) -> G | None:
        group = self._shard.groups.get(key.group_id)
        return group if isinstance(group, self.group_class) else None

    def made(self, key: Message) -> G:
        group = self.known(key)
        if group is None:
            group = self._shard.groups[key.group_id] = self.group_class(key.group_id)
        return group

    def _epoch(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(self.record_types.epoch, value_bytes)
            group = self.made(key)
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            self.read_epoch(group, value)
        elif (known := self.known(key)) is not None:
            for member_id in known.members:
                self._cancel_timers(key.group_id, member_id)
            self.forget_group(key.group_id)
            del self._shard.groups[key.group_id]
            if key.group_id in self._shard.offsets.by_group:
                self._shard.classic.add_simple_group(key.group_id)

    def _member(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            self.read_member(self.made(key), key.member_id, read_value(self.record_types.member, value_bytes))
        elif (known := self.known(key)) is not None:
            known.remove(key.member_id)
            known.sessions.pop(key.member_id, None)
            self._cancel_timers(key.group_id, key.member_id)

    def _cancel_timers(self, group_id: str, member_id: str) -> None:
        for name in self.member_timers:
            self._shard.timers.cancel((name, group_id, member_id))

    def _target_epoch(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(self.record_types.target_epoch, value_bytes)
            group = self.made(key)
            group.assignment_epoch, group.assigned_at_ms = value.assignment_epoch, value.assignment_timestamp
        elif (known := self.known(key)) is not None:
            known.assignment_epoch, known.assigned_at_ms = known.first_epoch, 0

    def _target(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            self.read_target(self.made(key), key.member_id, read_value(self.record_types.target, value_bytes))
        elif (known := self.known(key)) is not None:
            known.targets.pop(key.member_id, None)

    def _assignment(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(self.record_types.assignment, value_bytes)
            self.read_assignment(self.made(key), key.member_id, value)
        elif (known := self.known(key)) is not None and key.member_id in known.members:
            self.remove_assignment(known, key.member_id)
