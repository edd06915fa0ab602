"""OffsetCommit (8) by hand, for the broker: reads the request and writes the response, in all versions.

Consumers commit all the time, so it is one of the most frequent requests. The bytes are those of `offset_commit` in
`wire.schema`, and the fields have its names; the tests compare the two. A long request is still read by the schema, in
steps; `request_of` makes the same request of it.
"""

import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Final
from uuid import UUID

from millstream.formats.model.identifiers import NO_TOPIC_ID
from millstream.formats.protocol.primitives import Cursor, MalformedMessage, skip_tags
from millstream.formats.protocol.structure import cached_uuid
from millstream.formats.protocol.wire_types import (
    OffsetCommitRequest,
    OffsetCommitRequestTopics,
    TxnOffsetCommitRequestTopics,
)
from millstream.formats.records.varint import append_unsigned, read_unsigned

FIRST_WITH_THROTTLE_TIME: Final = 3
LAST_WITH_RETENTION_TIME: Final = 4
FIRST_WITH_LEADER_EPOCH: Final = 6
FIRST_WITH_INSTANCE: Final = 7
FIRST_FLEXIBLE: Final = 8
FIRST_WITH_TOPIC_ID: Final = 10

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_PARTITION: Final = struct.Struct(">iqi")
_PARTITION_WITHOUT_EPOCH: Final = struct.Struct(">iq")
_ROW: Final = struct.Struct(">ih")
_ROW_FLEXIBLE: Final = struct.Struct(">ihx")
"""With the empty tagged fields."""
_UUID_BYTES: Final = 16
_NULL: Final = -1


class CommitPartition:
    FIELDS: ClassVar[tuple[str, ...]] = (
        "partition_index",
        "committed_offset",
        "committed_leader_epoch",
        "committed_metadata",
    )

    def __init__(
        self, partition_index: int = 0, offset: int = 0, leader_epoch: int = -1, metadata: str | None = ""
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = offset
        self.committed_leader_epoch = leader_epoch
        self.committed_metadata = metadata


class CommitTopic:
    FIELDS: ClassVar[tuple[str, ...]] = ("topic_id", "name", "partitions")

    def __init__(self) -> None:
        self.topic_id: UUID = NO_TOPIC_ID
        self.name = ""
        self.partitions: list[CommitPartition] = []


class CommitRequest:
    FIELDS: ClassVar[tuple[str, ...]] = (
        "group_id",
        "generation_id_or_member_epoch",
        "member_id",
        "group_instance_id",
        "retention_time_ms",
        "topics",
    )

    def __init__(self) -> None:
        self.group_id = ""
        self.generation_id_or_member_epoch = -1
        self.member_id = ""
        self.group_instance_id: str | None = None
        self.retention_time_ms = -1
        self.topics: list[CommitTopic] = []


def request_of(message: OffsetCommitRequest) -> CommitRequest:
    """The request that was read by the schema."""
    made = CommitRequest()
    made.group_id = message.group_id
    made.generation_id_or_member_epoch = message.generation_id_or_member_epoch
    made.member_id = message.member_id
    made.group_instance_id = message.group_instance_id
    made.retention_time_ms = message.retention_time_ms
    for topic in message.topics:
        row = topic_of(topic)
        row.topic_id = topic.topic_id
        made.topics.append(row)
    return made


def topic_of(message: OffsetCommitRequestTopics | TxnOffsetCommitRequestTopics) -> CommitTopic:
    """A topic of OffsetCommit or of TxnOffsetCommit, which have the same partitions."""
    made = CommitTopic()
    made.name = message.name
    for each in message.partitions:
        made.partitions.append(
            CommitPartition(
                each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata
            )
        )
    return made


# Reading


def read_request(cursor: Cursor, version: int) -> CommitRequest:
    """The request at the cursor, which is moved behind it. Raises MalformedMessage, as the schema does."""
    try:
        return _read(cursor, version, version >= FIRST_FLEXIBLE)
    except (IndexError, struct.error):
        raise MalformedMessage(f"the message continues after its end at {cursor.end}") from None
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"string is not UTF-8: {error.reason}") from None


def _read(cursor: Cursor, version: int, flexible: bool) -> CommitRequest:
    buffer = cursor.buffer
    request = CommitRequest()
    request.group_id = _text(cursor, flexible)
    request.generation_id_or_member_epoch = _INT32.unpack_from(buffer, cursor.position)[0]
    cursor.position += 4
    request.member_id = _text(cursor, flexible)
    if version >= FIRST_WITH_INSTANCE:
        request.group_instance_id = _nullable_text(cursor, flexible)
    elif version <= LAST_WITH_RETENTION_TIME:
        request.retention_time_ms = _INT64.unpack_from(buffer, cursor.position)[0]
        cursor.position += 8
    for _ in range(_count(cursor, flexible)):
        request.topics.append(_read_topic(cursor, version, flexible))
    if flexible:
        _skip_tags(cursor)
    if cursor.position > cursor.end:
        raise MalformedMessage(f"{cursor.position - cursor.end} bytes are missing at {cursor.end}")
    return request


def _read_topic(cursor: Cursor, version: int, flexible: bool) -> CommitTopic:
    buffer = cursor.buffer
    topic = CommitTopic()
    if version >= FIRST_WITH_TOPIC_ID:
        start = cursor.take(_UUID_BYTES)
        topic.topic_id = cached_uuid(bytes(buffer[start : start + _UUID_BYTES]))
    else:
        topic.name = _text(cursor, flexible)
    partitions = topic.partitions
    for _ in range(_count(cursor, flexible)):
        position, epoch = cursor.position, -1
        if version >= FIRST_WITH_LEADER_EPOCH:
            index, offset, epoch = _PARTITION.unpack_from(buffer, position)
            cursor.position = position + 16
        else:
            index, offset = _PARTITION_WITHOUT_EPOCH.unpack_from(buffer, position)
            cursor.position = position + 12
        partitions.append(CommitPartition(index, offset, epoch, _nullable_text(cursor, flexible)))
        if flexible:
            _skip_tags(cursor)
    if flexible:
        _skip_tags(cursor)
    return topic


def _text(cursor: Cursor, flexible: bool) -> str:
    text = _nullable_text(cursor, flexible)
    if text is None:
        raise MalformedMessage("null or negative length where a string is required")
    return text


def _nullable_text(cursor: Cursor, flexible: bool) -> str | None:
    buffer, position = cursor.buffer, cursor.position
    if flexible:
        length, position = read_unsigned(buffer, position)
        length -= 1
    else:
        length = _INT16.unpack_from(buffer, position)[0]
        position += 2
    cursor.position = position
    if length == 0:
        return ""
    if length < 0:
        if length != _NULL:
            raise MalformedMessage("null or negative length where a string is required")
        return None
    if length > cursor.longest_text:
        cursor.text_length(length)
    start = cursor.take(length)
    return str(buffer[start : start + length], "utf-8")


def _count(cursor: Cursor, flexible: bool) -> int:
    if flexible:
        count, cursor.position = read_unsigned(cursor.buffer, cursor.position)
        count -= 1
    else:
        count = _INT32.unpack_from(cursor.buffer, cursor.position)[0]
        cursor.position += 4
    if count < 0:
        raise MalformedMessage("null or negative length where an array is required")
    return cursor.array_count(count)


def _skip_tags(cursor: Cursor) -> None:
    position = cursor.position
    if cursor.buffer[position]:
        cursor.position = skip_tags(cursor.buffer, position, cursor.end)
    else:
        cursor.position = position + 1


# Writing


def write_response(out: bytearray, values: Mapping[str, Any], version: int) -> None:
    flexible = version >= FIRST_FLEXIBLE
    if version >= FIRST_WITH_THROTTLE_TIME:
        out += _INT32.pack(values.get("throttle_time_ms", 0))
    topics = values["topics"]
    _write_count(out, len(topics), flexible)
    for topic in topics:
        if version >= FIRST_WITH_TOPIC_ID:
            number: int = topic["topic_id"].int
            out += number.to_bytes(_UUID_BYTES, "big")
        else:
            name: str = topic["name"]
            encoded = name.encode()
            if flexible:
                append_unsigned(out, len(encoded) + 1)
            else:
                out += _INT16.pack(len(encoded))
            out += encoded
        partitions = topic["partitions"]
        _write_count(out, len(partitions), flexible)
        pack = _ROW_FLEXIBLE.pack if flexible else _ROW.pack
        for row in partitions:
            out += pack(row["partition_index"], row["error_code"])
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        append_unsigned(out, count + 1)
    else:
        out += _INT32.pack(count)
