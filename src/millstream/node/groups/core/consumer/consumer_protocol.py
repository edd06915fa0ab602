"""The subscription and the assignment that consumers of the classic protocol put into JoinGroup and SyncGroup."""

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from uuid import UUID

from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import Message, Schema, split_entries
from millstream.node.coordination.core.topic_catalog import TopicCatalog

PROTOCOL_TYPE = "consumer"
_INT16 = struct.Struct(">h")


@cache
def _schema(name: str) -> Schema:
    text = files("millstream.node.groups.core.consumer").joinpath("consumer.schema").read_text()
    return Schema(split_entries(text)["data", name])


def _read(name: str, data: bytes) -> Message:
    schema = _schema(name)
    version = subscription_version(data)
    if version < 0:
        raise MalformedMessage(f"{name} of version {version}")
    return schema.read(Cursor(data, 2), min(version, schema.versions.high))


def subscription_version(data: bytes) -> int:
    if len(data) < _INT16.size:
        raise MalformedMessage("no version")
    return int(_INT16.unpack_from(data)[0])


def read_subscription(data: bytes) -> Message:
    """MalformedMessage if it is none."""
    return _read("subscription", data)


def read_assignment(data: bytes) -> Message:
    """MalformedMessage if it is none; no bytes at all are an empty assignment."""
    return _read("assignment", data) if data else _schema("assignment").root.new()


def assignment_bytes(partitions: Mapping[UUID, Iterable[int]], topics: TopicCatalog, version: int) -> bytes:
    """Topics that are gone have no name to be told by, and are left out."""
    rows = [
        {"topic": topic.name, "partitions": sorted(numbers)}
        for topic_id, numbers in partitions.items()
        if (topic := topics.by_id(topic_id)) is not None
    ]
    schema = _schema("assignment")
    version = min(version, schema.versions.high)
    return _INT16.pack(version) + schema.encode({"assigned_partitions": rows}, version)


def by_topic_id(rows: Iterable[Message], topics: TopicCatalog) -> dict[UUID, set[int]]:
    """Partitions by the ids of their topics, of those that there are."""
    found: dict[UUID, set[int]] = {}
    for row in rows:
        topic = topics.get(row.topic)
        numbers = set() if topic is None else {n for n in row.partitions if 0 <= n < topic.partition_count}
        if topic is not None and numbers:
            found.setdefault(topic.id, set()).update(numbers)
    return found
