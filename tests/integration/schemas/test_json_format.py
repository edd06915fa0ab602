"""JSON records as typed columns: the same by either way of reading, each misfit named, and back."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.schemas import SchemaError, make_format
from millstream.schemas.json_format import JsonFormat
from tests.examples import examples
from tests.unit.schemas.tiny_registry import TinyRegistry

DDL = (
    "id bigint, name string, amount double, at timestamp, day date, tags array<string>, "
    "addr struct<city:string,zip:int>, on boolean"
)


def json_format(schema: str = DDL, **options: str) -> JsonFormat:
    made = make_format("json", options={"schema": schema, **options})
    assert isinstance(made, JsonFormat)
    return made


GOOD = b'{"id": 7, "name": "x", "amount": 1, "at": "2024-05-06T07:08:09.5+02:00", "day": "2024-05-06", "tags": ["a", null], "addr": {"city": "B", "zip": 5, "more": []}, "on": true, "more": {}}'  # noqa: E501
READ = {
    "id": 7, "name": "x", "amount": 1.0, "at": datetime(2024, 5, 6, 5, 8, 9, 500_000, UTC), "day": date(2024, 5, 6),
    "tags": ["a", None], "addr": {"city": "B", "zip": 5}, "on": True,
}  # fmt: skip
EMPTY: dict[str, Any] = dict.fromkeys(READ)


def test_json_records_of_all_types_are_decoded() -> None:
    values = pa.array([GOOD, None, b"{}", b'{"name": null}'])
    rows, errors = json_format().decode(values)
    assert rows.type == json_format().arrow_type()
    assert rows.to_pylist() == [READ, None, EMPTY, EMPTY]
    assert errors.to_pylist() == [None] * 4 and errors.type == pa.string()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\x00\x00\x00\x00\x05{}", "no JSON"),
        (b'{"name": "\xff"}', "no JSON"),
        (b'{"name": "\\ud800"}', "no JSON"),
        (b'{"id": 1} {"id": 2}', "no JSON"),
        (b"[1]", "the record is [1], not an object"),
        (b"5", "the record is 5, not an object"),
        (b'{"id": 5.5}', "id is 5.5, not an integer"),
        (b'{"id": "5"}', "id is '5', not an integer"),
        (b'{"id": true}', "id is True, not an integer"),
        (b'{"id": 99999999999999999999}', "id is 1e+20, not an integer"),
        (b'{"amount": true}', "amount is True, not a number"),
        (b'{"amount": "1"}', "amount is '1', not a number"),
        (b'{"name": 5}', "name is 5, not a string"),
        (b'{"on": 1}', "on is 1, not true or false"),
        (b'{"at": "yesterday"}', "at is 'yesterday', not a time"),
        (b'{"at": 1e300}', "at is 1e+300, not a time"),
        (b'{"day": "2024-13-01"}', "day is '2024-13-01', not a date"),
        (b'{"tags": "ab"}', "tags is 'ab', not an array"),
        (b'{"tags": [1]}', "tags[] is 1, not a string"),
        (b'{"addr": []}', "addr is [], not an object"),
        (b'{"addr": {"zip": "x"}}', "addr.zip is 'x', not an integer"),
        (b'{"addr": {"zip": 3000000000}}', "the value does not fit its type"),
        (b'{"a":' * 100_000, "no JSON"),
    ],
)
def test_a_bad_record_is_null_and_says_why(record: bytes, reason: str) -> None:
    rows, errors = json_format().decode(pa.array([GOOD, record, GOOD]))
    assert rows.to_pylist() == [READ, None, READ]
    assert errors[0].as_py() is None and errors[2].as_py() is None
    assert reason in errors[1].as_py() and len(errors[1].as_py()) < 400


def test_times_in_many_spellings() -> None:
    spellings = [
        1_700_000_000_123,
        "2023-11-14T22:13:20.123Z",
        "2023-11-14 22:13:20.123",
        "2023-11-15T00:13:20.123+02:00",
    ]
    for chosen in (spellings, spellings[1:2] * 2, spellings[2:3] * 2):
        rows, errors = json_format("at timestamp").decode(pa.array([orjson.dumps({"at": each}) for each in chosen]))
        assert errors.null_count == len(chosen)
        assert {row["at"] for row in rows.to_pylist()} == {datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)}
    rows, _ = json_format("at timestamp_ntz").decode(pa.array([b'{"at": "2023-11-14T22:13:20"}']))
    assert rows.to_pylist() == [{"at": datetime(2023, 11, 14, 22, 13, 20)}]


def test_decimals_bytes_and_maps() -> None:
    form = json_format("d decimal(10, 2), b binary, m map<string, bigint>")
    rows, errors = form.decode(
        pa.array([b'{"d": 1.25, "b": "AAE=", "m": {"x": 1, "y": null}}', b'{"d": "7"}', b'{"d": 1.234}', b'{"b": "?"}'])
    )
    assert rows.to_pylist()[:2] == [
        {"d": Decimal("1.25"), "b": b"\x00\x01", "m": [("x", 1), ("y", None)]},
        {"d": Decimal("7.00"), "b": None, "m": None},
    ]
    assert "does not fit" in errors[2].as_py() and errors[3].as_py() == "b is '?', not base64"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.just("2024-01-02"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["city", "zip"]), inner, max_size=2),
    max_leaves=3,
)
RECORDS = st.dictionaries(
    st.sampled_from(["id", "name", "amount", "at", "day", "tags", "addr", "on"]), JSON, max_size=4
)
TEXTS = RECORDS.map(lambda row: json.dumps(row).encode()) | st.binary(max_size=10) | st.just(GOOD) | st.none()


@given(st.lists(TEXTS, min_size=1, max_size=5))
@settings(max_examples=examples(60))
def test_both_ways_of_reading_agree(records: list[bytes | None]) -> None:
    form = json_format()
    values = pa.array(records, pa.binary())
    together = form._decode_together(values)
    singly, errors = form._decode_singly(values)
    if together is not None:
        assert errors.null_count == len(records)
        assert together.equals(singly)
    rows, _ = form.decode(values)
    assert rows.equals(singly)


def test_deep_nesting_does_no_harm() -> None:
    deep = b'{"id": 1, "other": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    rows, errors = json_format("id bigint").decode(pa.array([b'{"id": 1}', deep]))
    assert rows[0].as_py() == {"id": 1} and errors[0].as_py() is None
    assert rows[1].is_valid or "no JSON" in errors[1].as_py()


def test_one_bad_record_does_not_spoil_a_large_batch() -> None:
    records = [b'{"id": %d}' % number for number in range(2000)]
    records[777] = b"bad"
    rows, errors = json_format().decode(pa.array(records))
    assert [row and row["id"] for row in rows.to_pylist()] == [None if n == 777 else n for n in range(2000)]
    assert errors.null_count == 1999


def test_records_that_only_the_slow_way_can_read() -> None:
    form = json_format("at timestamp")
    for _ in range(30):
        rows, errors = form.decode(pa.array([b'{"at": 1}', b'{"at": "2024-01-01T00:00:00Z"}']))
        assert errors.null_count == 2 and rows.null_count == 0


SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "definitions": {"money": {"type": "object", "properties": {"cents": {"type": "integer"}}}},
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "price": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/money"}]},
        "at": {"type": "string", "format": "date-time"},
        "sort": {"enum": ["a", "b"]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "ratio": {"type": ["integer", "number"]},
        "list": {"type": "array", "items": {"type": "boolean"}},
        "blob": {"type": "string", "contentEncoding": "base64"},
    },
}


def test_json_schema_to_types() -> None:
    assert str(json_format(json.dumps(SCHEMA)).arrow_type()) == (
        "struct<id: int64, name: string, price: struct<cents: int64>, at: timestamp[us, tz=UTC], sort: string, "
        "counts: map<string, int64>, ratio: double, list: list<element: bool>, blob: binary>"
    )


REQUIRED = {
    "type": "object",
    "definitions": {
        "part": {
            "type": "object",
            "required": ["no"],
            "properties": {"no": {"type": "integer"}, "x": {"type": "string"}},
        }
    },
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "nick": {"type": "string"},
        "level": {"type": "integer", "default": 1},
        "part": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/part"}]},
        "parts": {"type": "array", "items": {"$ref": "#/definitions/part"}},
    },
    "required": ["id", "note", "level"],
    "allOf": [{"required": ["nick"]}, {"$ref": "#"}],
}
COMPLETE = {"id": 1, "note": "n", "nick": "x", "level": 2, "part": {"no": 1}, "parts": [{"no": 2, "x": "y"}]}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in COMPLETE.items() if key != name}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (without("id"), "id is missing, and the schema requires it"),
        (COMPLETE | {"id": None}, "id is null, which the schema does not allow"),
        (without("note"), "note is missing"),
        (COMPLETE | {"note": None}, None),
        (without("nick"), "nick is missing"),
        (without("level"), None),
        (without("part"), None),
        (COMPLETE | {"part": None}, None),
        (COMPLETE | {"part": {"x": "y"}}, "part.no is missing"),
        (COMPLETE | {"parts": [{"no": 1}, {"x": "y"}]}, "parts[].no is missing"),
        (COMPLETE | {"parts": [None]}, "parts has a null in it"),
        (COMPLETE | {"parts": None}, None),
        (None, "the record is null, which the schema does not allow"),
    ],
)
def test_a_record_without_a_required_property_is_a_bad_record(record: Any, reason: str | None) -> None:
    values = pa.array([orjson.dumps(COMPLETE), None, orjson.dumps(record), orjson.dumps(COMPLETE)])
    for form in (json_format(json.dumps(REQUIRED)), pickle.loads(pickle.dumps(json_format(json.dumps(REQUIRED))))):
        for rows, errors in (form.decode(values), form._decode_singly(values)):
            assert errors.is_null().to_pylist() == [True, True, reason is None, True]
            assert rows.is_valid().to_pylist() == [True, False, reason is None, True]
            assert reason is None or reason in errors[2].as_py()


def test_a_required_property_without_a_column_and_a_map() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "m": {"type": "object", "additionalProperties": {"type": "integer"}}},
        "required": ["other"],
    }
    records = [b'{"other": [], "m": {"x": 1}}', b'{"a": 1}', b'{"other": 1, "m": {"x": null}}']
    _, errors = json_format(json.dumps(schema)).decode(pa.array(records))
    assert [error and error.split(",")[0] for error in errors.to_pylist()] == [
        None, "other is missing", "m has a null in it"
    ]  # fmt: skip


def test_alternatives_require_what_each_of_them_requires() -> None:
    kinds = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"anyOf": [{"type": "object", "properties": kinds, "required": each} for each in (["a"], ["a", "b"])]}
    _, errors = json_format(json.dumps(schema)).decode(pa.array([b'{"a": 1}', b'{"b": 1}']))
    assert errors.is_null().to_pylist() == [True, False]


REQUIRED_RECORDS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from([1, None]), "note": st.sampled_from(["n", None]), "nick": st.sampled_from(["x", None]),
        "part": st.sampled_from([None, {}, {"no": 1}, {"no": None}]),
        "parts": st.sampled_from([None, [], [{"no": 1}], [{}], [None]]),
    },
)  # fmt: skip


@given(st.lists(st.none() | REQUIRED_RECORDS, min_size=1, max_size=6))
@settings(max_examples=examples(60))
def test_both_ways_of_reading_agree_on_what_is_required(records: list[Any]) -> None:
    form = json_format(json.dumps(REQUIRED))
    values = pa.array([None if record is None else orjson.dumps(record) for record in records], pa.binary())
    rows, errors = form.decode(values)
    singly, reasons = form._decode_singly(values)
    assert errors.to_pylist() == reasons.to_pylist() and rows.to_pylist() == singly.to_pylist()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object"}, r"names no properties of the object at \$"),
        (
            {"properties": {"a": {"type": ["string", "integer"]}}},
            r"allows string or int64 at \$\.a; a column has one type",
        ),
        ({"properties": {"a": {}}}, r"has no type at \$\.a"),
        ({"properties": {"a": {"type": "array"}}}, r"has no type at \$\.a\[\]"),
        ({"properties": {"a": {"$ref": "#"}}}, r"contains itself at \$\.a\.a"),
        ({"properties": {"a": {"$ref": "#/definitions/x"}}}, "which does not exist"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "not among its references"),
        ({"properties": {"a": {"type": "text"}}}, "no type 'text'"),
    ],
)
def test_json_schemas_without_columns_are_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        json_format(json.dumps(schema)).arrow_type()


def test_json_rows_are_encoded_and_decoded(registry: TinyRegistry) -> None:
    rows = pa.array([READ, None, EMPTY], json_format().arrow_type())
    bare = json_format().encode(rows)
    assert json.loads(bare[0].as_py())["at"] == "2024-05-06T05:08:09.500000Z"
    assert bare.to_pylist()[1:] == [None, b"{}"]
    assert json_format().decode(bare)[0].equals(rows)
    writer = make_format("json", topic="orders", registry_url=registry.url)
    framed = writer.encode(rows)
    assert framed[0].as_py()[:5] == b"\x00\x00\x00\x00\x01" and list(registry.subjects) == ["orders-value"]
    before = len(registry.requests)
    writer.encode(rows)
    assert len(registry.requests) == before
    reader = pickle.loads(pickle.dumps(make_format("json", topic="orders", registry_url=registry.url)))
    found, errors = reader.decode(framed)
    assert found.to_pylist() == rows.to_pylist() and errors.null_count == 3
    _, errors = reader.decode(pa.array([framed[0].as_py(), b'{"id": 1}', b"\x00"]))
    assert errors.is_null().to_pylist() == [True, True, False]


def test_single_json_values_are_encoded(registry: TinyRegistry) -> None:
    form = make_format("json", role="key", topic="orders", registry_url=registry.url)
    keys = form.encode(pa.array(["a", None]))
    assert keys.to_pylist() == [b'\x00\x00\x00\x00\x01"a"', None]
    rows, errors = make_format("json", role="key", topic="orders", registry_url=registry.url).decode(keys)
    assert rows.to_pylist() == [{"key": "a"}, None] and errors.null_count == 2


def test_decimals_are_written_exactly() -> None:
    rows = pa.array(
        [{"d": Decimal("12345678901234567.89"), "b": b"\x00"}],
        pa.struct([("d", pa.decimal128(20, 2)), ("b", pa.binary())]),
    )
    assert json_format("d decimal(20,2), b binary").encode(rows).to_pylist() == [
        b'{"d":12345678901234567.89,"b":"AA=="}'
    ]
