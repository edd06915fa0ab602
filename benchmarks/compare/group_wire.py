"""The requests of group members, of both protocols, and what their responses say; by hand, for the reason `wire` gives.

JoinGroup v9, SyncGroup v5, Heartbeat v4, LeaveGroup v5 and ConsumerGroupHeartbeat v1: all of them flexible versions.
FindCoordinator v0 only to make a broker set up its coordinator.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from benchmarks.compare.wire import compact, frame, read_uvarint, uvarint

_FIND_COORDINATOR, _JOIN, _HEARTBEAT, _LEAVE, _SYNC, _CONSUMER_HEARTBEAT = 10, 11, 12, 13, 14, 68
_NULL, _NO_TAGS = b"\0", b"\0"
_PROTOCOL_TYPE, _PROTOCOL_NAME = "consumer", "range"
_REBALANCE_TIMEOUT_MS = 60_000
_SESSION_TIMEOUT_MS = 45_000

JOIN_EPOCH, LEAVE_EPOCH = 0, -1


class ResponseFields:
    """Reads the fields of one response to a flexible request, in order."""

    def __init__(self, response: bytes) -> None:
        self._data = memoryview(response)
        self._at = 4  # the correlation id
        self.skip_tags()

    def int8(self) -> int:
        return self._number(">b", 1)

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def raw(self, length: int) -> bytes:
        self._at += length
        return bytes(self._data[self._at - length : self._at])

    def count(self) -> int:
        """The length of an array, text or bytes; -1 is null."""
        value, self._at = read_uvarint(self._data, self._at)
        return value - 1

    def text(self) -> str:
        return self.raw(max(self.count(), 0)).decode()

    def skip_tags(self) -> None:
        for _ in range(self.count() + 1):
            self.count()
            self.raw(self.count() + 1)

    def _number(self, form: str, size: int) -> int:
        self._at += size
        return int(struct.unpack_from(form, self._data, self._at - size)[0])


@dataclass(frozen=True, slots=True)
class Joined:
    error: int
    generation: int
    leader: str
    member_id: str
    members: list[str]  # only the leader is told


@dataclass(frozen=True, slots=True)
class Assigned:
    error: int
    message: str
    epoch: int
    partitions: dict[bytes, list[int]] | None  # by topic id; None where nothing changed


def _text(value: str) -> bytes:
    return compact(value.encode())


def find_coordinator(group: str) -> bytes:
    content = struct.pack(">hhihh", _FIND_COORDINATOR, 0, 1, -1, len(group)) + group.encode()
    return struct.pack(">i", len(content)) + content


def join(group: str, member_id: str, topic: str) -> bytes:
    name = topic.encode()
    subscription = struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)
    protocols = uvarint(2) + _text(_PROTOCOL_NAME) + compact(subscription) + _NO_TAGS
    timeouts = struct.pack(">ii", _SESSION_TIMEOUT_MS, _REBALANCE_TIMEOUT_MS)
    body = _text(group) + timeouts + _text(member_id) + _NULL + _text(_PROTOCOL_TYPE) + protocols + _NULL + _NO_TAGS
    return frame(_JOIN, 9, body)


def joined(response: bytes) -> Joined:
    fields = ResponseFields(response)
    fields.int32()
    error, generation = fields.int16(), fields.int32()
    fields.text(), fields.text()
    leader = fields.text()
    fields.int8()  # whether the leader may skip the assignment: only for static members
    member_id = fields.text()
    members = []
    for _ in range(fields.count()):
        members.append(fields.text())
        fields.text(), fields.raw(max(fields.count(), 0))
        fields.skip_tags()
    return Joined(error, generation, leader, member_id, members)


def sync(group: str, generation: int, member_id: str, assignments: Mapping[str, bytes]) -> bytes:
    head = _text(group) + struct.pack(">i", generation) + _text(member_id) + _NULL
    listed = b"".join(_text(each) + compact(content) + _NO_TAGS for each, content in assignments.items())
    protocol = _text(_PROTOCOL_TYPE) + _text(_PROTOCOL_NAME)
    return frame(_SYNC, 5, head + protocol + uvarint(len(assignments) + 1) + listed + _NO_TAGS)


def synced(response: bytes) -> tuple[int, bytes]:
    """The error and the assignment."""
    fields = ResponseFields(response)
    fields.int32()
    error = fields.int16()
    fields.text(), fields.text()
    return error, fields.raw(max(fields.count(), 0))


def assignment(topic: str, partitions: Collection[int]) -> bytes:
    """What a leader hands to one member: the consumers' own format, opaque to the broker."""
    name = topic.encode()
    listed = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hih", 0, 1, len(name)) + name + listed + struct.pack(">i", -1)


def heartbeat(group: str, generation: int, member_id: str) -> bytes:
    body = _text(group) + struct.pack(">i", generation) + _text(member_id) + _NULL + _NO_TAGS
    return frame(_HEARTBEAT, 4, body)


def leave(group: str, member_ids: Collection[str]) -> bytes:
    listed = b"".join(_text(each) + _NULL + _NULL + _NO_TAGS for each in member_ids)
    return frame(_LEAVE, 5, _text(group) + uvarint(len(member_ids) + 1) + listed + _NO_TAGS)


def plain_error(response: bytes) -> int:
    """The error of a Heartbeat or LeaveGroup response."""
    fields = ResponseFields(response)
    fields.int32()
    return fields.int16()


def consumer_heartbeat(
    group: str,
    member_id: str,
    epoch: int,
    *,
    topic: str | None = None,
    owned: Mapping[bytes, Collection[int]] | None = None,
) -> bytes:
    """`topic` and `owned` only where they are new to the coordinator, as clients do."""
    timeout = -1 if topic is None else _REBALANCE_TIMEOUT_MS
    subscribed = _NULL if topic is None else uvarint(2) + _text(topic)
    partitions = _NULL
    if owned is not None:
        partitions = uvarint(len(owned) + 1)
        for topic_id, numbers in owned.items():
            partitions += topic_id + uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers) + _NO_TAGS
    member = _text(group) + _text(member_id) + struct.pack(">i", epoch) + _NULL + _NULL + struct.pack(">i", timeout)
    return frame(_CONSUMER_HEARTBEAT, 1, member + subscribed + _NULL + _NULL + partitions + _NO_TAGS)


def assigned(response: bytes) -> Assigned:
    fields = ResponseFields(response)
    fields.int32()
    error, message = fields.int16(), fields.text()
    fields.text()
    epoch = fields.int32()
    fields.int32()
    if fields.int8() < 0:
        return Assigned(error, message, epoch, None)
    partitions = {}
    for _ in range(fields.count()):
        topic_id = fields.raw(16)
        partitions[topic_id] = [fields.int32() for _ in range(fields.count())]
        fields.skip_tags()
    return Assigned(error, message, epoch, partitions)
