"""One consumer group as its records tell: epochs, members, targets, and who owns which partition."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.outcome import CoordinatorRecord
from millstream.node.coordination.core.topic_catalog import TopicCatalog
from millstream.node.groups.core.consumer import consumer_records as records
from millstream.node.groups.core.consumer.assignment import Target
from millstream.node.groups.core.consumer.member import Member
from millstream.node.groups.core.group import Group, GroupType

_FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class GroupState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group has changed since the target was made."""
    RECONCILING = "Reconciling"
    """Members are on their way to the target."""
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(Group):
    type = GroupType.CONSUMER

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        """Of the topics the members read, as they were in this epoch."""
        self.assignment_epoch = 0
        """The epoch that the targets were made for."""
        self.assigned_at_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.patterns: dict[str, frozenset[str]] = {}
        """Regular expressions of members, and the topics they match."""
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.has_old_partition_metadata = False
        self._owners: dict[UUID, dict[int, str]] = {}
        # Soft state
        self.sessions: dict[str, int] = {}
        """For each member, until when it must be heard from."""
        self.seen_topics: int | None = None
        """The version of the catalog up to which changes of topics were looked at."""

    # What records change

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

    # What can be asked

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
        """The member of this instance; FENCED_INSTANCE_ID if the instance goes by another member id now."""
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

    # As offsets and admin requests see it

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
            return  # nobody is named: an old producer
        _check_epoch(self.find_member(member_id), generation)

    def may_commit_late(self, member_id: str, generation: int, topic_id: UUID, partition: int) -> bool:
        """In an earlier epoch than it is in now, for a partition that it has had since then (KIP-1251)."""
        member = self.members.get(member_id)
        if member is None or member.classic is not None or not 0 < generation < member.epoch:
            return False
        given_in = member.assigned.get(topic_id, {}).get(partition)
        if given_in is None:
            given_in = member.revoking.get(topic_id, {}).get(partition)
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
        made = [record for member_id in self.members for record in records.forgotten_member(self.group_id, member_id)]
        made += [records.pattern_tombstone(self.group_id, pattern) for pattern in self.patterns]
        if self.has_old_partition_metadata:
            made.append(records.partition_metadata_tombstone(self.group_id))
        return [*made, records.target_epoch_tombstone(self.group_id), records.epoch_tombstone(self.group_id)]

    def describe(self, topics: TopicCatalog, default_assignor: str) -> dict[str, Any]:
        """The group's part of the answer to ConsumerGroupDescribe."""
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
    """The one that most members ask for; None if nobody asks for any."""
    votes: dict[str, int] = {}
    for member in members:
        if member.assignor is not None:
            votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return max(votes, key=lambda name: (votes[name], name)) if votes else None


def moved_to_id(member: Member, member_id: str) -> Member:
    """The same member under a new id, as when a static one comes back; it has no epoch yet."""
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
        if topic is not None:  # a topic that is gone has no name to show
            rows.append({"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(numbers)})
    return rows
