"""OffsetCommit, OffsetFetch, OffsetDelete and expiry, over the offsets of every group in a shard.

Whether a member may commit is its group's to say; what is known of a topic is the catalog's.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millstream.config.table import groups as settings
from millstream.coordinator.group import Group
from millstream.coordinator.group_records import RecordType
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
_MOST_FORGOTTEN_AT_ONCE = 1000
"""Tombstones in one batch, so that a batch stays well below the largest record batch a log takes."""

_LAST_MS = (1 << 63) - 1
_LONGEST_METADATA_WITH_EXPIRY = 8000
"""The old form of the record, the only one with an expiry, holds texts of up to 32,767 bytes."""

Partitions = dict[int, CommittedOffset]


class Offsets:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self.by_group: dict[str, dict[str, Partitions]] = {}
        """Group, topic, partition."""
        self._unread: dict[bytes, bytes | None] = {}
        """While the log is loaded: the last value of each key, not yet decoded. A long log has few keys."""

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

    def loaded(self, now_ms: int) -> None:
        for key, value in self._unread.items():
            if value is not None:
                try:
                    self._apply(key, value)
                except MalformedMessage:
                    continue  # of a newer version than we know
        self._unread = {}
        self._schedule_expiry(now_ms)

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        """Offsets of a topic that is gone mean nothing any more."""
        if deleted:
            writes.extend(self._forget_topics(frozenset(deleted), now_ms))

    def _forget_topics(self, deleted: frozenset[str], now_ms: int) -> list[CoordinatorRecord]:
        records: list[CoordinatorRecord] = []
        for group_id, topics in self.by_group.items():
            for name in deleted & topics.keys():
                topic = self._shard.topics.get(name)  # there may be a new one of the same name by now
                old = [i for i, committed in topics[name].items() if topic is None or committed.topic_id != topic.id]
                records += _tombstones(group_id, name, old)
            if len(records) >= _MOST_FORGOTTEN_AT_ONCE:

                def go_on(at_ms: int) -> Outcome[None]:
                    return Outcome(None, self._forget_topics(deleted, at_ms))

                self._shard.timers.set(("offsets of deleted topics", deleted), now_ms + 1, go_on)
                break
        return records

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
            topics = [self._wanted_topic(topic, known, version) for topic in wanted.topics]
        return {"group_id": wanted.group_id, "topics": topics, "error_code": ErrorCode.NONE}

    def _all_topics(self, known: Mapping[str, Partitions], version: int) -> list[dict[str, Any]]:
        rows = []
        for name, partitions in known.items():
            topic = self._shard.topics.get(name)
            if topic is None and version >= _FIRST_VERSION_WITH_TOPIC_IDS:
                continue  # there is no id to name it by
            topic_id = NO_TOPIC_ID if topic is None else topic.id
            shown = [_row(index, _of_topic(committed, topic)) for index, committed in partitions.items()]
            rows.append({"name": name, "topic_id": topic_id, "partitions": shown})
        return rows

    def _wanted_topic(self, wanted: Message, known: Mapping[str, Partitions], version: int) -> dict[str, Any]:
        name, topic_id = wanted.name, NO_TOPIC_ID
        topic = self._topic(wanted, version)
        if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            topic_id = wanted.topic_id
            if topic is None:
                rows = [_row(index, None, ErrorCode.UNKNOWN_TOPIC_ID) for index in wanted.partition_indexes]
                return {"name": name, "topic_id": topic_id, "partitions": rows}
            name = topic.name
        partitions = known.get(name, {})
        rows = [_row(index, _of_topic(partitions.get(index), topic)) for index in wanted.partition_indexes]
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

    # The end of offsets

    def deletion_records(self, group_id: str) -> list[CoordinatorRecord]:
        """Tombstones for all offsets of a group."""
        topics = self.by_group.get(group_id, {})
        return [record for topic, partitions in topics.items() for record in _tombstones(group_id, topic, partitions)]

    def _schedule_expiry(self, now_ms: int) -> None:
        interval_ms = self._shard.config()[settings.OFFSETS_RETENTION_CHECK_INTERVAL_MS]
        self._shard.timers.set("offset expiry", now_ms + interval_ms, self._expiry_due)

    def _expiry_due(self, now_ms: int) -> Outcome[None]:
        self._schedule_expiry(now_ms)
        return self.expire(now_ms)

    def expire(self, now_ms: int) -> Outcome[None]:
        """Forgets what has aged, and groups that are empty and have nothing left."""
        records: list[CoordinatorRecord] = []
        for group in list(self._shard.groups.values()):
            kept = self._expire_group(group, now_ms, records)
            if not kept and group.is_empty and group.vanishes_without_offsets:
                records += group.deletion_records()
            if len(records) >= _MOST_FORGOTTEN_AT_ONCE:
                # The rest has its turn in a moment; one huge batch would not fit into the log.
                self._shard.timers.set("offset expiry", now_ms + 1, self._expiry_due)
                break
        return Outcome(None, records)

    def _expire_group(self, group: Group, now_ms: int, records: list[CoordinatorRecord]) -> bool:
        """Adds tombstones; returns whether any offset is kept."""
        retention_ms = self._shard.config()[settings.OFFSETS_RETENTION_MINUTES] * 60_000
        kept = False
        for topic, partitions in self.by_group.get(group.group_id, {}).items():
            if group.is_subscribed_to(topic):
                kept = True
                continue
            expired = [i for i, committed in partitions.items() if _is_expired(committed, group, now_ms, retention_ms)]
            kept = kept or len(expired) < len(partitions)
            records += _tombstones(group.group_id, topic, expired)
        return kept


def _is_expired(committed: CommittedOffset, group: Group, now_ms: int, retention_ms: int) -> bool:
    base_ms = group.expiry_base_ms(committed.committed_at_ms)
    if base_ms is None:
        return False
    if committed.expires_at_ms != NEVER:
        return now_ms >= committed.expires_at_ms
    return now_ms - base_ms >= retention_ms


def _tombstones(group_id: str, topic: str, partitions: Iterable[int]) -> list[CoordinatorRecord]:
    return [offset_record(group_id, topic, partition, None) for partition in partitions]


def _unknown_topic(version: int) -> ErrorCode:
    by_id = version >= _FIRST_VERSION_WITH_TOPIC_IDS
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _of_topic(committed: CommittedOffset | None, topic: Topic | None) -> CommittedOffset | None:
    """None for an offset that was committed for another topic of the same name."""
    if committed is None or topic is None or NO_TOPIC_ID in (committed.topic_id, topic.id):
        return committed
    return committed if committed.topic_id == topic.id else None


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
