"""The records of a consumer group, each made from what it tells of."""

from collections.abc import Collection

from millstream.node.coordination.core.outcome import CoordinatorRecord
from millstream.node.groups.core.consumer.assignment import Target, target_rows
from millstream.node.groups.core.consumer.member import Member
from millstream.node.groups.core.group_records import RecordType, group_record


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    value = {"epoch": epoch, "metadata_hash": metadata_hash}
    return group_record(RecordType.CONSUMER_GROUP_METADATA, {"group_id": group_id}, value)


def epoch_tombstone(group_id: str) -> CoordinatorRecord:
    return group_record(RecordType.CONSUMER_GROUP_METADATA, {"group_id": group_id}, None)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """For the record in which Kafka before 4.1 kept the topics that a group knew."""
    return group_record(RecordType.CONSUMER_GROUP_PARTITION_METADATA, {"group_id": group_id}, None)


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member.id}
    return group_record(RecordType.CONSUMER_GROUP_MEMBER_METADATA, key, member.metadata_value())


def member_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    return group_record(RecordType.CONSUMER_GROUP_MEMBER_METADATA, key, None)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    value = {"assignment_epoch": epoch, "assignment_timestamp": now_ms}
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, {"group_id": group_id}, value)


def target_epoch_tombstone(group_id: str) -> CoordinatorRecord:
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, {"group_id": group_id}, None)


def target_record(group_id: str, member_id: str, target: Target) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    value = {"topic_partitions": target_rows(target)}
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, key, value)


def target_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    return group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, key, None)


def assignment_record(group_id: str, member: Member) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member.id}
    return group_record(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key, member.assignment_value())


def assignment_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "member_id": member_id}
    return group_record(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key, None)


def pattern_record(
    group_id: str, pattern: str, topics: Collection[str], version: int, now_ms: int
) -> CoordinatorRecord:
    key = {"group_id": group_id, "regular_expression": pattern}
    value = {"topics": sorted(topics), "version": version, "timestamp": now_ms}
    return group_record(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, key, value)


def pattern_tombstone(group_id: str, pattern: str) -> CoordinatorRecord:
    key = {"group_id": group_id, "regular_expression": pattern}
    return group_record(RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION, key, None)


def forgotten_member(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """All that is written of one member, in the order in which Kafka deletes it."""
    return [
        assignment_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]
