"""Replays the records of consumer groups, when the log is loaded and after each append.

Compaction may have removed older records, so any record of a group may be its first.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.formats.protocol.schema import Message
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
    from millstream.node.groups.core.shard import GroupShard, Replayer


class ConsumerReplay:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard

    def replayers(self) -> "Mapping[int, Replayer]":
        return {
            RecordType.CONSUMER_GROUP_METADATA: self._epoch,
            RecordType.CONSUMER_GROUP_PARTITION_METADATA: self._partition_metadata,
            RecordType.CONSUMER_GROUP_MEMBER_METADATA: self._member,
            RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: self._target_epoch,
            RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: self._target,
            RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._assignment,
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: self._pattern,
        }

    def _known(self, key: Message) -> ConsumerGroup | None:
        group = self._shard.groups.get(key.group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def _made(self, key: Message) -> ConsumerGroup:
        group = self._known(key)
        if group is None:
            group = self._shard.groups[key.group_id] = ConsumerGroup(key.group_id)
        return group

    def _epoch(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_METADATA, value_bytes)
            group = self._made(key)
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        elif (known := self._known(key)) is not None:
            for member_id in known.members:
                self._cancel_timers(key.group_id, member_id)
            del self._shard.groups[key.group_id]
            if key.group_id in self._shard.offsets.by_group:
                self._shard.classic.add_simple_group(key.group_id)

    def _partition_metadata(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            self._made(key).has_old_partition_metadata = True
        elif (known := self._known(key)) is not None:
            known.has_old_partition_metadata = False

    def _member(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_MEMBER_METADATA, value_bytes)
            group = self._made(key)
            member = group.members.get(key.member_id) or Member(key.member_id)
            group.put(replace(member, **metadata_fields(value)))
        elif (known := self._known(key)) is not None:
            known.remove(key.member_id)
            known.sessions.pop(key.member_id, None)
            self._cancel_timers(key.group_id, key.member_id)

    def _cancel_timers(self, group_id: str, member_id: str) -> None:
        for what in ("consumer session", "consumer revocation", "consumer join", "consumer sync"):
            self._shard.timers.cancel((what, group_id, member_id))

    def _target_epoch(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, value_bytes)
            group = self._made(key)
            group.assignment_epoch, group.assigned_at_ms = value.assignment_epoch, value.assignment_timestamp
        elif (known := self._known(key)) is not None:
            known.assignment_epoch = known.assigned_at_ms = 0

    def _target(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, value_bytes)
            self._made(key).targets[key.member_id] = read_target(value.topic_partitions)
        elif (known := self._known(key)) is not None:
            known.targets.pop(key.member_id, None)

    def _assignment(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, value_bytes)
            group = self._made(key)
            member = group.members.get(key.member_id) or Member(key.member_id)
            group.put(replace(member, **assignment_fields(value)))
        elif (known := self._known(key)) is not None and (found := known.members.get(key.member_id)) is not None:
            known.put(replace(found, epoch=-1, state=MemberState.STABLE, assigned=NOTHING, revoking=NOTHING))

    def _pattern(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, value_bytes)
            self._made(key).patterns[key.regular_expression] = frozenset(value.topics)
        elif (known := self._known(key)) is not None:
            known.patterns.pop(key.regular_expression, None)
