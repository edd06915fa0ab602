"""Replays the records of consumer groups, when the log is loaded and after each append."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.assigned_group import LEAVE_EPOCH, AssignedReplay, RecordTypes
from millstream.node.groups.core.consumer.group import (
    NOTHING,
    ConsumerGroup,
    Member,
    MemberState,
    assignment_fields,
    metadata_fields,
    read_target,
)
from millstream.node.groups.core.records import RecordType, read_key, read_value

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import Replayer


class ConsumerReplay(AssignedReplay[ConsumerGroup]):
    group_class = ConsumerGroup
    record_types = RecordTypes(
        RecordType.CONSUMER_GROUP_METADATA,
        RecordType.CONSUMER_GROUP_MEMBER_METADATA,
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )
    member_timers = ("consumer session", "consumer revocation", "consumer join", "consumer sync")

    def more_replayers(self) -> "Mapping[int, Replayer]":
        return {
            RecordType.CONSUMER_GROUP_PARTITION_METADATA: self._partition_metadata,
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: self._pattern,
        }

    def read_epoch(self, group: ConsumerGroup, value: Message) -> None:
        return

    def read_member(self, group: ConsumerGroup, member_id: str, value: Message) -> None:
        group.put(replace(group.members.get(member_id) or Member(member_id), **metadata_fields(value)))

    def read_target(self, group: ConsumerGroup, member_id: str, value: Message) -> None:
        group.targets[member_id] = read_target(value.topic_partitions)

    def read_assignment(self, group: ConsumerGroup, member_id: str, value: Message) -> None:
        group.put(replace(group.members.get(member_id) or Member(member_id), **assignment_fields(value)))

    def remove_assignment(self, group: ConsumerGroup, member_id: str) -> None:
        member = group.members[member_id]
        group.put(replace(member, epoch=LEAVE_EPOCH, state=MemberState.STABLE, assigned=NOTHING, revoking=NOTHING))

    def _partition_metadata(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            self.made(key).has_old_partition_metadata = True
        elif (known := self.known(key)) is not None:
            known.has_old_partition_metadata = False

    def _pattern(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, value_bytes)
            self.made(key).patterns[key.regular_expression] = frozenset(value.topics)
        elif (known := self.known(key)) is not None:
            known.patterns.pop(key.regular_expression, None)
