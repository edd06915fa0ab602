"""Records for people: through the registry, as JSON, text or base64; what cannot be read comes with the reason."""

import base64
import datetime
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from typing import Any
from urllib.request import Request, urlopen

import fastavro
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.gateway.server import Gateway
from millstream.registry.decoding import Decoded, Decoder, decode_without_schema
from millstream.registry.records import Subject, parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.schemas import framing, make_format

pytestmark = pytest.mark.timeout(300)


def subject(name: str) -> Subject:
    return parse_subject(name)


def register(registry: Registry, name: str, text: str, type_: str) -> int:
    return registry.register(subject(name), SchemaRequest(text, type_, (), None, None, None, None)).id


def avro_record(schema_id: int, schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return framing.prefix(schema_id) + out.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        (b'{"a": [1, 2.5, null]}', "json", {"a": [1, 2.5, None]}),
        (b"17", "json", 17),
        (b'"quoted"', "json", "quoted"),
        (b"user_123", "text", "user_123"),
        ("grün\n".encode(), "text", "grün\n"),
        (b"", "text", ""),
        (b"\xff\xfe", "binary", "//4="),
        (b"a\x00b", "binary", "YQBi"),
        (b"NaN", "text", "NaN"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x05", "binary", "AAAAAAAAAAU="),
    ],
)
def test_values_without_a_schema_are_decoded_by_their_look(
    registry: Registry, data: bytes, kind: str, value: Any
) -> None:
    assert Decoder(registry).decode(data) == Decoded(kind, value)


def test_a_missing_value_is_null(registry: Registry) -> None:
    assert Decoder(registry).decode(None) == Decoded("null", None)


@given(st.binary(max_size=40))
def test_any_bytes_become_json(data: bytes) -> None:
    found = decode_without_schema(data)
    orjson.dumps(found.value)
    if found.kind == "binary":
        assert base64.b64decode(found.value) == data
    if found.kind == "text":
        assert found.value.encode() == data


def test_deep_json_is_text() -> None:
    deep = b"[" * 600 + b"]" * 600
    assert decode_without_schema(deep) == Decoded("text", deep.decode())
    wide = b"[" + b",".join([b"[]"] * 600) + b"]"
    assert decode_without_schema(wide).kind == "json"


def test_avro_with_every_kind_of_value(registry: Registry) -> None:
    schema = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "raw", "type": "bytes"},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "ratio", "type": "double"},
            {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
        ],
    }
    schema_id = register(registry, "all", json.dumps(schema), "AVRO")
    value = {
        "raw": b"\x00\xff",
        "price": Decimal("12.30"),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "day": datetime.date(2026, 1, 2),
        "id": uuid.UUID(int=7),
        "ratio": float("inf"),
        "tags": {"a": None, "b": "c"},
    }
    found = Decoder(registry).decode(avro_record(schema_id, schema, value))
    assert found == Decoded(
        "avro",
        {
            "raw": "AP8=",
            "price": "12.30",
            "at": "2026-01-02T03:04:05Z",
            "local": "2026-01-02T03:04:05",
            "day": "2026-01-02",
            "id": str(uuid.UUID(int=7)),
            "ratio": "Infinity",
            "tags": {"a": None, "b": "c"},
        },
        schema_id,
    )
    orjson.dumps(found.value)


def test_json_schema_and_protobuf(registry: Registry) -> None:
    json_id = register(registry, "j", '{"type": "object"}', "JSON")
    proto = """syntax = "proto3"; package shop;
    message First { string name = 1; }
    message Outer { message Inner { int64 total_cents = 1; repeated string tags = 2; } }"""
    proto_id = register(registry, "p", proto, "PROTOBUF")
    decoder = Decoder(registry)
    assert decoder.decode(framing.prefix(json_id) + b'{"a":1}') == Decoded("json-schema", {"a": 1}, json_id)
    inner = framing.prefix(proto_id) + framing.indexes_prefix((1, 0)) + b"\x08\x07\x12\x01x"
    assert decoder.decode(inner) == Decoded("protobuf", {"total_cents": "7", "tags": ["x"]}, proto_id)
    first = framing.prefix(proto_id) + b"\x00" + b"\x0a\x03ann"
    assert decoder.decode(first) == Decoded("protobuf", {"name": "ann"}, proto_id)


def test_what_does_not_fit_its_schema(registry: Registry) -> None:
    decoder = Decoder(registry)
    for type_, text in (
        ("AVRO", '{"type": "array", "items": "long"}'),
        ("JSON", "{}"),
        ("PROTOBUF", 'syntax = "proto3"; message M { string a = 1; }'),
    ):
        schema_id = register(registry, f"bad-{type_}", text, type_)
        for rest in (b"\x02\x01", b"\xff" * 7, b"\x02\x09\x00\x00"):
            data = framing.prefix(schema_id) + rest
            found = decoder.decode(data)
            assert (found.kind, found.schema_id) == ("binary", schema_id)
            assert base64.b64decode(found.value) == data
            assert found.problem is not None and "does not fit" in found.problem


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "R", "fields": [{"name": "n", "type": "null"}]},
    ],
    ids=["null", "fixed", "record"],
)
def test_three_bytes_do_not_become_a_billion_items(registry: Registry, items: Any) -> None:
    schema = {"type": "record", "name": "Bomb", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    schema_id = register(registry, "bomb", json.dumps(schema), "AVRO")
    found = Decoder(registry).decode(framing.prefix(schema_id) + b"\x80\xa8\xd6\xb9\x07\x00")
    assert found.kind == "binary" and found.problem is not None and "without bytes" in found.problem


def test_recursive_avro_schemas_are_decoded(registry: Registry) -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "kids", "type": {"type": "array", "items": "Tree"}}]}
    schema_id = register(registry, "tree", json.dumps(tree), "AVRO")
    found = Decoder(registry).decode(framing.prefix(schema_id) + b"\x02\x00\x00")
    assert found == Decoded("avro", {"kids": [{"kids": []}]}, schema_id)
    deep = Decoder(registry).decode(framing.prefix(schema_id) + b"\x02" * 900 + b"\x00" * 901)
    assert deep.kind == "binary"


def test_an_unknown_id_is_asked_for_again_later(start_registry: Callable[[], Registry]) -> None:
    now = 0.0
    ours, others = start_registry(), start_registry()
    decoder = Decoder(ours, clock=lambda: now)
    data = avro_record(1, "string", "there")
    for _ in range(3):
        found = decoder.decode(data)
        assert found.kind == "binary" and found.problem is not None and "not found" in found.problem
    assert register(others, "late", '"string"', "AVRO") == 1
    assert decoder.decode(data).kind == "binary"
    now = 10.0
    assert decoder.decode(data) == Decoded("avro", "there", 1)


GROUPS = """
syntax = "proto2";
message Order {
  repeated group Item = 1 { required string name = 1; optional int32 count = 2; }
  optional int32 total = 3;
}
"""
ORDER_BYTES = b"\x0b\x0a\x01a\x10\x02\x0c" + b"\x0b\x0a\x01b\x0c" + b"\x18\x02"
"""As any Protobuf library writes it: two groups, which have a start and an end instead of a length, and the total."""
ORDER = {"item": [{"name": "a", "count": 2}, {"name": "b"}], "total": 2}


def test_groups_of_proto2_are_decoded(registry: Registry) -> None:
    schema_id = register(registry, "groups", GROUPS, "PROTOBUF")
    assert "repeated group Item = 1 {" in registry.by_id(schema_id).text
    found = Decoder(registry).decode(framing.prefix(schema_id) + b"\x00" + ORDER_BYTES)
    assert found == Decoded("protobuf", ORDER, schema_id)


def test_groups_of_proto2_become_columns(gateway: Gateway) -> None:
    url = gateway.url
    body = json.dumps({"schemaType": "PROTOBUF", "schema": GROUPS}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{url}/subjects/groups-value/versions", body, headers)) as response:
        schema_id = json.load(response)["id"]
    form = make_format("protobuf", topic="groups", registry_url=url)
    record = framing.prefix(schema_id) + b"\x00" + ORDER_BYTES
    rows, errors = form.decode(pa.array([record]))
    assert errors.to_pylist() == [None]
    assert rows.to_pylist() == [{"item": [{"name": "a", "count": 2}, {"name": "b", "count": None}], "total": 2}]
    assert form.encode(rows).to_pylist() == [record]
