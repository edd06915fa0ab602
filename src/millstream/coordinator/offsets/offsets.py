"""OffsetCommit, OffsetFetch and OffsetDelete, over the offsets of every group in a shard.

Whether a member may commit is its group's to say; what is known of a topic is the catalog's; when offsets end is in
`forgetting`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.config.table import groups as settings
from millstream.coordinator.group_records import RecordType
from millstream.coordinator.offsets.forgetting import ByGroup, Forgetting, Partitions, of_topic
from millstream.coordinator.offsets.offset_records import (
    NEVER,
    CommittedOffset,
    offset_record,
    read_offset_key,
    read_offset_value,
)
from millstream.coordinator.outcome import CoordinatorRecord, Outcome
from millstream.coordinator.topic_catalog import Topic
from millstream.coordinator.writes import Writes
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import NO_TOPIC_ID
from millstream.protocol.primitives import MalformedMessage
from millstream.protocol.schema import Message

if TYPE_CHECKING:
    from millstream.coordinator.group_shard import GroupShard, Replayer

NO_OFFSET = -1
_FIRST_VERSION_WITH_GROUP_NOT_FOUND = 9
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_LAST_MS = (1 << 63) - 1
_LONGEST_METADATA_WITH_EXPIRY = 8000
"""The old form of the record, the only one with an expiry, holds texts of up to 32,767 bytes."""


class Offsets:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self.by_group: ByGroup = {}
        self.forgetting = Forgetting(shard, self.by_group)
        self._unread: dict[bytes, bytes | None] = {}
        """While the log is loaded: the last value of each key, not yet decoded. A long log has few keys."""
        self._has_orphans = False

    # Records

    def replayers(self) -> "Mapping[int, Replayer]":
        return {RecordType.OFFSET_COMMIT: self._replay, RecordType.LEGACY_OFFSET_COMMIT: self._replay}

    def _replay(self, key: bytes, value: bytes | None) -> None:
        if self._shard.live:
            self._apply(key, value)
        else:
            self._unread[key] = value

    def _apply(self, key: bytes, value: bytes | None) -> None:
        group_id, topic, partition = read_offset_key(key)
        if value is None:
            self._remove(group_id, topic, partition)
            return
        committed = read_offset_value(value)
        if group_id not in self._shard.groups:
            self._shard.classic.add_simple_group(group_id)
        self.by_group.setdefault(group_id, {}).setdefault(topic, {})[partition] = committed

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.by_group.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
            if not topics:
                del self.by_group[group_id]

    def decode(self) -> None:
        """The log was replayed, by whoever loads it: what is left of it in the end is read."""
        unread, self._unread = self._unread, {}
        for key, value in unread.items():
            if value is not None:
                try:
                    self._apply(key, value)
                except MalformedMessage:
                    continue  # of a newer version than we know
        if unread:
            self._has_orphans = self.forgetting.has_orphans

    def loaded(self, now_ms: int) -> None:
        self.forgetting.begin(now_ms, has_orphans=self._has_orphans)

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        if deleted:
            forgotten = self.forgetting.topics_deleted(frozenset(deleted), now_ms)
            writes.add(*forgotten.records, then=forgotten.on_written)

    # Requests

    def commit(self, request: Message, version: int, now_ms: int) -> Outcome[dict[str, Any]]:
        """OffsetCommit; each partition of the request has its own error."""
        refused = ErrorCode.NONE
        try:
            self._check_commit(request, version, now_ms)
        except KafkaError as error:
            refused = error.code
        limit = self._shard.config()[settings.OFFSET_METADATA_MAX_BYTES]
        retention_ms = request.retention_time_ms
        expires_at_ms = NEVER if retention_ms == -1 else min(now_ms + retention_ms, _LAST_MS)
        if expires_at_ms != NEVER:
            limit = min(limit, _LONGEST_METADATA_WITH_EXPIRY)
        records: list[CoordinatorRecord] = []
        rows = []
        for wanted in request.topics:
            topic = self._topic(wanted, version)
            partitions = []
            for partition in wanted.partitions:
                index, metadata = partition.partition_index, partition.committed_metadata or ""
                if topic is None:
                    code = _unknown_topic(version)
                elif not 0 <= index < topic.partition_count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif refused and not self._may_commit_late(refused, request, topic, index):
                    code = refused
                elif len(metadata) > limit:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    code = ErrorCode.NONE
                    committed = CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                        now_ms,
                        expires_at_ms,
                        topic.id,
                    )
                    records.append(offset_record(request.group_id, topic.name, index, committed))
                partitions.append({"partition_index": index, "error_code": code})
            rows.append({"topic_id": wanted.topic_id, "name": wanted.name, "partitions": partitions})
        return Outcome({"topics": rows}, records)

    def _check_commit(self, request: Message, version: int, now_ms: int) -> None:
        generation = request.generation_id_or_member_epoch
        group = self._shard.groups.get(request.group_id)
        if group is None:
            # Without a generation it is a consumer that shares with nobody, or an admin: its commit makes the group.
            if generation < 0:
                return
            if version >= _FIRST_VERSION_WITH_GROUP_NOT_FOUND:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"Group {request.group_id} not found.")
        group.check_offset_commit(request.member_id, request.group_instance_id, generation, version)
        group.heard_from(request.member_id, now_ms)

    def _may_commit_late(self, refused: int, request: Message, topic: Topic, index: int) -> bool:
        if refused != ErrorCode.STALE_MEMBER_EPOCH:
            return False
        group = self._shard.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        return group is not None and group.may_commit_late(request.member_id, generation, topic.id, index)

    def fetch(self, wanted: Message, version: int) -> dict[str, Any]:
        """One group of OffsetFetch. In versions without groups the request itself is that group."""
        group = self._shard.groups.get(wanted.group_id)
        if group is not None and version >= _FIRST_VERSION_WITH_GROUP_NOT_FOUND:
            try:
                group.check_offset_fetch(wanted.member_id, wanted.member_epoch)
            except KafkaError as error:
                return {"group_id": wanted.group_id, "topics": [], "error_code": error.code}
        known = self.by_group.get(wanted.group_id, {}) if group is not None else {}
        if wanted.topics is None:
            topics = self._all_topics(known, version)
        else:
            seen: set[tuple[str | UUID, int]] = set()
            topics = [self._wanted_topic(topic, known, version, seen) for topic in wanted.topics]
        return {"group_id": wanted.group_id, "topics": topics, "error_code": ErrorCode.NONE}

    def _all_topics(self, known: Mapping[str, Partitions], version: int) -> list[dict[str, Any]]:
        rows = []
        for name, partitions in known.items():
            topic = self._shard.topics.get(name)
            if topic is None and version >= _FIRST_VERSION_WITH_TOPIC_IDS:
                continue  # there is no id to name it by
            topic_id = NO_TOPIC_ID if topic is None else topic.id
            shown = [_row(index, of_topic(committed, topic)) for index, committed in partitions.items()]
            rows.append({"name": name, "topic_id": topic_id, "partitions": shown})
        return rows

    def _wanted_topic(
        self, wanted: Message, known: Mapping[str, Partitions], version: int, seen: set[tuple[str | UUID, int]]
    ) -> dict[str, Any]:
        name, topic_id = wanted.name, NO_TOPIC_ID
        asked_by = wanted.topic_id if version >= _FIRST_VERSION_WITH_TOPIC_IDS else name
        indexes = _once_each(asked_by, wanted.partition_indexes, seen)
        topic = self._topic(wanted, version)
        if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            topic_id = wanted.topic_id
            if topic is None:
                rows = [_row(index, None, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes]
                return {"name": name, "topic_id": topic_id, "partitions": rows}
            name = topic.name
        partitions = known.get(name, {})
        rows = [_row(index, of_topic(partitions.get(index), topic)) for index in indexes]
        return {"name": name, "topic_id": topic_id, "partitions": rows}

    def delete(self, request: Message, now_ms: int) -> Outcome[dict[str, Any]]:
        """OffsetDelete; KafkaError if the group does not allow it at all."""
        group = self._shard.find(request.group_id)
        group.check_offset_delete()
        known = self.by_group.get(request.group_id, {})
        records: list[CoordinatorRecord] = []
        rows = []
        for wanted in request.topics:
            topic = self._shard.topics.get(wanted.name)
            partitions = []
            for partition in wanted.partitions:
                index = partition.partition_index
                code = ErrorCode.NONE
                if topic is None or not 0 <= index < topic.partition_count:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group.is_subscribed_to(wanted.name):
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif index in known.get(wanted.name, {}):
                    records.append(offset_record(request.group_id, wanted.name, index, None))
                partitions.append({"partition_index": index, "error_code": code})
            rows.append({"name": wanted.name, "partitions": partitions})
        return Outcome({"topics": rows}, records)

    def _topic(self, wanted: Message, version: int) -> Topic | None:
        if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            return self._shard.topics.by_id(wanted.topic_id)
        return self._shard.topics.get(wanted.name)


def _unknown_topic(version: int) -> ErrorCode:
    by_id = version >= _FIRST_VERSION_WITH_TOPIC_IDS
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _once_each(topic: str | UUID, asked: Iterable[int], seen: set[tuple[str | UUID, int]]) -> list[int]:
    """The partitions not asked for before: with its metadata, an offset is far longer than the question for it."""
    fresh = []
    for index in asked:
        if (topic, index) not in seen:
            seen.add((topic, index))
            fresh.append(index)
    return fresh


def _row(index: int, committed: CommittedOffset | None, code: int = ErrorCode.NONE) -> dict[str, Any]:
    if committed is None:
        return {"partition_index": index, "committed_offset": NO_OFFSET, "metadata": "", "error_code": code}
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
