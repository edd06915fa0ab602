"""One consumer group: epochs, members, targets, owners of partitions; its records and settings.

The group is what its records describe. Members are immutable: a change makes a new one. The functions at the top
convert partitions, by topic id, between targets, members and messages, and make the records of a group.
`ConsumerSettings` has the settings of consumer groups: the broker's, and those of single groups.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.group_config import (
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
    GroupConfig,
)
from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.state_machine import CoordinatorRecord, Topic, TopicCatalog
from millstream.node.groups.core.group import Group, GroupType
from millstream.node.groups.core.records import RecordType, group_record

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard

Target = Mapping[UUID, frozenset[int]]
"""The partitions that a member should own."""
Owned = Mapping[UUID, Mapping[int, int]]
"""The partitions that a member owns, each with the assignment epoch in which it got it."""


def target_rows(target: Mapping[UUID, Iterable[int]]) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": sorted(numbers)} for topic_id, numbers in target.items()]


def read_target(rows: Sequence[Message]) -> dict[UUID, frozenset[int]]:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def owned_rows(owned: Owned) -> list[dict[str, Any]]:
    """The rows of the record of a member's assignment: partitions and epochs."""
    rows = []
    for topic_id, epochs in owned.items():
        partitions = sorted(epochs)
        row = {"topic_id": topic_id, "partitions": partitions, "assignment_epochs": [epochs[p] for p in partitions]}
        rows.append(row)
    return rows


def read_owned(rows: Sequence[Message], unknown_epoch: int) -> dict[UUID, dict[int, int]]:
    """Records before Kafka 4.3 have no epochs; then the member's epoch is used."""
    owned = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [unknown_epoch] * len(row.partitions)
        if row.partitions:
            owned[row.topic_id] = dict(zip(row.partitions, epochs, strict=True))
    return owned


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The static member has left temporarily; its partitions are kept for it."""

NOTHING: Owned = MappingProxyType({})


class MemberState(IntEnum):
    """The member's progress towards its target, with the numbers of the record."""

    STABLE = 0
    UNREVOKED = 1
    """It must revoke partitions, and has not confirmed that."""
    UNRELEASED = 2
    """It waits for partitions that other members still own."""
    UNKNOWN = 127
    """Written by a version with more states."""

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        return cls.UNKNOWN


class Protocol(NamedTuple):
    """A protocol of a classic member, from its JoinGroup."""

    name: str
    metadata: bytes


class ClassicMetadata(NamedTuple):
    """The JoinGroup fields of a classic member."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """Subscribed topic names."""
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING)
    revoking: Owned = field(default_factory=lambda: NOTHING)
    """Partitions that it must revoke and has not confirmed; no other member may own them."""

    @property
    def is_away(self) -> bool:
        return self.epoch == LEAVE_STATIC_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def away(self, epoch: int) -> "Member":
        """The static member after it left temporarily: it has no partitions to revoke any more."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch, revoking={})

    def metadata_value(self) -> dict[str, Any]:
        """The value of the member's metadata record."""
        return {
            "instance_id": self.instance_id,
            "rack_id": self.rack,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "subscribed_topic_names": sorted(self.topics),
            "subscribed_topic_regex": self.pattern or "",
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "server_assignor": self.assignor,
            "classic_member_metadata": None
            if self.classic is None
            else {
                "session_timeout_ms": self.classic.session_timeout_ms,
                "supported_protocols": [each._asdict() for each in self.classic.protocols],
            },
        }

    def assignment_value(self) -> dict[str, Any]:
        """The value of the member's assignment record."""
        return {
            "member_epoch": self.epoch,
            "previous_member_epoch": self.previous_epoch,
            "state": self.state,
            "assigned_partitions": owned_rows(self.assigned),
            "partitions_pending_revocation": owned_rows(self.revoking),
        }


def metadata_fields(value: Message) -> dict[str, Any]:
    """The fields of `Member` in its metadata record."""
    classic = value.classic_member_metadata
    return {
        "instance_id": value.instance_id,
        "rack": value.rack_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "topics": frozenset(value.subscribed_topic_names),
        "pattern": value.subscribed_topic_regex or None,
        "rebalance_timeout_ms": value.rebalance_timeout_ms,
        "assignor": value.server_assignor,
        "classic": None
        if classic is None
        else ClassicMetadata(
            classic.session_timeout_ms, tuple(Protocol(p.name, p.metadata) for p in classic.supported_protocols)
        ),
    }


def assignment_fields(value: Message) -> dict[str, Any]:
    """The fields of `Member` in its assignment record."""
    return {
        "epoch": value.member_epoch,
        "previous_epoch": value.previous_member_epoch,
        "state": MemberState(value.state),
        "assigned": read_owned(value.assigned_partitions, value.member_epoch),
        "revoking": read_owned(value.partitions_pending_revocation, value.member_epoch),
    }


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    value = {"epoch": epoch, "metadata_hash": metadata_hash}
    return group_record(RecordType.CONSUMER_GROUP_METADATA, {"group_id": group_id}, value)


def epoch_tombstone(group_id: str) -> CoordinatorRecord:
    return group_record(RecordType.CONSUMER_GROUP_METADATA, {"group_id": group_id}, None)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """The tombstone of the record in which Kafka before 4.1 kept the topics of a group."""
    return group_record(RecordType.CONSUMER_GROUP_PARTITION_METADATA, {"group_id": group_id}, None)


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member.id}
    return group_record(RecordType.CONSUMER_GROUP_MEMBER_METADATA, key, member.metadata_value())


def member_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    return group_record(RecordType.CONSUMER_GROUP_MEMBER_METADATA, key, None)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    value = {"assignment_epoch": epoch, "assignment_timestamp": now_ms}
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, {"group_id": group_id}, value)


def target_epoch_tombstone(group_id: str) -> CoordinatorRecord:
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, {"group_id": group_id}, None)


def target_record(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    value = {"topic_partitions": target_rows(target)}
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, key, value)


def target_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, key, None)


def assignment_record(group_id: str, member: Member) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member.id}
    return group_record(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key, member.assignment_value())


def assignment_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    return group_record(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key, None)


def pattern_record(
    group_id: str, pattern: str, topics: Collection[str], version: int, now_ms: int
) -> CoordinatorRecord:
    key = {"group_id": group_id, "regular_expression": pattern}
    value = {"topics": sorted(topics), "version": version, "timestamp": now_ms}
    return group_record(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, key, value)


def pattern_tombstone(group_id: str, pattern: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "regular_expression": pattern}
    return group_record(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, key, None)


def forgotten_member(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Tombstones for all records of a member, in Kafka's order."""
    return [
        assignment_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]


_FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class GroupState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group has changed since the target was computed."""
    RECONCILING = "Reconciling"
    """Members are moving to the target."""
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(Group):
    type = GroupType.CONSUMER

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        """A hash of the topics that the members read, in this epoch."""
        self.assignment_epoch = 0
        """The epoch of the targets."""
        self.assigned_at_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.patterns: dict[str, frozenset[str]] = {}
        """Regular expressions of members, with the topics that match."""
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.has_old_partition_metadata = False
        self._owners: dict[UUID, dict[int, str]] = {}
        # Not in the log
        self.sessions: dict[str, int] = {}
        """For each member, the end of its session."""
        self.seen_topics: int | None = None
        """The version of the catalog whose changes were handled."""

    # Changes by records

    def put(self, member: Member) -> None:
        self._disown(self.members.get(member.id))
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        for owned in (member.assigned, member.revoking):
            for topic_id, numbers in owned.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.id))

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._disown(member)
        if member is not None and self.static_members.get(member.instance_id or "") == member_id:
            del self.static_members[member.instance_id or ""]

    def _disown(self, member: Member | None) -> None:
        if member is None:
            return
        for owned in (member.assigned, member.revoking):
            for topic_id, numbers in owned.items():
                owners = self._owners.get(topic_id, {})
                for number in numbers:
                    if owners.get(number) == member.id:
                        del owners[number]
                if not owners:
                    self._owners.pop(topic_id, None)

    # Reading

    def owner_of(self, topic_id: UUID, number: int) -> str | None:
        owners = self._owners.get(topic_id)
        return None if owners is None else owners.get(number)

    def find_member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def find_static_member(self, instance_id: str, member_id: str) -> Member:
        """The member of this instance; FENCED_INSTANCE_ID if the instance has another member id now."""
        known = self.static_members.get(instance_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known}.",
            )
        return self.members[known]

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
        return "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    # For offsets and admin requests

    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int, version: int) -> None:
        if generation < 0 and not self.members:
            return  # an admin, or a consumer that manages its partitions itself
        member = self.find_member(member_id)
        if member.classic is None and version < _FIRST_COMMIT_WITH_MEMBER_EPOCH:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members of the consumer group protocol.",
            )
        _check_epoch(member, generation)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        if generation < 0 and (not self.members or (not member_id and instance_id is None)):
            return  # no member is named: an old producer
        _check_epoch(self.find_member(member_id), generation)

    def may_commit_late(self, member_id: str, generation: int, topic: Topic, partition: int) -> bool:
        """Whether a member may commit in an earlier epoch, for a partition that it has owned since then (KIP-1251)."""
        member = self.members.get(member_id)
        if member is None or member.classic is not None or not 0 < generation < member.epoch:
            return False
        given_in = member.assigned.get(topic.id, {}).get(partition)
        if given_in is None:
            given_in = member.revoking.get(topic.id, {}).get(partition)
        return given_in is not None and given_in <= generation

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        _check_epoch(self.find_member(member_id or ""), member_epoch)

    def check_offset_delete(self) -> None:
        return

    def check_deletion(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values()) or any(
            topic in topics for topics in self.patterns.values()
        )

    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        return committed_at_ms

    def deletion_records(self) -> list[CoordinatorRecord]:
        made = [record for member_id in self.members for record in forgotten_member(self.group_id, member_id)]
        made += [pattern_tombstone(self.group_id, pattern) for pattern in self.patterns]
        if self.has_old_partition_metadata:
            made.append(partition_metadata_tombstone(self.group_id))
        return [*made, target_epoch_tombstone(self.group_id), epoch_tombstone(self.group_id)]

    def describe(self, topics: TopicCatalog, default_assignor: str) -> dict[str, Any]:
        """The group's row in the response to ConsumerGroupDescribe."""
        return {
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor_name": preferred_assignor(self.members.values()) or default_assignor,
            "members": [
                {
                    "member_id": member.id,
                    "instance_id": member.instance_id,
                    "rack_id": member.rack,
                    "member_epoch": member.epoch,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "subscribed_topic_names": sorted(member.topics),
                    "subscribed_topic_regex": member.pattern or "",
                    "assignment": {"topic_partitions": _described(member.assigned, topics)},
                    "target_assignment": {"topic_partitions": _described(self.targets.get(member.id, {}), topics)},
                    "member_type": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
                }
                for member in self.members.values()
            ],
        }


def preferred_assignor(members: Iterable[Member]) -> str | None:
    """The assignor that most members request; None if no member requests one."""
    votes: dict[str, int] = {}
    for member in members:
        if member.assignor is not None:
            votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return max(votes, key=lambda name: (votes[name], name)) if votes else None


def moved_to_id(member: Member, member_id: str) -> Member:
    """The same member with a new id, for a static member that returns; it has no epoch yet."""
    return replace(member, id=member_id, epoch=0, previous_epoch=0)


def _check_epoch(member: Member, epoch: int) -> None:
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"The generation is {member.epoch}, not {epoch}.")
    raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH, f"The member is in epoch {member.epoch}, not {epoch}.")


def _described(partitions: Mapping[UUID, Iterable[int]], topics: TopicCatalog) -> list[dict[str, Any]]:
    rows = []
    for topic_id, numbers in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:  # a deleted topic has no name
            rows.append({"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(numbers)})
    return rows


class ConsumerSettings:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard

    def session_timeout_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[CONSUMER_SESSION_TIMEOUT_MS])

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[CONSUMER_HEARTBEAT_INTERVAL_MS])

    def assignment_interval_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[CONSUMER_ASSIGNMENT_INTERVAL_MS])

    @property
    def max_size(self) -> int:
        return self._shard.config()[settings.MAX_SIZE]

    @property
    def assignors(self) -> tuple[str, ...]:
        return self._shard.config()[settings.ASSIGNORS]

    @property
    def allows_upgrade(self) -> bool:
        return self._shard.config()[settings.MIGRATION_POLICY] in ("bidirectional", "upgrade")

    @property
    def allows_downgrade(self) -> bool:
        return self._shard.config()[settings.MIGRATION_POLICY] in ("bidirectional", "downgrade")

    def _of_group(self, group_id: str) -> GroupConfig:
        return GroupConfig(self._shard.group_settings(group_id), self._shard.config())
