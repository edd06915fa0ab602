"""Replays the records of streams groups, when the log is loaded and after each append.

Compaction may have removed older records, so any record of a group may be its first.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.records import RecordType, read_key, read_value
from millstream.node.groups.core.streams.group import (
    FIRST_EPOCH,
    Member,
    StreamsGroup,
    assignment_fields,
    metadata_fields,
    unassigned,
)
from millstream.node.groups.core.streams.tasks import Tasks, read_rows
from millstream.node.groups.core.streams.topology import read_topology

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer


class StreamsReplay:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard

    def replayers(self) -> "Mapping[int, Replayer]":
        return {
            RecordType.STREAMS_GROUP_METADATA: self._epoch,
            RecordType.STREAMS_GROUP_TOPOLOGY: self._topology,
            RecordType.STREAMS_GROUP_MEMBER_METADATA: self._member,
            RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA: self._target_epoch,
            RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER: self._target,
            RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._assignment,
        }

    def _known(self, key: Message) -> StreamsGroup | None:
        group = self._shard.groups.get(key.group_id)
        return group if isinstance(group, StreamsGroup) else None

    def _made(self, key: Message) -> StreamsGroup:
        group = self._known(key)
        if group is None:
            group = self._shard.groups[key.group_id] = StreamsGroup(key.group_id)
        return group

    def _epoch(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.STREAMS_GROUP_METADATA, value_bytes)
            group = self._made(key)
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            group.validated_topology_epoch = value.validated_topology_epoch
            group.assignment_configs = {each.key: each.value for each in value.last_assignment_configs or ()}
        elif (known := self._known(key)) is not None:
            for member_id in known.members:
                self._cancel_timers(key.group_id, member_id)
            self._shard.timers.cancel(("streams initial delay", key.group_id))
            del self._shard.groups[key.group_id]
            if key.group_id in self._shard.offsets.by_group:
                self._shard.classic.add_simple_group(key.group_id)

    def _topology(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            group = self._made(key)
            group.topology = read_topology(read_value(RecordType.STREAMS_GROUP_TOPOLOGY, value_bytes))
            group.configured = None
        elif (known := self._known(key)) is not None:
            known.topology = known.configured = None

    def _member(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.STREAMS_GROUP_MEMBER_METADATA, value_bytes)
            group = self._made(key)
            member = group.members.get(key.member_id) or Member(key.member_id)
            group.put(replace(member, **metadata_fields(value)))
        elif (known := self._known(key)) is not None:
            known.remove(key.member_id)
            known.sessions.pop(key.member_id, None)
            self._cancel_timers(key.group_id, key.member_id)

    def _cancel_timers(self, group_id: str, member_id: str) -> None:
        for what in ("streams session", "streams revocation"):
            self._shard.timers.cancel((what, group_id, member_id))

    def _target_epoch(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA, value_bytes)
            group = self._made(key)
            group.assignment_epoch, group.assigned_at_ms = value.assignment_epoch, value.assignment_timestamp
        elif (known := self._known(key)) is not None:
            known.assignment_epoch, known.assigned_at_ms = FIRST_EPOCH, 0

    def _target(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER, value_bytes)
            self._made(key).targets[key.member_id] = Tasks(
                read_rows(value.active_tasks), read_rows(value.standby_tasks), read_rows(value.warmup_tasks)
            )
        elif (known := self._known(key)) is not None:
            known.targets.pop(key.member_id, None)

    def _assignment(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            value = read_value(RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT, value_bytes)
            group = self._made(key)
            member = group.members.get(key.member_id) or Member(key.member_id)
            group.put(replace(member, **assignment_fields(value)))
        elif (known := self._known(key)) is not None and (found := known.members.get(key.member_id)) is not None:
            known.put(unassigned(found))
