"""Messages in steps: the same bytes and the same fields as in one go, for every request there is."""

from collections.abc import Generator
from typing import TypeVar

import pytest

from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.schema import request_schema
from millstream.formats.protocol.steps import ITEMS_PER_STEP, is_long, read_in_steps, write_in_steps
from tests import wire
from tests.unit.node.server import hostile

T = TypeVar("T")


def through(steps: "Generator[None, None, T]") -> tuple[T, int]:
    """What comes out, and after how many pauses."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.parametrize("api", sorted(wire.request_names().values()))
def test_the_same_as_in_one_go(api: str) -> None:
    schema = request_schema(api)
    for _, version, fields in hostile.requests(api, 3):
        whole = schema.encode(fields, version)
        out = bytearray()
        through(write_in_steps(schema, out, fields, version))
        assert out == whole
        message, _ = through(read_in_steps(schema, Cursor(whole), version))
        assert message == schema.decode(whole, version)


def test_pauses_come_after_so_many_items_over_all_levels() -> None:
    schema = request_schema("list_offsets")
    topics = [{"name": str(n), "partitions": [{"partition_index": 0}] * 3} for n in range(1000)]
    out = bytearray()
    _, pauses = through(write_in_steps(schema, out, {"topics": topics}, 11))
    assert pauses == 4000 // ITEMS_PER_STEP
    _, pauses = through(read_in_steps(schema, Cursor(out), 11))
    assert pauses == 4000 // ITEMS_PER_STEP


def test_what_is_malformed_is_refused_as_in_one_go() -> None:
    schema = request_schema("list_offsets")
    data = schema.encode({"topics": [{"name": "t", "partitions": [{"partition_index": 0}]}] * 20}, 11)
    for cursor in (Cursor(data, 0, len(data) - 3), Cursor(data, most_items=10), Cursor(b"\x00" * 5 + b"\x00")):
        with pytest.raises(MalformedMessage):
            through(read_in_steps(schema, cursor, 11))
    long_name = schema.encode({"topics": [{"name": "t" * 40_000, "partitions": []}]}, 11)
    with pytest.raises(MalformedMessage, match="string of 40000 bytes; the limit is 32767"):
        through(read_in_steps(schema, Cursor(long_name, longest_text=32_767), 11))


def test_a_long_message_is_known_by_its_lists() -> None:
    assert not is_long({"topics": [{"partitions": [1] * 100}] * 2, "error_code": 0})
    assert is_long({"topics": [{"partitions": [1] * 100}] * 3})
    assert is_long({"groups": [{"topics": [{"partitions": list(range(501))}]}]})
    assert not is_long({"error_code": 3})
