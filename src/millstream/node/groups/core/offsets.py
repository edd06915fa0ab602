"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete, for all groups of a shard.

The group decides whether a member may commit. The catalog has the topics. Deletion of offsets, and the pending offsets
of open transactions, are in `offset_expiry.py`. OffsetCommit counts at once, TxnOffsetCommit when its transaction is
committed.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, ProducerIdentity
from millstream.formats.protocol.offset_commit import CommitRequest, CommitTopic, request_of, topic_of
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import Message
from millstream.formats.protocol.wire_types import OffsetCommitRequest, OffsetDeleteRequest, TxnOffsetCommitRequest
from millstream.node.coordination.core.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    Topic,
    Writes,
    record_type,
)
from millstream.node.groups.core.offset_expiry import ByGroup, OffsetExpiry, Partitions, PendingOffsets, if_same_topic
from millstream.node.groups.core.records import (
    NEVER,
    CommittedOffset,
    RecordType,
    offset_key,
    offset_record,
    read_offset_key,
    read_offset_value,
)

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard, Replayer


FIRST_COMMIT_WITH_GROUP_NOT_FOUND = 9
FIRST_COMMIT_WITH_TOPIC_IDS = 10
_LAST_MS = (1 << 63) - 1
_NONE: Final = ErrorCode.NONE
_MAX_METADATA_LENGTH_WITH_EXPIRY = 8000
"""The old version of the record, the only one with an expiry, holds texts of up to 32,767 bytes."""


class OffsetCommit:
    """One request that commits offsets of a group."""

    __slots__ = ("_expires_at_ms", "_generation", "_limit", "_now_ms", "_records", "_refused", "_request", "_shard")

    def __init__(self, shard: "GroupShard", request: Any, generation: int, now_ms: int) -> None:
        self._shard = shard
        self._request = request
        self._generation = generation
        self._now_ms = now_ms
        self._refused = _NONE
        self._limit = shard.config()[settings.OFFSET_METADATA_MAX_BYTES]
        self._expires_at_ms = NEVER
        self._records: list[CoordinatorRecord] = []

    # The two APIs

    def plain(self, version: int) -> CoordinatorResult[dict[str, Any]]:
        """OffsetCommit. Each partition of the response has its own error."""
        request: CommitRequest = self._request
        by_id = version >= FIRST_COMMIT_WITH_TOPIC_IDS
        try:
            self._check_plain(request, version)
        except KafkaError as error:
            self._refused = error.code
        if request.retention_time_ms != -1:
            self._expires_at_ms = min(self._now_ms + request.retention_time_ms, _LAST_MS)
            self._limit = min(self._limit, _MAX_METADATA_LENGTH_WITH_EXPIRY)
        topics = self._shard.topics
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        rows = []
        for wanted in request.topics:
            topic = topics.by_id(wanted.topic_id) if by_id else topics.get(wanted.name)
            partitions = self._partitions(wanted, topic, unknown)
            rows.append({"topic_id": wanted.topic_id, "name": wanted.name, "partitions": partitions})
        return CoordinatorResult({"topics": rows}, self._records)

    def in_transaction(self) -> CoordinatorResult[dict[str, Any]]:
        """TxnOffsetCommit: a producer commits the offsets that a member consumed."""
        request = self._request
        try:
            self._check_transactional()
        except KafkaError as error:
            self._refused = error.code
        rows = []
        for wanted in request.topics:
            topic = self._shard.topics.get(wanted.name)
            partitions = self._partitions(topic_of(wanted), topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for row in partitions:
                if row["error_code"] == ErrorCode.STALE_MEMBER_EPOCH:  # producers only know generations
                    row["error_code"] = ErrorCode.ILLEGAL_GENERATION
            rows.append({"name": wanted.name, "partitions": partitions})
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        return CoordinatorResult({"topics": rows}, self._records, producer=producer)

    # Permission

    def _check_plain(self, request: CommitRequest, version: int) -> None:
        generation = self._generation
        group = self._shard.groups.get(request.group_id)
        if group is None:
            # A commit without a generation is from a consumer without a group membership, or from an admin. It creates
            # the group.
            if generation < 0:
                return
            by_name = version >= FIRST_COMMIT_WITH_GROUP_NOT_FOUND
            code = ErrorCode.GROUP_ID_NOT_FOUND if by_name else ErrorCode.ILLEGAL_GENERATION
            raise KafkaError(code, f"Group {request.group_id} not found.")
        group.check_offset_commit(request.member_id, request.group_instance_id, generation, version)
        group.record_activity(request.member_id, self._now_ms)

    def _check_transactional(self) -> None:
        request, generation = self._request, self._generation
        group = self._shard.groups.get(request.group_id)
        if group is not None:
            group.check_transactional_commit(request.member_id, request.group_instance_id, generation)
        elif generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"Group {request.group_id} not found.")

    def _may_commit_late(self, topic: Topic, index: int) -> bool:
        if self._refused != ErrorCode.STALE_MEMBER_EPOCH:
            return False
        group = self._shard.groups.get(self._request.group_id)
        return group is not None and group.may_commit_late(self._request.member_id, self._generation, topic, index)

    # Partitions

    def _partitions(self, wanted: CommitTopic, topic: Topic | None, unknown: ErrorCode) -> list[dict[str, Any]]:
        """Rows of the response; accepted offsets are added to the records."""
        rows = []
        group_id, now_ms, refused, limit = self._request.group_id, self._now_ms, self._refused, self._limit
        for partition in wanted.partitions:
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            if topic is None:
                code = unknown
            elif not 0 <= index < topic.partition_count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif refused and not self._may_commit_late(topic, index):
                code = refused
            elif len(metadata) > limit:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                code = _NONE
                committed = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    now_ms,
                    self._expires_at_ms,
                    topic.id,
                )
                self._records.append(offset_record(group_id, topic.name, index, committed))
            rows.append({"partition_index": index, "error_code": code})
        return rows


NO_OFFSET = -1
_FIRST_VERSION_WITH_GROUP_NOT_FOUND = 9
_FIRST_VERSION_WITH_TOPIC_IDS = 10
_KEY_TYPE = struct.pack(">h", RecordType.OFFSET_COMMIT)


class Offsets:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard
        self.by_group: ByGroup = {}
        self.pending = PendingOffsets()
        self.expiry = OffsetExpiry(shard, self.by_group, self.pending)
        self._unread: dict[bytes, bytes | None] = {}
        """While the log is loaded: the last value of each key, not decoded. A long log has few keys."""
        self._has_orphans = False

    # Records

    def replayers(self) -> "Mapping[int, Replayer]":
        return {RecordType.OFFSET_COMMIT: self._replay, RecordType.LEGACY_OFFSET_COMMIT: self._replay_legacy}

    def _replay(self, key: bytes, value: bytes | None) -> None:
        if self.pending:
            if value is None:
                self.pending.drop(key)
            else:
                self.pending.supersede(key)
        if self._shard.live:
            self._apply(key, value)
        else:
            self._unread[key] = value

    def _replay_legacy(self, key: bytes, value: bytes | None) -> None:
        """The oldest record type of an offset; its fields are those of the current type."""
        self._replay(_KEY_TYPE + key[len(_KEY_TYPE) :], value)

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """A record of a transaction. As in Kafka, a deletion does not wait for the end of the transaction."""
        if record_type(key) == RecordType.LEGACY_OFFSET_COMMIT:
            key = _KEY_TYPE + key[len(_KEY_TYPE) :]
        if value is None:
            self._replay(key, None)
            return
        if self._shard.live:
            self._check_pending(key, [value])
        self.pending.add(producer_id, key, value)

    def _check_pending(self, key: bytes, values: Iterable[bytes]) -> None:
        """MalformedMessage if a record cannot be read. Creates the group if it does not exist."""
        group_id, _, _ = read_offset_key(key)
        for value in values:
            read_offset_value(value)
        if group_id not in self._shard.groups:
            self._shard.classic.add_simple_group(group_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for key, value in self.pending.end(producer_id, committed=committed):
            if self._shard.live:
                self._apply(key, value)
            else:
                self._unread[key] = value

    def has_open_transaction(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether the end of a transaction may change the offset."""
        return bool(self.pending) and offset_key(group_id, topic, partition) in self.pending

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
        """Decodes the last value of each key, after the log was replayed."""
        unread, self._unread = self._unread, {}
        for key, value in unread.items():
            if value is not None:
                try:
                    self._apply(key, value)
                except MalformedMessage:
                    continue  # written by a newer version
        had_pending = bool(self.pending)
        for key, values in tuple(self.pending):
            try:
                self._check_pending(key, values)
            except MalformedMessage:
                self.pending.drop(key)
        if unread or had_pending:
            self._has_orphans = self.expiry.has_orphans

    def loaded(self, now_ms: int) -> None:
        self.expiry.begin(now_ms, has_orphans=self._has_orphans)

    def topics_changed(self, deleted: Collection[str], writes: Writes, now_ms: int) -> None:
        if deleted:
            forgotten = self.expiry.topics_deleted(frozenset(deleted), now_ms)
            writes.add(*forgotten.records, then=forgotten.on_written)

    # Requests

    def commit(
        self, request: CommitRequest | OffsetCommitRequest, version: int, now_ms: int
    ) -> CoordinatorResult[dict[str, Any]]:
        """OffsetCommit; see `OffsetCommit.plain`."""
        given = request if isinstance(request, CommitRequest) else request_of(request)
        return OffsetCommit(self._shard, given, given.generation_id_or_member_epoch, now_ms).plain(version)

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, now_ms: int) -> CoordinatorResult[dict[str, Any]]:
        """TxnOffsetCommit; see `OffsetCommit.in_transaction`."""
        return OffsetCommit(self._shard, request, request.generation_id, now_ms).in_transaction()

    def fetch(self, wanted: Message, version: int, *, require_stable: bool = False) -> dict[str, Any]:
        """One group of OffsetFetch. In versions without groups the request itself is that group.

        With `require_stable`, an offset that an open transaction may change has the error UNSTABLE_OFFSET_COMMIT.
        """
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
        if require_stable and self.pending:
            self._hide_unstable(wanted.group_id, topics)
        return {"group_id": wanted.group_id, "topics": topics, "error_code": ErrorCode.NONE}

    def _hide_unstable(self, group_id: str, topics: list[dict[str, Any]]) -> None:
        for topic in topics:
            topic["partitions"] = [
                _row(row["partition_index"], None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if self.has_open_transaction(group_id, topic["name"], row["partition_index"])
                else row
                for row in topic["partitions"]
            ]

    def _all_topics(self, known: Mapping[str, Partitions], version: int) -> list[dict[str, Any]]:
        rows = []
        for name, partitions in known.items():
            topic = self._shard.topics.get(name)
            if topic is None and version >= _FIRST_VERSION_WITH_TOPIC_IDS:
                continue  # the response would need its id
            topic_id = NO_TOPIC_ID if topic is None else topic.id
            shown = [_row(index, if_same_topic(committed, topic)) for index, committed in partitions.items()]
            rows.append({"name": name, "topic_id": topic_id, "partitions": shown})
        return rows

    def _wanted_topic(
        self, wanted: Message, known: Mapping[str, Partitions], version: int, seen: set[tuple[str | UUID, int]]
    ) -> dict[str, Any]:
        name, topic_id = wanted.name, NO_TOPIC_ID
        topic_key = wanted.topic_id if version >= _FIRST_VERSION_WITH_TOPIC_IDS else name
        indexes = _once_each(topic_key, wanted.partition_indexes, seen)
        topic = self._topic(wanted, version)
        if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            topic_id = wanted.topic_id
            if topic is None:
                rows = [_row(index, None, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes]
                return {"name": name, "topic_id": topic_id, "partitions": rows}
            name = topic.name
        partitions = known.get(name, {})
        rows = [_row(index, if_same_topic(partitions.get(index), topic)) for index in indexes]
        return {"name": name, "topic_id": topic_id, "partitions": rows}

    def delete(self, request: OffsetDeleteRequest, now_ms: int) -> CoordinatorResult[dict[str, Any]]:
        """OffsetDelete; KafkaError if the group does not allow it."""
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
                elif index in known.get(wanted.name, {}) or self.has_open_transaction(
                    request.group_id, wanted.name, index
                ):
                    records.append(offset_record(request.group_id, wanted.name, index, None))
                partitions.append({"partition_index": index, "error_code": code})
            rows.append({"name": wanted.name, "partitions": partitions})
        return CoordinatorResult({"topics": rows}, records)

    def _topic(self, wanted: Message, version: int) -> Topic | None:
        if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            return self._shard.topics.by_id(wanted.topic_id)
        return self._shard.topics.get(wanted.name)


def _once_each(topic: str | UUID, requested: Iterable[int], seen: set[tuple[str | UUID, int]]) -> list[int]:
    """Each partition once: with its metadata, a row of the response is much longer than the request."""
    fresh = []
    for index in requested:
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
