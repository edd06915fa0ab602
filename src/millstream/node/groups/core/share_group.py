"""A share group and its members, as the records of `__consumer_offsets` describe them; and the assignor of share
groups.

The assignor gives every partition a member and every member a partition, as evenly as possible. With fewer members than
partitions each partition has one member; with more, members share partitions. A member keeps its partitions while that
is even, because each move costs a share session.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import CoordinatorRecord
from millstream.node.groups.core.group import Group, GroupType
from millstream.node.groups.core.records import RecordType, group_record

TopicPartitionId = tuple[UUID, int]
Assignment = dict[str, set[TopicPartitionId]]


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    partition_counts: Mapping[UUID, int],
    current: Mapping[str, set[TopicPartitionId]],
) -> Assignment:
    """`subscriptions` has the topics of each member, `current` its partitions. Returns the new partitions of each
    member."""
    result: Assignment = {member: set() for member in sorted(subscriptions)}
    alike: dict[tuple[str, ...], list[UUID]] = {}
    for topic_id in sorted(partition_counts):
        readers = tuple(member for member in result if topic_id in subscriptions[member])
        if readers:
            alike.setdefault(readers, []).append(topic_id)
    # Topics with the same members are assigned together; otherwise one member might get the first partition of each.
    for readers, topic_ids in alike.items():
        partitions = [(topic_id, index) for topic_id in topic_ids for index in range(partition_counts[topic_id])]
        if len(readers) <= len(partitions):
            _deal(partitions, readers, current, result)
        else:
            _share(partitions, readers, current, result)
    return result


def _deal(
    partitions: Sequence[TopicPartitionId],
    readers: Sequence[str],
    current: Mapping[str, set[TopicPartitionId]],
    result: Assignment,
) -> None:
    """One member for each partition."""
    least, larger = divmod(len(partitions), len(readers))
    had = {partition: member for member in readers for partition in current.get(member, ())}
    dealt = dict.fromkeys(readers, 0)
    left = []
    for partition in partitions:
        member = had.get(partition)
        if member is not None and (dealt[member] < least or (dealt[member] == least and larger > 0)):
            larger -= dealt[member] == least
            dealt[member] += 1
            result[member].add(partition)
        else:
            left.append(partition)
    for partition in left:
        member = min(readers, key=lambda each: dealt[each])
        dealt[member] += 1
        result[member].add(partition)


def _share(
    partitions: Sequence[TopicPartitionId],
    readers: Sequence[str],
    current: Mapping[str, set[TopicPartitionId]],
    result: Assignment,
) -> None:
    """One partition for each member."""
    least, larger = divmod(len(readers), len(partitions))
    shared = dict.fromkeys(partitions, 0)
    left = []
    for member in readers:
        state_topics = next((each for each in sorted(current.get(member, ())) if each in shared), None)
        if state_topics is not None and (
            shared[state_topics] < least or (shared[state_topics] == least and larger > 0)
        ):
            larger -= shared[state_topics] == least
            shared[state_topics] += 1
            result[member].add(state_topics)
        else:
            left.append(member)
    for member in left:
        partition = min(partitions, key=lambda each: shared[each])
        shared[partition] += 1
        result[member].add(partition)


STABLE_MEMBER = 0
"""The only state of a member: it has its assignment, because members never wait for a revocation."""


@dataclass(slots=True)
class ShareMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: set[TopicPartitionId] = field(default_factory=set)


@dataclass(slots=True)
class StateTopic:
    """A topic that the group has share state for."""

    name: str
    partitions: set[int] = field(default_factory=set)
    initializing: set[int] = field(default_factory=set)
    """Partitions whose state the share coordinator has not initialized yet."""

    def copy(self) -> "StateTopic":
        return StateTopic(self.name, set(self.partitions), set(self.initializing))

    def add(self, partitions: Iterable[int]) -> None:
        """Adds partitions. New ones have no state yet, or the state of an earlier group of the same name."""
        new = set(partitions) - self.partitions
        self.partitions |= new
        self.initializing |= new


class ShareGroup(Group):
    type = GroupType.SHARE
    is_deleted_without_offsets = False

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, set[TopicPartitionId]] = {}
        self.state_topics: dict[UUID, StateTopic] = {}
        """Topics with share state, because members read them or an operator set it."""

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def protocol_type(self) -> str:
        return "share"

    @property
    def is_empty(self) -> bool:
        return not self.members

    # Share groups have no committed offsets.

    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int, version: int) -> None:
        raise self._no_offsets()

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        raise self._no_offsets()

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        raise self._no_offsets()

    def check_offset_delete(self) -> None:
        raise self._no_offsets()

    def _no_offsets(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_deletion(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values())

    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        return None

    def deletion_records(self) -> list[CoordinatorRecord]:
        about = {"group_id": self.group_id}
        records = [record for member_id in self.members for record in member_tombstones(self.group_id, member_id)]
        records.append(group_record(RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA, about, None))
        if self.state_topics:
            records.append(group_record(RecordType.SHARE_GROUP_STATE_PARTITION_METADATA, about, None))
        records.append(group_record(RecordType.SHARE_GROUP_METADATA, about, None))
        return records


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    about = {"group_id": group_id, "member_id": member_id}
    return [
        group_record(kind, about, None)
        for kind in (
            RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT,
            RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER,
            RecordType.SHARE_GROUP_MEMBER_METADATA,
        )
    ]


def member_record(group_id: str, member: ShareMember) -> CoordinatorRecord:
    return group_record(
        RecordType.SHARE_GROUP_MEMBER_METADATA,
        {"group_id": group_id, "member_id": member.member_id},
        {
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": list(member.topics),
        },
    )


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return group_record(
        RecordType.SHARE_GROUP_METADATA, {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash}
    )


def target_epoch_record(group_id: str, epoch: int) -> CoordinatorRecord:
    return group_record(
        RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA, {"group_id": group_id}, {"assignment_epoch": epoch}
    )


def target_record(group_id: str, member_id: str, assigned: set[TopicPartitionId]) -> CoordinatorRecord:
    return group_record(
        RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER,
        {"group_id": group_id, "member_id": member_id},
        {"topic_partitions": by_topic(assigned)},
    )


def current_record(group_id: str, member: ShareMember) -> CoordinatorRecord:
    return group_record(
        RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT,
        {"group_id": group_id, "member_id": member.member_id},
        {
            "member_epoch": member.epoch,
            "previous_member_epoch": member.previous_epoch,
            "state": STABLE_MEMBER,
            "assigned_partitions": by_topic(member.assigned),
        },
    )


def state_partitions(state_topics: Mapping[UUID, StateTopic]) -> set[TopicPartitionId]:
    return {(topic_id, index) for topic_id, topic in state_topics.items() for index in topic.partitions}


def initializing_partitions(state_topics: Mapping[UUID, StateTopic]) -> set[TopicPartitionId]:
    return {(topic_id, index) for topic_id, topic in state_topics.items() for index in topic.initializing}


def state_record(group_id: str, state_topics: Mapping[UUID, StateTopic]) -> CoordinatorRecord:
    rows = [
        (topic_id, topic.name, topic.initializing, topic.partitions - topic.initializing)
        for topic_id, topic in state_topics.items()
    ]
    value = {
        "initializing_topics": [
            {"topic_id": topic_id, "topic_name": name, "partitions": sorted(initializing)}
            for topic_id, name, initializing, _ in rows
            if initializing
        ],
        "initialized_topics": [
            {"topic_id": topic_id, "topic_name": name, "partitions": sorted(ready)}
            for topic_id, name, initializing, ready in rows
            if ready or not initializing
        ],
        "deleting_topics": [],
    }
    return group_record(
        RecordType.SHARE_GROUP_STATE_PARTITION_METADATA, {"group_id": group_id}, value if state_topics else None
    )


def by_topic(assigned: Iterable[TopicPartitionId]) -> list[dict[str, Any]]:
    """The rows of requests and records: partitions by topic."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(assigned):
        topics.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in topics.items()]
