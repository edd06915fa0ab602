"""What cluster loads ask over raw sockets: Metadata v12 and DescribeQuorum v0, written by hand like all of `wire`."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.compare import wire

_NO_TOPIC_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition in a Metadata response."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return self.leader >= 0 and set(self.replicas) == set(self.in_sync)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A Metadata response: the brokers' addresses, and the partitions of each topic by index."""

    brokers: Mapping[int, str]
    topics: Mapping[str, Mapping[int, PartitionRow]]


def metadata_request(topic: str | None) -> bytes:
    """For one topic, or for all; never creates one."""
    if topic is None:
        topics = b"\0"
    else:
        topics = wire.uvarint(2) + _NO_TOPIC_ID + wire.compact(topic.encode()) + b"\0"
    no_creation, no_authorized_operations = b"\0", b"\0"
    return wire.frame(3, 12, topics + no_creation + no_authorized_operations + b"\0")


def parse_metadata(response: bytes) -> ClusterMetadata:
    reader = _Reader(memoryview(response), 4 + 1 + 4)  # correlation id, tags, throttle time
    brokers = {}
    for _ in range(reader.count()):
        node_id = reader.int32()
        host = reader.text()
        brokers[node_id] = f"{host}:{reader.int32()}"
        reader.text()
        reader.tags()
    reader.text()
    reader.int32()
    topics: dict[str, dict[int, PartitionRow]] = {}
    for _ in range(reader.count()):
        reader.int16()
        name = reader.text()
        reader.skip(16 + 1)
        rows = topics[name] = {}
        for _ in range(reader.count()):
            reader.int16()
            index, leader, _ = reader.int32(), reader.int32(), reader.int32()
            replicas, in_sync, _ = reader.int32s(), reader.int32s(), reader.int32s()
            rows[index] = PartitionRow(leader, replicas, in_sync)
            reader.tags()
        reader.int32()
        reader.tags()
    return ClusterMetadata(brokers, topics)


def describe_quorum_request() -> bytes:
    partition = struct.pack(">i", 0) + b"\0"
    topic = wire.compact(b"__cluster_metadata") + wire.uvarint(2) + partition + b"\0"
    return wire.frame(55, 0, wire.uvarint(2) + topic + b"\0")


def parse_quorum_leader(response: bytes) -> int:
    """The node that is the active controller."""
    reader = _Reader(memoryview(response), 4 + 1)
    error = reader.int16()
    if error:
        raise RuntimeError(f"DescribeQuorum responded with error {error}")
    reader.count()
    reader.text()
    reader.count()
    reader.int32()
    error = reader.int16()
    if error:
        raise RuntimeError(f"DescribeQuorum responded with error {error} for the metadata partition")
    return reader.int32()


class _Reader:
    """A position in a response of a flexible version."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def int16(self) -> int:
        self._at += 2
        return int(struct.unpack_from(">h", self._data, self._at - 2)[0])

    def int32(self) -> int:
        self._at += 4
        return int(struct.unpack_from(">i", self._data, self._at - 4)[0])

    def count(self) -> int:
        length, self._at = wire.read_uvarint(self._data, self._at)
        return max(length - 1, 0)

    def int32s(self) -> tuple[int, ...]:
        length = self.count()
        self._at += 4 * length
        return struct.unpack_from(f">{length}i", self._data, self._at - 4 * length)

    def text(self) -> str:
        length = self.count()
        self._at += length
        return bytes(self._data[self._at - length : self._at]).decode()

    def skip(self, size: int) -> None:
        self._at += size

    def tags(self) -> None:
        """Tagged fields are passed over."""
        count, self._at = wire.read_uvarint(self._data, self._at)
        for _ in range(count):
            _, self._at = wire.read_uvarint(self._data, self._at)
            length, self._at = wire.read_uvarint(self._data, self._at)
            self._at += length
