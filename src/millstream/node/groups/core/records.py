"""The record formats of `__consumer_offsets`, as Kafka writes them (see `group.schema`).

Offset commits are the most frequent records, so they have a handwritten codec. Its bytes are those of `offset_commit`
in `group.schema`; the tests compare the two.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from millstream.formats.model.identifiers import NO_TOPIC_ID
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.structure import cached_uuid
from millstream.formats.records.varint import append_unsigned
from millstream.node.coordination.core.state_machine import CoordinatorRecord, RecordFormats


class RecordType(IntEnum):
    """The number that a key begins with. The names are those of the entries in `group.schema`."""

    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_PARTITION_METADATA = 4
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
    SHARE_GROUP_MEMBER_METADATA = 10
    SHARE_GROUP_METADATA = 11
    SHARE_GROUP_TARGET_ASSIGNMENT_METADATA = 12
    SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER = 13
    SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT = 14
    SHARE_GROUP_STATE_PARTITION_METADATA = 15
    CONSUMER_GROUP_REGULAR_EXPRESSION = 16
    STREAMS_GROUP_METADATA = 17
    STREAMS_GROUP_MEMBER_METADATA = 19
    STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA = 20
    STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER = 21
    STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT = 22
    STREAMS_GROUP_TOPOLOGY = 23


_WRITTEN_VERSIONS: dict[int, int] = {RecordType.GROUP_METADATA: 3, RecordType.OFFSET_COMMIT: 4}
"""The versions of values that Kafka 4.3 writes; 0 for the others."""


_FORMATS = RecordFormats("millstream.node.groups.core", "group.schema", _WRITTEN_VERSIONS)
group_record = _FORMATS.encode
read_key = _FORMATS.read_key
read_value = _FORMATS.read_value

_OFFSET_COMMIT: Final = 1
"""The number of RecordType.OFFSET_COMMIT."""
_KEY_HEAD: Final = struct.Struct(">hh")
"""The type of the record and the length of the group's id."""
_LENGTH: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_VALUE_HEAD: Final = struct.Struct(">hqi")
_TIME: Final = struct.Struct(">q")
_VERSION: Final = 4
_VERSION_WITH_EXPIRY: Final = 1
_NO_TAGS: Final = b"\x00"
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
_EMPTY_VALUE: Final = struct.Struct(">hqibq")
"""A value with empty metadata, without its tags."""
_TAGS_START: Final = _EMPTY_VALUE.size

NEVER: Final = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int = NEVER
    """Set if the client chose a retention, which only old versions of OffsetCommit allow."""
    topic_id: UUID = NO_TOPIC_ID


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group_bytes, topic_bytes = group_id.encode(), topic.encode()
    head, length = _KEY_HEAD.pack(_OFFSET_COMMIT, len(group_bytes)), _LENGTH.pack(len(topic_bytes))
    return b"".join((head, group_bytes, length, topic_bytes, _PARTITION.pack(partition)))


def offset_value(committed: CommittedOffset) -> bytes:
    offset, leader_epoch, metadata, committed_at_ms, expires_at_ms, topic_id = committed
    text = metadata.encode()
    if expires_at_ms != NEVER:
        head = struct.pack(">hq", _VERSION_WITH_EXPIRY, offset)
        return head + _LENGTH.pack(len(text)) + text + struct.pack(">qq", committed_at_ms, expires_at_ms)
    # The number: the methods of a UUID are plain Python, and this is done for each commit.
    number: int = topic_id.int
    tags = _TOPIC_ID_TAG + number.to_bytes(16, "big") if number else _NO_TAGS
    if not text:
        return _EMPTY_VALUE.pack(_VERSION, offset, leader_epoch, 1, committed_at_ms) + tags
    varint = bytearray()
    append_unsigned(varint, len(text) + 1)
    head = _VALUE_HEAD.pack(_VERSION, offset, leader_epoch)
    return b"".join((head, varint, text, _TIME.pack(committed_at_ms), tags))


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> CoordinatorRecord:
    """None makes a tombstone."""
    value = None if committed is None else offset_value(committed)
    return CoordinatorRecord(offset_key(group_id, topic, partition), value)


def read_offset_key(key: bytes) -> tuple[str, str, int]:
    """Group, topic, partition; MalformedMessage if the bytes are not an offset key."""
    try:
        topic_at = 4 + _LENGTH.unpack_from(key, 2)[0]
        partition_at = topic_at + 2 + _LENGTH.unpack_from(key, topic_at)[0]
        return (
            key[4:topic_at].decode(),
            key[topic_at + 2 : partition_at].decode(),
            _PARTITION.unpack_from(key, partition_at)[0],
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"not the key of an offset: {error}") from None


def read_offset_value(value: bytes) -> CommittedOffset:
    if len(value) > _TAGS_START and value[1] == _VERSION and value[14] == 1 and value[0] == 0:
        _, offset, leader_epoch, _, committed_at_ms = _EMPTY_VALUE.unpack_from(value)
        tags = value[_TAGS_START:]
        if tags == _NO_TAGS:
            return CommittedOffset(offset, leader_epoch, "", committed_at_ms)
        if len(tags) == 19 and tags.startswith(_TOPIC_ID_TAG):
            return CommittedOffset(offset, leader_epoch, "", committed_at_ms, NEVER, cached_uuid(tags[3:]))
    fields = read_value(RecordType.OFFSET_COMMIT, value)
    return CommittedOffset(
        fields.offset,
        fields.leader_epoch,
        fields.metadata,
        fields.commit_timestamp,
        fields.expire_timestamp,
        fields.topic_id,
    )
