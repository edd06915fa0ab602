"""ShareGroupHeartbeat, ShareGroupDescribe and share-group offsets, for the share groups of a shard.

A member that joins, leaves or changes its topics starts a new group epoch with a new target assignment. Members get
their assignment with their next heartbeat. No member waits for another, because several may read one partition. Durable
state changes only in `replay`. The share state of the partitions is in the share coordinator (`queues/core/state.py`);
here are only the names of partitions that have such state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.config import group_config
from millstream.config.group_config import GroupConfig
from millstream.config.table import share as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.formats.protocol.wire_types import ShareGroupHeartbeatRequest
from millstream.node.coordination.core.state_machine import CoordinatorRecord, CoordinatorResult, Writes
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.groups.core.records import RecordType, read_key, read_value
from millstream.node.groups.core.share_group import (
    Assignment,
    ShareGroup,
    ShareMember,
    StateTopic,
    TopicPartitionId,
    assign,
    by_topic,
    current_record,
    epoch_record,
    initializing_partitions,
    member_record,
    member_tombstones,
    state_partitions,
    state_record,
    target_epoch_record,
    target_record,
)

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer

LEAVE_EPOCH = -1
ASSIGNOR = "simple"

Partitions = Sequence[TopicPartitionId]
OnState = Callable[[str, Partitions, Partitions], None]


class ShareGroups:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self.on_state: OnState = lambda group_id, initializing, gone: None
        """Called with partitions whose state must be initialized (`state_initialized` confirms it), and with partitions
        whose state must be deleted because the group or the topic is deleted."""

    # ShareGroupHeartbeat

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str, now_ms: int
    ) -> CoordinatorResult[dict[str, Any]]:
        _check_heartbeat(request)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request)
        group = self._group_for(request)
        member = self._member_for(group, request)
        updated = _updated(member, request, client_id, client_host)
        known = request.member_id in group.members
        records: list[CoordinatorRecord] = []
        members = {**group.members, request.member_id: updated}
        if not known or (member.rack_id, member.client_id, member.client_host, member.topics) != (
            updated.rack_id,
            updated.client_id,
            updated.client_host,
            updated.topics,
        ):
            records.append(member_record(group.group_id, updated))
        metadata_hash = self._metadata_hash(members.values())
        target = group.target
        epoch = group.epoch
        if not known or member.topics != updated.topics or metadata_hash != group.metadata_hash:
            epoch += 1
            records.append(epoch_record(group.group_id, epoch, metadata_hash))
            target = self._new_target(group, members, epoch, records)
        elif group.assignment_epoch < epoch:
            target = self._new_target(group, members, epoch, records)
        assigned = target.get(request.member_id, set())
        if member.epoch != epoch or member.assigned != assigned:
            updated.previous_epoch, updated.epoch, updated.assigned = member.epoch, epoch, set(assigned)
            records.append(current_record(group.group_id, updated))
        response: dict[str, Any] = {
            "member_id": request.member_id,
            "member_epoch": updated.epoch,
            "heartbeat_interval_ms": self._config(group.group_id)[group_config.SHARE_HEARTBEAT_INTERVAL_MS],
        }
        # A member that sends all its fields gets its assignment; otherwise only a changed one is sent.
        repeated = request.member_epoch != member.epoch or request.subscribed_topic_names is not None
        if not known or repeated or member.assigned != updated.assigned:
            response["assignment"] = {"topic_partitions": by_topic(updated.assigned)}
        self._extend_session(group.group_id, request.member_id, now_ms)
        return CoordinatorResult(response, records)

    def _group_for(self, request: ShareGroupHeartbeatRequest) -> ShareGroup:
        group = self._shard.groups.get(request.group_id)
        if isinstance(group, ShareGroup):
            return group
        if group is not None and not (group.is_simple and request.member_epoch == 0):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a share group.")
        if request.member_epoch != 0:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {request.group_id} not found.")
        return ShareGroup(request.group_id)

    def _member_for(self, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareMember:
        member = group.members.get(request.member_id)
        if member is None:
            if request.member_epoch != 0:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"Member {request.member_id} is not a member of group {request.group_id}.",
                )
            if len(group.members) >= self._shard.config()[settings.GROUP_SHARE_MAX_SIZE]:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"Share group {group.group_id} is full.")
            return ShareMember(request.member_id)
        epoch = request.member_epoch
        if epoch not in (0, member.epoch, member.previous_epoch) or epoch > member.epoch:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"Epoch {epoch} of member {member.member_id} is not its current epoch, {member.epoch}: it must rejoin.",
            )
        return member

    def _leave(self, request: ShareGroupHeartbeatRequest) -> CoordinatorResult[dict[str, Any]]:
        group = self.find(request.group_id)
        if request.member_id not in group.members:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {group.group_id}."
            )
        response = {"member_id": request.member_id, "member_epoch": LEAVE_EPOCH}
        return CoordinatorResult(response, self._removal(group, request.member_id))

    def _removal(self, group: ShareGroup, member_id: str) -> list[CoordinatorRecord]:
        records = member_tombstones(group.group_id, member_id)
        members = {name: member for name, member in group.members.items() if name != member_id}
        epoch = group.epoch + 1
        records.append(epoch_record(group.group_id, epoch, self._metadata_hash(members.values())))
        # The other members take its partitions over, with their next heartbeats.
        self._new_target(group, members, epoch, records)
        return records

    def _new_target(
        self, group: ShareGroup, members: Mapping[str, ShareMember], epoch: int, records: list[CoordinatorRecord]
    ) -> Assignment:
        topics = {name: topic for name in _topic_names(members.values()) if (topic := self._shard.topics.get(name))}
        target = assign(
            {
                member.member_id: frozenset(topics[name].id for name in member.topics if name in topics)
                for member in members.values()
            },
            {topic.id: topic.partition_count for topic in topics.values()},
            group.target,
        )
        records += [
            target_record(group.group_id, member_id, assigned)
            for member_id, assigned in target.items()
            if group.target.get(member_id) != assigned
        ]
        records.append(target_epoch_record(group.group_id, epoch))
        state_topics = {topic_id: topic.copy() for topic_id, topic in group.state_topics.items()}
        for topic in topics.values():
            state_topics.setdefault(topic.id, StateTopic(topic.name)).add(range(topic.partition_count))
        if state_topics != group.state_topics:
            records.append(state_record(group.group_id, state_topics))
        return target

    def _metadata_hash(self, members: Iterable[ShareMember]) -> int:
        digest = blake2b(digest_size=8)
        for name in _topic_names(members):
            topic = self._shard.topics.get(name)
            if topic is not None:
                digest.update(topic.id.bytes + topic.partition_count.to_bytes(4) + name.encode())
        return int.from_bytes(digest.digest(), signed=True)

    # Sessions

    def _config(self, group_id: str) -> GroupConfig:
        return GroupConfig(self._shard.group_settings(group_id), self._shard.config())

    def _extend_session(self, group_id: str, member_id: str, now_ms: int) -> None:
        deadline_ms = now_ms + self._config(group_id)[group_config.SHARE_SESSION_TIMEOUT_MS]

        def expired(now_ms: int) -> CoordinatorResult[None] | None:
            group = self._shard.groups.get(group_id)
            if not isinstance(group, ShareGroup) or member_id not in group.members:
                return None
            # A timer runs once. If the write fails, this one retries.
            self._extend_session(group_id, member_id, now_ms)
            return CoordinatorResult(None, self._removal(group, member_id))

        self._shard.timers.set(("share-session", group_id, member_id), deadline_ms, expired)

    def loaded(self, now_ms: int) -> None:
        for group in self._shard.groups.values():
            if isinstance(group, ShareGroup):
                for member_id in group.members:
                    self._extend_session(group.group_id, member_id, now_ms)
                if initializing := initializing_partitions(group.state_topics):
                    self.on_state(group.group_id, sorted(initializing), ())

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        """Members get new partitions with their next heartbeat. The state of deleted topics is removed now."""
        if not deleted:
            return
        for group in self._shard.groups.values():
            if isinstance(group, ShareGroup):
                state_topics = {
                    at: topic for at, topic in group.state_topics.items() if self._shard.topics.by_id(at) is not None
                }
                if len(state_topics) < len(group.state_topics):
                    writes.add(state_record(group.group_id, state_topics))

    # Administration

    def find(self, group_id: str) -> ShareGroup:
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        return group

    def describe(self, group_id: str) -> dict[str, Any]:
        group = self.find(group_id)
        return {
            "group_id": group_id,
            "group_state": group.state_name,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": ASSIGNOR,
            "members": [
                {
                    "member_id": member.member_id,
                    "rack_id": member.rack_id,
                    "member_epoch": member.epoch,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "subscribed_topic_names": list(member.topics),
                    "assignment": {"topic_partitions": self._named(member.assigned)},
                }
                for member in group.members.values()
            ],
        }

    def _named(self, assigned: set[TopicPartitionId]) -> list[dict[str, Any]]:
        return [
            {**row, "topic_name": topic.name}
            for row in by_topic(assigned)
            if (topic := self._shard.topics.by_id(row["topic_id"])) is not None
        ]

    def add_state(self, group_id: str, topics: Mapping[UUID, tuple[str, Iterable[int]]]) -> CoordinatorResult[None]:
        """Adds partitions whose state an operator set. A group that does not exist is created, empty."""
        group = self._shard.groups.get(group_id)
        records = []
        if not isinstance(group, ShareGroup):
            if group is not None and not group.is_simple:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
            group = ShareGroup(group_id)
            records.append(epoch_record(group_id, 0, 0))
        group.check_deletion()
        state_topics = {topic_id: topic.copy() for topic_id, topic in group.state_topics.items()}
        for topic_id, (name, partitions) in topics.items():
            state_topics.setdefault(topic_id, StateTopic(name)).add(partitions)
        return CoordinatorResult(None, [*records, state_record(group_id, state_topics)])

    def state_initialized(self, group_id: str, partitions: Collection[TopicPartitionId]) -> CoordinatorResult[None]:
        """Notes that the share coordinator has initialized the state of these partitions."""
        group = self._known(group_id)
        if group is None:
            return CoordinatorResult(None)
        state_topics = {topic_id: topic.copy() for topic_id, topic in group.state_topics.items()}
        for topic_id, index in partitions:
            if topic_id in state_topics:
                state_topics[topic_id].initializing.discard(index)
        return CoordinatorResult(
            None, [state_record(group_id, state_topics)] if state_topics != group.state_topics else []
        )

    def initializing(self, group_id: str) -> set[TopicPartitionId]:
        """Partitions whose state is being initialized. They must not be read before."""
        group = self._known(group_id)
        return set() if group is None else initializing_partitions(group.state_topics)

    def remove_state(self, group_id: str, topic_ids: Collection[UUID]) -> CoordinatorResult[None]:
        """Notes that an operator deleted the state of these topics."""
        group = self.find(group_id)
        group.check_deletion()
        return CoordinatorResult(
            None,
            [state_record(group_id, {at: topic for at, topic in group.state_topics.items() if at not in topic_ids})],
        )

    # Records

    def replayers(self) -> "Mapping[int, Replayer]":
        return {
            RecordType.SHARE_GROUP_MEMBER_METADATA: self._replay_member,
            RecordType.SHARE_GROUP_METADATA: self._replay_group,
            RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA: self._replay_target_epoch,
            RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER: self._replay_target,
            RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._replay_current,
            RecordType.SHARE_GROUP_STATE_PARTITION_METADATA: self._replay_state,
        }

    def _known(self, group_id: str) -> ShareGroup | None:
        group = self._shard.groups.get(group_id)
        return group if isinstance(group, ShareGroup) else None

    def _get_or_create(self, group_id: str) -> ShareGroup:
        """After compaction, any record of a group may be its first."""
        group = self._known(group_id)
        if group is None:
            group = ShareGroup(group_id)
            self._shard.groups[group_id] = group
        return group

    def _replay_group(self, key: bytes, value: bytes | None) -> None:
        group_id = read_key(key).group_id
        if value is None:
            if (group := self._known(group_id)) is not None:
                del self._shard.groups[group_id]
                self._notify(group_id, set(), state_partitions(group.state_topics))
            return
        group = self._get_or_create(group_id)
        content = read_value(RecordType.SHARE_GROUP_METADATA, value)
        group.epoch, group.metadata_hash = content.epoch, content.metadata_hash

    def _replay_member(self, key: bytes, value: bytes | None) -> None:
        about = read_key(key)
        if value is None:
            if (group := self._known(about.group_id)) is not None:
                group.members.pop(about.member_id, None)
                self._shard.timers.cancel(("share-session", about.group_id, about.member_id))
            return
        content = read_value(RecordType.SHARE_GROUP_MEMBER_METADATA, value)
        members = self._get_or_create(about.group_id).members
        members[about.member_id] = replace(
            members.get(about.member_id) or ShareMember(about.member_id),
            rack_id=content.rack_id,
            client_id=content.client_id,
            client_host=content.client_host,
            topics=tuple(content.subscribed_topic_names),
        )

    def _replay_target_epoch(self, key: bytes, value: bytes | None) -> None:
        group_id = read_key(key).group_id
        if value is not None:
            content = read_value(RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA, value)
            self._get_or_create(group_id).assignment_epoch = content.assignment_epoch

    def _replay_target(self, key: bytes, value: bytes | None) -> None:
        about = read_key(key)
        if value is None:
            if (group := self._known(about.group_id)) is not None:
                group.target.pop(about.member_id, None)
            return
        content = read_value(RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER, value)
        self._get_or_create(about.group_id).target[about.member_id] = _flat(content.topic_partitions)

    def _replay_current(self, key: bytes, value: bytes | None) -> None:
        about = read_key(key)
        if value is None:
            return
        content = read_value(RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT, value)
        member = self._get_or_create(about.group_id).members.setdefault(about.member_id, ShareMember(about.member_id))
        member.epoch, member.previous_epoch = content.member_epoch, content.previous_member_epoch
        member.assigned = _flat(content.assigned_partitions)

    def _replay_state(self, key: bytes, value: bytes | None) -> None:
        group_id = read_key(key).group_id
        group = self._get_or_create(group_id) if value is not None else self._known(group_id)
        if group is None:
            return
        state_topics: dict[UUID, StateTopic] = {}
        if value is not None:
            content = read_value(RecordType.SHARE_GROUP_STATE_PARTITION_METADATA, value)
            for row in content.initializing_topics:
                state_topics.setdefault(row.topic_id, StateTopic(row.topic_name)).add(row.partitions)
            for row in content.initialized_topics:
                state_topics.setdefault(row.topic_id, StateTopic(row.topic_name)).partitions.update(row.partitions)
        before, group.state_topics = group.state_topics, state_topics
        gone = state_partitions(before) - state_partitions(state_topics)
        self._notify(group_id, initializing_partitions(state_topics) - initializing_partitions(before), gone)

    def _notify(self, group_id: str, initializing: set[TopicPartitionId], gone: set[TopicPartitionId]) -> None:
        if self._shard.live and (initializing or gone):
            self.on_state(group_id, sorted(initializing), sorted(gone))


def _check_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    problem = ""
    if not request.group_id:
        problem = "GroupId can't be empty."
    elif not request.member_id.strip():
        problem = "MemberId can't be empty."
    elif request.member_epoch < LEAVE_EPOCH:
        problem = "MemberEpoch is invalid."
    elif request.rack_id is not None and not request.rack_id.strip():
        problem = "RackId can't be empty."
    elif request.member_epoch == 0 and not request.subscribed_topic_names:
        problem = "SubscribedTopicNames must be set in first request."
    elif max(len(request.group_id), len(request.member_id), len(request.rack_id or "")) > MAX_TEXT_LENGTH:
        problem = f"An id is longer than {MAX_TEXT_LENGTH} characters."
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _updated(member: ShareMember, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str) -> ShareMember:
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=member.topics if names is None else tuple(sorted(set(names))),
    )


def _topic_names(members: Iterable[ShareMember]) -> list[str]:
    return sorted({name for member in members for name in member.topics})


def _flat(rows: Iterable[Message]) -> set[TopicPartitionId]:
    return {(row.topic_id, index) for row in rows for index in row.partitions}
