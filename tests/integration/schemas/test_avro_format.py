"""Avro records as typed columns: all types, other writers' schemas, references, noise, and back."""

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.schemas import EncodingError, RegistryUnreachableError, SchemaError, SchemaNotFoundError, make_format
from tests.examples import examples
from tests.unit.schemas.tiny_registry import TinyRegistry

AT = datetime(2024, 5, 6, 7, 8, 9, 123_456, UTC)
ADDR = {"type": "record", "name": "Addr", "fields": [{"name": "city", "type": "string"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double"},
        {"name": "ratio", "type": ["float", "null"]},
        {"name": "on", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "times", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}},
        {"name": "home", "type": ["null", ADDR]},
        {"name": "work", "type": ["null", "Addr"]},
        {"name": "sort", "type": {"type": "enum", "name": "Sort", "symbols": ["A", "B"]}},
        {"name": "mac", "type": {"type": "fixed", "name": "Mac", "size": 2}},
        {"name": "count", "type": ["null", "int", "long"]},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}  # fmt: skip
ROW = {
    "id": 7, "small": -3, "name": "x", "amount": 1.5, "ratio": 0.5, "on": True, "raw": b"\x00\xff",
    "millis": AT.replace(microsecond=123_000), "micros": AT, "local": AT.replace(tzinfo=None), "day": date(2024, 5, 6),
    "price": Decimal("12.34"), "uuid": "0b8b6a1e-0000-4000-8000-000000000000", "tags": ["a", None],
    "times": [("k", AT.replace(microsecond=0))], "home": {"city": "B"}, "work": None, "sort": "B", "mac": b"ab",
    "count": 5, "clock": 1000,
}  # fmt: skip


def written(schema: Any, row: Any, schema_id: int | None = None) -> bytes:
    """As fastavro writes it, which knows nothing of us."""
    out = io.BytesIO()
    if schema_id is not None:
        out.write(b"\x00" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_all_types_there_and_back() -> None:
    form = pickle.loads(pickle.dumps(make_format("avro", options={"schema": json.dumps(ORDER)})))
    rows = pa.array([ROW, None], form.arrow_type())
    bare = form.encode(rows)
    theirs = written(ORDER, {**ROW, "times": dict(ROW["times"])})  # type: ignore[call-overload]
    assert bare.to_pylist() == [theirs, None]
    found, errors = form.decode(pa.array([theirs, None, b"", theirs]))
    assert found.to_pylist() == [ROW, None, None, ROW]
    assert found.type == form.arrow_type()
    assert errors.is_valid().to_pylist() == [False, False, True, False]
    assert "no Avro of its schema" in errors[2].as_py()


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type"), field, strict=True)) for field in fields],
    }


def test_each_record_is_read_with_its_writer_s_schema(registry: TinyRegistry) -> None:
    old = record(("id", "int"), ("gone", "string"))
    new = record(("id", "long"), ("label", ["null", "string"]))
    new["fields"][1]["default"] = None
    first = registry.register("orders-value", {"schema": json.dumps(old)})
    second = registry.register("orders-value", {"schema": json.dumps(new)})
    alien = registry.register("other", {"schema": json.dumps(record(("id", "string")))})
    proto = registry.register(
        "proto", {"schema": 'syntax = "proto3"; message M { int32 a = 1; }', "schemaType": "PROTOBUF"}
    )
    form = make_format("avro", topic="orders", registry_url=registry.url)
    assert form.arrow_type() == pa.struct([("id", pa.int64()), ("label", pa.string())])
    form = pickle.loads(pickle.dumps(form))
    registry.register("orders-value", {"schema": json.dumps(record(("id", "long"), ("later", "int")))})
    records = [
        written(old, {"id": 1, "gone": "x"}, first),
        written(new, {"id": 2, "label": "y"}, second),
        written(new, {"id": 2, "label": "y"}),  # no prefix
        written(record(("id", "string")), {"id": "z"}, alien),
        written(new, {"id": 2, "label": "y"}, 99),
        written(old, {"id": 3, "gone": "x"}, first) + b"more",
        written(old, {"id": 3, "gone": "x"}, proto),
        b"\x00\x00\x00",
    ]
    rows, errors = form.decode(pa.array(records))
    assert rows.to_pylist() == [{"id": 1, "label": None}, {"id": 2, "label": "y"}, *[None] * 6]
    texts = errors.to_pylist()
    assert texts[:2] == [None, None]
    assert "no schema registry prefix" in texts[2] and "no Avro of its schema" in texts[3]
    assert f"{registry.url} does not have schema 99" in texts[4] and "4 bytes are left over" in texts[5]
    assert "schema is protobuf" in texts[6] and "begins with 00 00 00" in texts[7]


def test_a_registry_that_is_away_makes_no_record_bad(registry: TinyRegistry) -> None:
    schema = record(("id", "long"))
    number = registry.register("orders-value", {"schema": json.dumps(schema)})
    form = make_format("avro", topic="orders", registry_url=registry.url, options={"registry.timeout.ms": "300"})
    form.arrow_type()
    registry.failures = [(503, b"")] * 50
    with pytest.raises(RegistryUnreachableError):
        form.decode(pa.array([written(schema, {"id": 1}, number)]))
    registry.failures.clear()
    assert form.decode(pa.array([written(schema, {"id": 1}, number)]))[0].to_pylist() == [{"id": 1}]


def test_avro_schemas_may_have_references(registry: TinyRegistry) -> None:
    base = record(("city", "string"), name="shop.Addr")
    whole = record(("home", "shop.Addr"), ("work", ["null", "shop.Addr"]), name="shop.Person")
    registry.register("addr", {"schema": json.dumps(base)})
    reference = {"name": "shop.Addr", "subject": "addr", "version": 1}
    number = registry.register("people-value", {"schema": json.dumps(whole), "references": [reference]})
    form = make_format("avro", topic="people", registry_url=registry.url)
    named: dict[str, Any] = {}
    fastavro.parse_schema(base, named_schemas=named)
    out = io.BytesIO()
    row = {"home": {"city": "B"}, "work": None}
    fastavro.schemaless_writer(out, fastavro.parse_schema(whole, named_schemas=named), row)
    data = b"\x00" + number.to_bytes(4, "big") + out.getvalue()
    rows, errors = form.decode(pa.array([data]))
    assert rows.to_pylist() == [row] and errors.null_count == 1
    assert form.encode(rows).to_pylist() == [data]


def test_writing_registers_or_follows_the_latest(registry: TinyRegistry) -> None:
    rows = pa.array([{"id": 1, "at": AT, "tags": ["x"], "in": {"d": Decimal("1.5")}}])
    with pytest.raises(SchemaNotFoundError, match="subject 'orders-value'"):
        make_format("avro", topic="orders", registry_url=registry.url, options={"register": "false"}).encode(rows)
    form = make_format("avro", topic="orders", registry_url=registry.url)
    data = form.encode(rows)
    assert list(registry.subjects) == ["orders-value"]
    found, _ = make_format("avro", topic="orders", registry_url=registry.url).decode(data)
    assert found.to_pylist() == rows.to_pylist()
    again = make_format("avro", topic="orders", registry_url=registry.url, options={"register": "false"})
    assert again.encode(pa.array([{"id": 2}])).to_pylist()[0][:5] == b"\x00\x00\x00\x00\x01"  # the rest has defaults
    with pytest.raises(EncodingError, match="no field 'idd'; it has at, id, in, tags"):
        again.encode(pa.array([{"idd": 2}]))
    given = make_format(
        "avro", topic="o2", registry_url=registry.url, options={"schema": json.dumps(record(("id", "long")))}
    )
    with pytest.raises(EncodingError, match="Row 1 does not fit the Avro schema"):
        given.encode(pa.array([{"id": 1}, {"id": None}]))
    with pytest.raises(EncodingError, match="do not fit"):
        given.encode(pa.array([{"id": "x"}]))


def test_single_avro_values_are_encoded(registry: TinyRegistry) -> None:
    form = make_format("avro", role="key", topic="orders", registry_url=registry.url)
    keys = form.encode(pa.array(["a", None, "b"]))
    assert json.loads(registry.schemas[0]["schema"]) == "string" and list(registry.subjects) == ["orders-key"]
    assert keys[0].as_py() == b"\x00\x00\x00\x00\x01\x02a"
    reader = make_format("avro", role="key", topic="orders", registry_url=registry.url)
    rows, _ = reader.decode(keys)
    assert rows.to_pylist() == [{"key": "a"}, None, {"key": "b"}]
    assert reader.encode(rows).to_pylist() == keys.to_pylist()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("a", ["int", "string"])), r"union of int32, string at \$\.a"),
        (record(("next", ["null", "R"])), r"contains itself at \$\.next"),
        (record(("a", "Unknown")), "cannot be read"),
        ({"type": "record", "name": "R"}, "cannot be read"),
        (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2})), "38 digits"),
    ],
)
def test_avro_schemas_without_columns_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        make_format("avro", options={"schema": json.dumps(schema)}).arrow_type()
    with pytest.raises(SchemaError, match="cannot be read"):
        make_format("avro", options={"schema": "{"}).arrow_type()


GOOD = written(ORDER, {**ROW, "times": dict(ROW["times"])})  # type: ignore[call-overload]


@given(st.data())
@settings(max_examples=examples(60))
def test_noise_never_raises(data: st.DataObject) -> None:
    form = make_format("avro", options={"schema": json.dumps(ORDER)})
    mutated = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    records = [GOOD, bytes(mutated), data.draw(st.binary(max_size=40)), GOOD]
    rows, errors = form.decode(pa.array(records))
    rows.validate(full=True)
    assert rows[0].as_py() == rows[3].as_py() == ROW
    assert errors[0].as_py() is None and errors[3].as_py() is None
    assert (errors[2].as_py() is None) == rows[2].is_valid
