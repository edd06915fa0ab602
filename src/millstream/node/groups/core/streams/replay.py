"""Replays the records of streams groups, when the log is loaded and after each append."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.assigned_group import AssignedReplay, RecordTypes
from millstream.node.groups.core.records import RecordType, read_key, read_value
from millstream.node.groups.core.streams.group import (
    Member,
    StreamsGroup,
    assignment_fields,
    metadata_fields,
    unassigned,
)
from millstream.node.groups.core.streams.tasks import Tasks, read_rows
from millstream.node.groups.core.streams.topology import read_topology

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import Replayer


class StreamsReplay(AssignedReplay[StreamsGroup]):
    group_class = StreamsGroup
    record_types = RecordTypes(
        RecordType.STREAMS_GROUP_METADATA,
        RecordType.STREAMS_GROUP_MEMBER_METADATA,
        RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )
    member_timers = ("streams session", "streams revocation")

    def more_replayers(self) -> "Mapping[int, Replayer]":
        return {RecordType.STREAMS_GROUP_TOPOLOGY: self._topology}

    def read_epoch(self, group: StreamsGroup, value: Message) -> None:
        group.validated_topology_epoch = value.validated_topology_epoch
        group.assignment_configs = {each.key: each.value for each in value.last_assignment_configs or ()}

    def read_member(self, group: StreamsGroup, member_id: str, value: Message) -> None:
        group.put(replace(group.members.get(member_id) or Member(member_id), **metadata_fields(value)))

    def read_target(self, group: StreamsGroup, member_id: str, value: Message) -> None:
        group.targets[member_id] = Tasks(
            read_rows(value.active_tasks), read_rows(value.standby_tasks), read_rows(value.warmup_tasks)
        )

    def read_assignment(self, group: StreamsGroup, member_id: str, value: Message) -> None:
        group.put(replace(group.members.get(member_id) or Member(member_id), **assignment_fields(value)))

    def remove_assignment(self, group: StreamsGroup, member_id: str) -> None:
        group.put(unassigned(group.members[member_id]))

    def forget_group(self, group_id: str) -> None:
        self._shard.timers.cancel(("streams initial delay", group_id))

    def _topology(self, key_bytes: bytes, value_bytes: bytes | None) -> None:
        key = read_key(key_bytes)
        if value_bytes is not None:
            group = self.made(key)
            group.topology = read_topology(read_value(RecordType.STREAMS_GROUP_TOPOLOGY, value_bytes))
            group.configured = None
        elif (known := self.known(key)) is not None:
            known.topology = known.configured = None
