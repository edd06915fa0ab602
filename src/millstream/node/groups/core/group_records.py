"""The records of `__consumer_offsets` to bytes and back, byte for byte as Kafka writes them (see `group.schema`).

Offset commits, by far the most of them, have a codec of their own in `offsets/offset_records`.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any

from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import Message, Schema, split_entries
from millstream.node.coordination.core.outcome import CoordinatorRecord

_INT16 = struct.Struct(">h")


class RecordType(IntEnum):
    """The number a key begins with; the names are those of the entries in `group.schema`."""

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


_WRITTEN_VERSIONS = {RecordType.GROUP_METADATA: 3, RecordType.OFFSET_COMMIT: 4}
"""The versions of values that Kafka 4.3 writes; 0 where nothing is said."""


@cache
def _schemas() -> dict[int, tuple[Schema, Schema]]:
    entries = split_entries(files("millstream.node.groups.core").joinpath("group.schema").read_text())
    keys = (Schema(text) for (kind, _), text in entries.items() if kind == "key")
    return {key.api_key: (key, Schema(entries["value", key.name])) for key in keys}


def record_type(key: bytes) -> int:
    """What kind of record this is, -1 if the key is too short to say."""
    return int(_INT16.unpack_from(key)[0]) if len(key) >= 2 else -1


def group_record(kind: RecordType, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> CoordinatorRecord:
    """A record of one type; `value` None is the tombstone that deletes the key."""
    key_schema, value_schema = _schemas()[kind]
    key_bytes = bytearray(_INT16.pack(kind))
    key_schema.write(key_bytes, key, 0)
    if value is None:
        return CoordinatorRecord(bytes(key_bytes), None)
    version = _WRITTEN_VERSIONS.get(kind, 0)
    value_bytes = bytearray(_INT16.pack(version))
    value_schema.write(value_bytes, value, version)
    return CoordinatorRecord(bytes(key_bytes), bytes(value_bytes))


def read_key(key: bytes) -> Message:
    """The fields of a key of a known type; MalformedMessage if the bytes are none."""
    cursor = Cursor(key, 2)
    return _schemas()[record_type(key)][0].read(cursor, 0)


def read_value(kind: int, value: bytes) -> Message:
    """The fields of a value; MalformedMessage if it is of a version that is not known."""
    schema = _schemas()[kind][1]
    version = record_type(value)
    if version not in schema.versions:
        raise MalformedMessage(f"value of {schema.name} has version {version}")
    return schema.read(Cursor(value, 2), version)
