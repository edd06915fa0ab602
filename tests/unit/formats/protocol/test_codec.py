"""Compiled codecs: what the bytes are, and bytes that are cut off, too long or too many."""

import random
import struct
from uuid import UUID

import pytest

from millstream.formats.protocol.primitives import ITEM_BUDGET, Cursor, MalformedMessage
from millstream.formats.protocol.schema import Schema
from tests.unit.formats.protocol.test_schema import CASES, random_structure

PLAIN = Schema(
    """request 1 plain 0-1
  id uuid 0+
  flag bool 0+
  count int32 0+ = 7
  late int64 1+ = -1
  name string 0+
  comment string 0+ null:0+
  numbers []int32 0+
  rows []{} 0+ null:1+
    key int16 0+
    value bytes 0+ null:0+"""
)
FLEXIBLE = Schema(
    """request 2 flexible 0 flexible:0+
  count int32 0+
  error_message string 0+ null:0+
  rows []{} 0+
    key int16 0+
  extra {} 0+ tag:3:0+
    amount int64 0+"""
)
ID = UUID(int=5)


def test_fixed_fields_lengths_and_arrays_lie_as_kafka_has_them() -> None:
    values = {
        "id": ID,
        "flag": True,
        "name": "é",
        "comment": None,
        "numbers": [1, -1],
        "rows": [{"key": 2, "value": b"xy"}],
    }
    expected = ID.bytes + b"\1" + struct.pack(">i", 7) + b"\0\2" + "é".encode() + b"\xff\xff"
    expected += struct.pack(">iii", 2, 1, -1) + struct.pack(">ihi", 1, 2, 2) + b"xy"
    assert PLAIN.encode(values, 0) == expected
    read = PLAIN.decode(expected, 0)
    assert (read.id, read.flag, read.count, read.late, read.name, read.comment) == (ID, True, 7, -1, "é", None)
    assert read.numbers == [1, -1]
    assert [(row.key, row.value) for row in read.rows] == [(2, b"xy")]


def test_flexible_structures_end_in_their_tags() -> None:
    assert FLEXIBLE.encode({"count": 1, "rows": [{"key": 2}]}, 0) == b"\0\0\0\1\0\2\0\2\0\0"
    encoded = FLEXIBLE.encode({"count": 1, "extra": {"amount": 9}}, 0)
    assert encoded == b"\0\0\0\1\0\1" + b"\1\3\x09" + struct.pack(">q", 9) + b"\0"
    assert FLEXIBLE.decode(encoded, 0).extra.amount == 9
    assert FLEXIBLE.decode(b"\0\0\0\1\0\1\0", 0).extra.amount == 0


def test_lengths_of_more_than_a_byte() -> None:
    values = {"count": 1, "error_message": "m" * 500, "rows": [{"key": number} for number in range(300)]}
    read = FLEXIBLE.decode(FLEXIBLE.encode(values, 0), 0)
    assert read.error_message == "m" * 500
    assert [row.key for row in read.rows] == list(range(300))
    assert len(FLEXIBLE.decode(FLEXIBLE.encode({**values, "error_message": "m" * 5000}, 0), 0).error_message) == 2000


def test_defaults_are_made_for_each_message() -> None:
    first, second = (FLEXIBLE.decode(b"\0\0\0\1\0\1\0", 0) for _ in range(2))
    assert first.extra is not second.extra
    assert first.rows is not second.rows


@pytest.mark.parametrize(("schema", "version"), CASES[::7])
def test_a_message_that_is_cut_off_is_refused_wherever_that_is(schema: Schema, version: int) -> None:
    rng = random.Random(f"{schema.name} {version}")
    encoded = schema.encode(random_structure(schema.root, version, rng), version)
    for size in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            schema.decode(encoded[:size], version)
        # What follows in the buffer belongs to the next message.
        with pytest.raises(MalformedMessage):
            schema.read(Cursor(encoded, 0, size), version)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_read_from_any_position(kind: type) -> None:
    encoded = FLEXIBLE.encode({"count": 4, "error_message": "why", "extra": {"amount": 1}}, 0)
    cursor = Cursor(kind(b"before" + encoded + b"after"), 6, 6 + len(encoded))
    read = FLEXIBLE.read(cursor, 0)
    assert (read.count, read.error_message, read.extra.amount) == (4, "why", 1)
    assert cursor.position == cursor.end
    assert PLAIN.decode(kind(PLAIN.encode({"id": ID, "rows": [{"value": b"v"}]}, 0)), 0).rows[0].value == b"v"


def test_items_of_all_arrays_count_against_the_budget() -> None:
    encoded = FLEXIBLE.encode({"count": 1, "rows": [{}, {}]}, 0)
    cursor = Cursor(encoded)
    FLEXIBLE.read(cursor, 0)
    assert cursor.budget == ITEM_BUDGET - 2
    cursor = Cursor(encoded)
    cursor.budget = 1
    with pytest.raises(MalformedMessage, match="array items"):
        FLEXIBLE.read(cursor, 0)


def test_null_where_there_must_be_something_is_refused() -> None:
    head = ID.bytes + b"\0" + bytes(4)
    with pytest.raises(MalformedMessage, match="where a string is required"):
        PLAIN.decode(head + b"\xff\xff" + bytes(12), 0)
    with pytest.raises(MalformedMessage, match="where an array is required"):
        PLAIN.decode(head + b"\0\0\0\0" + b"\xff\xff\xff\xff" + bytes(4), 0)
    with pytest.raises(MalformedMessage, match="where a string is required"):
        PLAIN.decode(head + b"\0\0\xff\xfe" + bytes(8), 0)
    with pytest.raises(AssertionError, match="name"):
        PLAIN.encode({"id": ID, "name": None}, 0)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="not UTF-8"):
        PLAIN.decode(ID.bytes + b"\0" + bytes(4) + b"\0\1\xff" + bytes(12), 0)


def test_a_value_that_does_not_fit_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="plain v0: a value does not fit"):
        PLAIN.encode({"id": ID, "count": 1 << 40}, 0)
