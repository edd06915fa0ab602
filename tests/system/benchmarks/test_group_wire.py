"""The hand-written requests of group members are what kio, an independent reader of the protocol, reads."""

from __future__ import annotations

import importlib
import io
import struct
import uuid
from typing import Any

import pytest

from benchmarks.compare import group_wire

_TOPIC_ID = uuid.UUID(int=7)


def _read(frame: bytes, module: str, entity: str) -> Any:
    """The request in a frame, which it has to fill to the last byte."""
    kio_serial = pytest.importorskip("kio.serial")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = importlib.import_module("kio.schema.request_header.v2.header").RequestHeader
    kind = getattr(importlib.import_module(f"kio.schema.{module}.request"), entity)
    data, at = frame[4:], 0
    for each in (header, kind):
        read = kio_serial.entity_reader(each)
        try:
            value, size = read(data[at:], 0)
        except TypeError:
            stream = io.BytesIO(data[at:])
            value, size = read(stream), stream.tell()
        at += size
    assert at == len(data)
    return value


def test_join_names_the_group_and_its_subscription() -> None:
    request = _read(group_wire.join("group", "me", "topic"), "join_group.v9", "JoinGroupRequest")
    assert (request.group_id, request.member_id, request.protocol_type) == ("group", "me", "consumer")
    assert b"topic" in request.protocols[0].metadata


def test_sync_carries_each_assignment() -> None:
    share = group_wire.assignment("topic", [1, 3])
    request = _read(group_wire.sync("group", 4, "me", {"me": share}), "sync_group.v5", "SyncGroupRequest")
    assert (request.generation_id, request.protocol_name) == (4, "range")
    assert [(each.member_id, each.assignment) for each in request.assignments] == [("me", share)]


def test_heartbeat_and_leave_are_encoded_as_kafka_does() -> None:
    beat = _read(group_wire.heartbeat("group", 4, "me"), "heartbeat.v4", "HeartbeatRequest")
    assert (beat.group_id, beat.generation_id, beat.member_id) == ("group", 4, "me")
    gone = _read(group_wire.leave("group", ["me", "you"]), "leave_group.v5", "LeaveGroupRequest")
    assert [each.member_id for each in gone.members] == ["me", "you"]


def test_consumer_heartbeat_says_what_is_owned_only_when_told_to() -> None:
    kind = ("consumer_group_heartbeat.v1", "ConsumerGroupHeartbeatRequest")
    first = _read(group_wire.consumer_heartbeat("group", "me", 0, topic="topic", owned={}), *kind)
    assert (first.subscribed_topic_names, first.topic_partitions) == (("topic",), ())
    later = _read(group_wire.consumer_heartbeat("group", "me", 5, owned={_TOPIC_ID.bytes: [2, 9]}), *kind)
    assert later.subscribed_topic_names is None
    assert [(each.topic_id, each.partitions) for each in later.topic_partitions] == [(_TOPIC_ID, (2, 9))]
    assert _read(group_wire.consumer_heartbeat("group", "me", 5), *kind).topic_partitions is None


def test_an_assignment_is_read_and_its_absence_too() -> None:
    head = struct.pack(">ibih", 1, 0, 0, 0) + b"\0" + b"\x03me" + struct.pack(">ii", 6, 5000)
    nothing = group_wire.assigned(head + b"\xff\0")
    assert (nothing.error, nothing.epoch, nothing.partitions) == (0, 6, None)
    listed = b"\x02" + _TOPIC_ID.bytes + b"\x03" + struct.pack(">ii", 2, 9) + b"\0"
    assert group_wire.assigned(head + b"\x01" + listed + b"\0\0").partitions == {_TOPIC_ID.bytes: [2, 9]}


def test_a_leader_is_told_the_members() -> None:
    members = b"\x03" + b"\x03me\0\x02x\0" + b"\x04you\0\x02x\0"
    texts = b"\x09consumer" + b"\x06range" + b"\x03me" + b"\0" + b"\x03me"
    joined = group_wire.joined(struct.pack(">ibihi", 1, 0, 0, 0, 3) + texts + members + b"\0")
    assert (joined.error, joined.generation, joined.leader, joined.member_id) == (0, 3, "me", "me")
    assert joined.members == ["me", "you"]
