"""Commits of offsets to records: OffsetCommit counts at once, TxnOffsetCommit when its transaction is committed."""

from typing import TYPE_CHECKING, Any

from millstream.config.table import groups as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.outcome import CoordinatorRecord, Outcome
from millstream.node.coordination.core.topic_catalog import Topic
from millstream.node.groups.core.offsets.offset_records import NEVER, CommittedOffset, offset_record

if TYPE_CHECKING:
    from millstream.node.groups.core.group_shard import GroupShard

FIRST_COMMIT_WITH_GROUP_NOT_FOUND = 9
FIRST_COMMIT_WITH_TOPIC_IDS = 10
_LAST_MS = (1 << 63) - 1
_LONGEST_METADATA_WITH_EXPIRY = 8000
"""The old form of the record, the only one with an expiry, holds texts of up to 32,767 bytes."""


class Committing:
    """One request: who commits for which group, and what."""

    __slots__ = ("_expires_at_ms", "_generation", "_limit", "_now_ms", "_records", "_refused", "_request", "_shard")

    def __init__(self, shard: "GroupShard", request: Message, generation: int, now_ms: int) -> None:
        self._shard = shard
        self._request = request
        self._generation = generation
        self._now_ms = now_ms
        self._refused = ErrorCode.NONE
        self._limit = shard.config()[settings.OFFSET_METADATA_MAX_BYTES]
        self._expires_at_ms = NEVER
        self._records: list[CoordinatorRecord] = []

    # The two requests

    def plain(self, version: int) -> Outcome[dict[str, Any]]:
        """OffsetCommit; each partition of the request has its own error."""
        request, by_id = self._request, version >= FIRST_COMMIT_WITH_TOPIC_IDS
        try:
            self._check_plain(version)
        except KafkaError as error:
            self._refused = error.code
        if request.retention_time_ms != -1:
            self._expires_at_ms = min(self._now_ms + request.retention_time_ms, _LAST_MS)
            self._limit = min(self._limit, _LONGEST_METADATA_WITH_EXPIRY)
        topics = self._shard.topics
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        rows = []
        for wanted in request.topics:
            topic = topics.by_id(wanted.topic_id) if by_id else topics.get(wanted.name)
            partitions = self._partitions(wanted, topic, unknown)
            rows.append({"topic_id": wanted.topic_id, "name": wanted.name, "partitions": partitions})
        return Outcome({"topics": rows}, self._records)

    def in_transaction(self) -> Outcome[dict[str, Any]]:
        """TxnOffsetCommit, the same for a producer who brings what the member consumed."""
        request = self._request
        try:
            self._check_transactional()
        except KafkaError as error:
            self._refused = error.code
        rows = []
        for wanted in request.topics:
            topic = self._shard.topics.get(wanted.name)
            partitions = self._partitions(wanted, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for row in partitions:
                if row["error_code"] == ErrorCode.STALE_MEMBER_EPOCH:  # a producer knows generations alone
                    row["error_code"] = ErrorCode.ILLEGAL_GENERATION
            rows.append({"name": wanted.name, "partitions": partitions})
        producer = ProducerIdentity(request.producer_id, request.producer_epoch)
        return Outcome({"topics": rows}, self._records, producer=producer)

    # Who may

    def _check_plain(self, version: int) -> None:
        request, generation = self._request, self._generation
        group = self._shard.groups.get(request.group_id)
        if group is None:
            # Without a generation it is a consumer that shares with nobody, or an admin: its commit makes the group.
            if generation < 0:
                return
            by_name = version >= FIRST_COMMIT_WITH_GROUP_NOT_FOUND
            code = ErrorCode.GROUP_ID_NOT_FOUND if by_name else ErrorCode.ILLEGAL_GENERATION
            raise KafkaError(code, f"Group {request.group_id} not found.")
        group.check_offset_commit(request.member_id, request.group_instance_id, generation, version)
        group.heard_from(request.member_id, self._now_ms)

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
        return group is not None and group.may_commit_late(self._request.member_id, self._generation, topic.id, index)

    # What

    def _partitions(self, wanted: Message, topic: Topic | None, unknown: ErrorCode) -> list[dict[str, Any]]:
        """Rows of the answer; what is right goes to the records."""
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
                code = ErrorCode.NONE
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
