"""Many records at once: the same rows, and the same reasons, as one at a time by fastavro, Protobuf and orjson."""

import json
import random
from decimal import Decimal
from io import BytesIO
from itertools import count, pairwise
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.schemas import avro_columns, avro_schema, protobuf_columns
from millstream.schemas.avro_format import AvroFormat
from millstream.schemas.columns import is_compiled
from millstream.schemas.formats import SchemaChoice
from millstream.schemas.json_format import JsonFormat
from millstream.schemas.protobuf_format import ProtobufFormat
from tests.examples import examples

pytestmark = pytest.mark.skipif(not is_compiled(), reason="the compiled reader was not built")

NAMES = count()
INT, LONG = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", INT),
    ("long", LONG),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=20)),
    ("string", st.text(max_size=20)),
    ({"type": "int", "logicalType": "date"}, st.integers(-100_000, 100_000)),
    ({"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(1 << 45), 1 << 45)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.integers(-(1 << 55), 1 << 55)),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.decimals(-9_999_999, 9_999_999, places=2),
    ),
]


@st.composite
def types(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and values of it."""
    name = f"n{next(NAMES)}"
    kinds = ["simple", "null", "enum", "fixed"] + (["record", "array", "map"] if depth < 2 else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "simple":
        return draw(st.sampled_from(SIMPLE))
    if kind == "record":
        return draw(records(depth + 1, name))
    schema, values = draw(types(depth + 1))
    if kind == "array":
        return {"type": "array", "items": schema}, st.lists(values, max_size=3)
    if kind == "map":
        return {"type": "map", "values": schema}, st.dictionaries(st.text(max_size=3), values, max_size=3)
    if isinstance(schema, list):
        return schema, values
    union = ["null", schema] if draw(st.booleans()) else [schema, "null"]
    return union, st.none() | values


@st.composite
def records(draw: st.DrawFn, depth: int = 0, name: str = "Order") -> tuple[Any, st.SearchStrategy[Any]]:
    fields = {f"f{number}": draw(types(depth)) for number in range(draw(st.integers(1, 4)))}
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, (kind, _) in fields.items()],
    }
    return schema, st.fixed_dictionaries({each: values for each, (_, values) in fields.items()})


def encoded(schema: Any, row: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), row)
    return out.getvalue()


def reader(schema: Any) -> AvroFormat:
    return AvroFormat(SchemaChoice("AVRO", None, json.dumps(schema), None, False))


def check_equal(form: AvroFormat | ProtobufFormat, values: pa.Array) -> None:
    form.arrow_type()
    assert form._together is not None, "the schema is not for the compiled reader"
    rows, errors = form.decode(values)
    form._together = None
    expected, reasons = form.decode(values)
    rows.validate(full=True)
    assert rows.type == expected.type
    # As text, with times as numbers: NaN is not equal to itself, and damage makes times that Python does not have.
    plain = avro_schema.raw(rows.type)
    assert repr(rows.cast(plain).to_pylist()) == repr(expected.cast(plain).to_pylist())
    assert errors.to_pylist() == reasons.to_pylist()


def damaged(good: list[bytes], chance: random.Random) -> pa.Array:
    """Some of them damaged, and nulls between them; a slice, so that it does not begin at the array's first byte."""
    found: list[bytes | None] = [b"before"]
    for each in good:
        data = bytearray(each)
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        cut = chance.choice([0, 0, 0, 1])
        found += [bytes(data[: len(data) - cut]), *([None] if chance.random() < 0.2 else [])]
    return pa.array(found, pa.binary()).slice(1)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_avro_records_and_any_damage(data: st.DataObject) -> None:
    schema, values = data.draw(records())
    good = [encoded(schema, row) for row in data.draw(st.lists(values, max_size=6))]
    chance = random.Random(data.draw(st.integers(0, 1 << 30)))
    check_equal(reader(schema), damaged(good, chance))


NESTED = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}},
    ],
}


def test_wrong_lengths_in_avro_are_refused() -> None:
    many = b"\x02" + b"\x00" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    least = b"\x02" + b"\x00" + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"
    digits = encoded(NESTED, {"id": 1, "name": "ü", "lines": [1], "total": Decimal(5)})[:-2] + b"\x04\x7f\xff"
    block = b"\x02\x02\x02a\x03\x08\x00\x00\x02\x05\x00\x02\x07"  # with the size of a block, which is not needed
    good = encoded(NESTED, {"id": 1, "name": None, "lines": [1, None, 3], "total": Decimal(9999)})
    not_utf8 = b"\x02\x02\x04\xc3\x28\x00\x02\x01"
    array = pa.array([good, many, least, b"", good + b"x", digits, block, None, not_utf8, good], pa.binary())
    check_equal(reader(NESTED), array)
    check_equal(reader(NESTED), array.slice(9))
    check_equal(reader(NESTED), array.slice(3, 0))


def test_columns_that_are_left_out_are_read_past() -> None:
    rows = [
        {"id": 5, "name": "a", "lines": [1, 2], "total": Decimal(3)},
        {"id": 6, "name": None, "lines": [], "total": Decimal(4)},
    ]
    form = reader(NESTED)
    form.keep_only(frozenset(["id", "lines"]))
    assert [field.name for field in form.arrow_type()] == ["id", "lines"]
    values = pa.array([encoded(NESTED, row) for row in rows] + [b"\x02\x02\x04\xc3\x28\x00\x02\x01"], pa.binary())
    found, errors = form.decode(values)
    assert found.to_pylist() == [{"id": 5, "lines": [1, 2]}, {"id": 6, "lines": []}, None]
    assert [reason is None for reason in errors.to_pylist()] == [True, True, False]


@pytest.mark.parametrize(
    "field",
    [
        ["int", "string"],
        ["null", "int", "long"],
        "null",
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
        {"type": "bytes", "logicalType": "decimal", "precision": 50},
    ],
)
def test_avro_types_that_are_not_for_it(field: Any) -> None:
    """A union of other types has no column; items without bytes could be any number in a few bytes."""
    parsed = parse_schema({"type": "record", "name": "R", "fields": [{"name": "f", "type": field}]})
    assert avro_columns.tree_of(parsed, None) is None


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  enum State { NEW = 0; PAID = 3; }
  message Line { string name = 1; repeated sint32 sizes = 2; optional bool is_gift = 3; State state = 4; }
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6;
  fixed32 g = 7; fixed64 h = 8; sfixed32 i = 9; sfixed64 j = 10;
  float k = 11; double l = 12; bool m = 13; string n = 14; bytes o = 15; State p = 16;
  optional int32 q = 17; optional string r = 18; Line s = 19; repeated Line t = 20; repeated string u = 21;
  repeated double v = 22; google.protobuf.Timestamp w = 23; repeated State x = 24;
}
"""
U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
STATES = st.sampled_from([0, 3, 7])
LINES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=5),
        "sizes": st.lists(INT, max_size=3),
        "is_gift": st.booleans(),
        "state": STATES,
    },
)
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys("aeiq", INT), **dict.fromkeys("bfj", LONG), **dict.fromkeys("cg", U32),
        **dict.fromkeys("dh", U64), "k": st.floats(width=32, allow_nan=False), "l": st.floats(allow_nan=False),
        "m": st.booleans(), "n": st.text(max_size=9), "o": st.binary(max_size=9), "p": STATES,
        "r": st.text(max_size=9), "s": LINES, "t": st.lists(LINES, max_size=3),
        "u": st.lists(st.text(max_size=4), max_size=3), "v": st.lists(st.floats(allow_nan=False), max_size=3),
        "w": st.fixed_dictionaries({"seconds": st.integers(-(1 << 35), 1 << 37), "nanos": st.integers(0, 999_999_999)}),
        "x": st.lists(STATES, max_size=4),
    },
)  # fmt: skip


def messages(text: str = PROTO) -> ProtobufFormat:
    return ProtobufFormat(SchemaChoice("PROTOBUF", None, text, None, False), None)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(ORDERS, max_size=6), st.integers(0, 1 << 30))
def test_any_protobuf_records_and_any_damage(orders: list[dict[str, Any]], seed: int) -> None:
    form = messages()
    form.arrow_type()
    good = [form._class(**order).SerializeToString() for order in orders]
    chance = random.Random(seed)
    good += [one + other for one, other in pairwise(good)]  # fields come twice, and are merged
    check_equal(form, damaged(good, chance))


def test_columns_of_protobuf_that_are_left_out_are_read_past() -> None:
    form = messages()
    form.keep_only(frozenset(["b", "t"]))
    assert [field.name for field in form.arrow_type()] == ["b", "t"]
    good = form._class(b=5, n="x", t=[{"name": "y"}], w={"seconds": 5})
    rows, errors = form.decode(pa.array([good.SerializeToString(), b"\x72\x01\xff"], pa.binary()))
    line: dict[str, Any] = {"name": "y", "sizes": [], "is_gift": None, "state": "NEW"}
    assert rows.to_pylist() == [{"b": 5, "t": [line]}, None]
    assert [reason is None for reason in errors.to_pylist()] == [True, False]  # n is not UTF-8


@pytest.mark.parametrize(
    "field",
    [
        "map<string, int32> m = 1;",
        "oneof choice { int32 a = 1; int32 b = 2; }",
        "google.protobuf.Int32Value w = 1;",
        "google.protobuf.Duration d = 1;",
    ],
)
def test_protobuf_types_that_are_not_for_it(field: str) -> None:
    imports = 'import "google/protobuf/wrappers.proto"; import "google/protobuf/duration.proto";'
    form = messages(f'syntax = "proto3"; {imports} message M {{ {field} }}')
    form.arrow_type()
    assert form._descriptor is not None and form._together is None
    assert protobuf_columns.tree_of(form._descriptor, None) is None


def test_the_error_of_a_record_that_ends_too_early_is_always_the_same() -> None:
    """fastavro's text has an address of memory in it."""
    schema = {
        "type": "record",
        "name": "Flags",
        "fields": [{"name": "all", "type": {"type": "array", "items": "boolean"}}],
    }
    values = pa.array([b"\xd7\x00\x00\x00"] * 2, pa.binary())
    check_equal(reader(schema), values)
    _, errors = reader(schema).decode(values)
    assert errors.to_pylist() == ["no Avro of its schema: it ends too early, after 4 bytes"] * 2


JSON_VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({"type": "boolean"}, st.booleans()),
    ({"type": "integer"}, st.integers(-(1 << 64), 1 << 64) | st.integers(-9, 9)),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 70), 1 << 70)),
    ({"type": "string"}, st.text(max_size=20)),
    (
        {"type": "string", "format": "date-time"},
        st.sampled_from(["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.5", "x"]),
    ),
]
_UNTYPED = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)


@st.composite
def json_types(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A JSON Schema, and values, most of which fit it."""
    kind = draw(st.sampled_from(["simple", "simple", "null"] + (["object", "array"] if depth < 2 else [])))
    if kind == "object":
        return draw(json_objects(depth + 1))
    schema, values = draw(st.sampled_from(JSON_VALUES)) if kind == "simple" else draw(json_types(depth + 1))
    if kind == "array":
        return {"type": "array", "items": schema}, st.lists(values, max_size=3)
    if kind == "null" and "oneOf" not in schema:
        return {"oneOf": [{"type": "null"}, schema]}, st.none() | values
    return schema, values


@st.composite
def json_objects(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    names = st.sampled_from(["id", "name", "größe", 'a"b', "x", "y"])
    fields = {each: draw(json_types(depth)) for each in draw(st.lists(names, min_size=1, max_size=4, unique=True))}
    schema = {
        "type": "object",
        "properties": {each: kind for each, (kind, _) in fields.items()},
        "required": draw(st.lists(st.sampled_from([*fields, "unnamed"]), max_size=2, unique=True)),
    }
    optional = {each: values | _UNTYPED if draw(st.booleans()) else values for each, (_, values) in fields.items()}
    return schema, st.fixed_dictionaries({}, optional=optional | {"unnamed": _UNTYPED, "other": _UNTYPED})


def json_reader(schema: Any) -> JsonFormat:
    return JsonFormat(SchemaChoice("JSON", None, json.dumps(schema), None, False))


def check_json(form: JsonFormat, values: pa.Array) -> None:
    rows, errors = form.decode(values)
    assert form._together is not None, "the schema is not for the compiled reader"
    rows.validate(full=True)
    expected, reasons = form._decode_singly(values)
    assert rows.type == expected.type
    assert rows.to_pylist() == expected.to_pylist()
    assert errors.to_pylist() == reasons.to_pylist()


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_json_objects_and_any_damage(data: st.DataObject) -> None:
    schema, values = data.draw(json_objects())
    chance = random.Random(data.draw(st.integers(0, 1 << 30)))
    texts = [
        json.dumps(
            row,
            ensure_ascii=chance.random() < 0.5,
            indent=chance.choice([None, None, 1]),
            separators=chance.choice([None, (",", ":"), (" ,\t", "\r\n: ")]),
        ).encode()
        for row in data.draw(st.lists(values, max_size=6))
    ]
    form = json_reader(schema)
    check_json(form, pa.array(texts, pa.binary()))
    check_json(form, damaged(texts, chance))
    named = frozenset(data.draw(st.lists(st.sampled_from(list(schema["properties"])), min_size=1)))
    form = json_reader(schema)
    form.keep_only(named)
    check_json(form, damaged(texts, chance))


JSON_ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "total": {"type": "number"},
        "name": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["id"],
}


@pytest.mark.parametrize(
    "text",
    [
        b'{"id": 1, "total": 0.1, "name": "\\u00fc\\ud83d\\ude00\\n\\/", "lines": [1, 2]}',
        b'{"id": 1, "name": "\\ud83d"}',
        b'{"id": 1, "name": "\\ude00"}',
        b'{"id": 1, "name": "\\ud83d\\u0041"}',
        b'{"id": 1, "name": "\\x41"}',
        b'{"id": 1, "name": "a\nb"}',
        b'{"id": 1, "name": "\xc3\x28"}',
        b'{"id": 1, "other": "\xc3\x28"}',
        b'{"id": 9223372036854775807}',
        b'{"id": -9223372036854775808}',
        b'{"id": 9223372036854775808}',
        b'{"id": 1.0}',
        b'{"id": 01}',
        b'{"id": -0, "total": -0}',
        b'{"id": 1, "total": 9007199254740993}',
        b'{"id": 1, "total": 123456789012345678901234567890}',
        b'{"id": 1, "total": 1.7976931348623157e308}',
        b'{"id": 1, "total": 1e999}',
        b'{"id": 1, "other": 1e999}',
        b'{"id": 1, "total": 5e-324}',
        b'{"id": 1, "total": 2.2250738585072011e-308}',
        b'{"id": 1, "total": 0.30000000000000004}',
        b'{"id": 1, "total": 1.}',
        b'{"id": 1, "total": .5}',
        b'{"id": 1, "total": +5}',
        b'{"id": 1, "total": 1e}',
        b'{"id": 1, "total": 1E+2}',
        b'{"id": 1, "total": ' + b"1" * 400 + b"}",
        b'{"id": 1, "total": 0.' + b"1" * 400 + b"}",
        b'{"id": 1, "id": 2}',
        b'{"\\u0069d": 1}',
        b'{"id": 1,}',
        b'{"id": 1 "total": 2}',
        b'{"id": 1}}',
        b'{"id": 1}{"id": 2}',
        b' {"id": 1}\n',
        b'{"id": null}',
        b"{}",
        b"null",
        b"",
        b"{",
        b'{"id',
        b'{"id": 1, "lines": [1, null]}',
        b'{"id": 1, "lines": [1,]}',
        b'{"id": 1, "lines": {}}',
        b'{"id": 1, "other": [[{"a": [true, false, null, "x", -1.5e3, {}]}]]}',
        b'{"id": 1, "other": [1, }',
        b'{"id": 1, "other": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"id": 1, "other": ' + b"[" * 5000,
    ],
)
def test_json_texts_that_are_rare_or_wrong(text: bytes) -> None:
    check_json(json_reader(JSON_ORDER), pa.array([b'{"id": 5}', text, None, b'{"id": 6}'], pa.binary()))


def test_json_with_a_missing_required_value_that_the_query_does_not_name() -> None:
    form = json_reader({**JSON_ORDER, "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}})
    form.keep_only(frozenset(("name",)))
    texts = [b'{"id": 1, "name": "a"}', b'{"name": "b"}', b'{"id": null, "name": "c"}', b'{"id": "x", "name": "d"}']
    for _ in range(2):  # by the compiled reader, and without it
        rows, errors = form.decode(pa.array(texts, pa.binary()))
        assert rows.to_pylist() == [{"name": "a"}, None, None, {"name": "d"}]
        assert [each is None for each in errors.to_pylist()] == [True, False, False, True]
        form.decode = form._decode_others  # type: ignore[method-assign]
