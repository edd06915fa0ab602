"""What is called compatible is: data made with one schema is read with another by libraries that know nothing of us."""

import io
import json
from typing import Any

import fastavro
from fastavro.schema import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from millstream.registry.formats.table import FORMATS

AVRO, JSON = FORMATS["AVRO"], FORMATS["JSON"]

# JSON Schema: few names and small numbers, so that schemas meet.
names = st.sampled_from(["a", "b"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from([0.5, 2.0]), st.sampled_from(["", "a", "bb", "abc"])
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2), max_leaves=6
)
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
plain = st.fixed_dictionaries(
    {},
    optional={
        "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
        "maxLength": st.integers(0, 3), "minLength": st.integers(0, 2), "pattern": st.sampled_from(["^a", "b$"]),
        "maximum": st.integers(-1, 4), "minimum": st.integers(-1, 3), "exclusiveMaximum": st.integers(0, 4),
        "multipleOf": st.sampled_from([1, 2, 0.5]), "maxItems": st.integers(0, 3), "minItems": st.integers(0, 2),
        "uniqueItems": st.booleans(), "required": st.lists(names, max_size=2, unique=True),
        "maxProperties": st.integers(0, 2), "minProperties": st.integers(0, 2),
    },
)  # fmt: skip
chosen = st.one_of(
    st.builds(lambda values: {"enum": values}, st.lists(documents, min_size=1, max_size=3, unique_by=repr)),
    st.builds(lambda value: {"const": value}, documents),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.builds(
        lambda one, two: {**one, **two},
        plain,
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(names, inner, max_size=2), "additionalProperties": inner,
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
                "items": inner, "propertyNames": inner, "anyOf": several, "allOf": several, "not": inner,
                "contains": inner, "dependencies": st.dictionaries(names, inner, max_size=1),
            },
        ),
    )  # fmt: skip


schemas = st.recursive(st.one_of(plain, chosen, st.booleans()), composed, max_leaves=5)


@settings(max_examples=100)
@given(reader=schemas, writer=schemas, data=st.data())
def test_json_documents_stay_valid(reader: Any, writer: Any, data: st.DataObject) -> None:
    if data.draw(st.booleans()) and isinstance(writer, dict) and isinstance(reader, dict):
        reader = {**writer, **reader} if data.draw(st.booleans()) else {**reader, **writer}  # likely to be compatible
    problems = JSON.parse(json.dumps(reader), ()).problems_reading(JSON.parse(json.dumps(writer), ()))
    if problems:
        return
    for document in data.draw(st.lists(documents, min_size=4, max_size=8)):
        if Draft7Validator(writer).is_valid(document):
            assert Draft7Validator(reader).is_valid(document), document


# Avro: records of a few fields, whose types may be anything.
def named(kind: str, **rest: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.just(kind), **rest})


leaves = st.one_of(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"]),
    named("enum", name=st.just("E"), symbols=st.lists(st.sampled_from("XYZ"), min_size=1, unique=True)),
    named("fixed", name=st.just("F"), size=st.integers(1, 2)),
)
avro_types = st.one_of(
    leaves,
    st.builds(lambda inner: {"type": "array", "items": inner}, leaves),
    st.builds(lambda inner: {"type": "map", "values": inner}, leaves),
    st.lists(leaves, min_size=1, max_size=3, unique_by=lambda one: one if isinstance(one, str) else one["type"]),
)
records = st.dictionaries(st.sampled_from(["a", "b", "c"]), avro_types, max_size=2).map(
    lambda fields: {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": renamed(kind, name)} for name, kind in fields.items()],
    }
)


def renamed(kind: Any, field: str) -> Any:
    """Named types of different fields have different names."""
    if isinstance(kind, list):
        return [renamed(one, field) for one in kind]
    if not isinstance(kind, dict):
        return kind
    inner = {key: renamed(value, field) for key, value in kind.items() if key in ("items", "values")}
    return {**kind, **inner, **({"name": kind["name"] + field} if "name" in kind else {})}


def values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.one_of([values(one) for one in kind])
    if isinstance(kind, str):
        return {
            "null": st.none(), "boolean": st.booleans(), "int": st.integers(-9, 9), "long": st.integers(-9, 9),
            "float": st.just(0.5), "double": st.just(0.5), "bytes": st.just(b"x"), "string": st.just("x"),
        }[kind]  # fmt: skip
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    if kind["type"] == "fixed":
        return st.just(b"x" * kind["size"])
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=2)
    if kind["type"] == "map":
        return st.dictionaries(st.just("k"), values(kind["values"]), max_size=1)
    return st.fixed_dictionaries({row["name"]: values(row["type"]) for row in kind["fields"]})


@settings(max_examples=120)
@given(reader=records, writer=records, data=st.data())
def test_avro_records_are_read(reader: Any, writer: Any, data: st.DataObject) -> None:
    if data.draw(st.booleans()):  # likely to be compatible
        known = {row["name"]: row for row in writer["fields"]}
        reader["fields"] = [known.get(row["name"], row) for row in reader["fields"]]
    problems = AVRO.parse(json.dumps(reader), ()).problems_reading(AVRO.parse(json.dumps(writer), ()))
    if problems:
        return
    written = io.BytesIO()
    fastavro.schemaless_writer(written, parse_schema(writer), data.draw(values(writer)))
    written.seek(0)
    row = fastavro.schemaless_reader(written, parse_schema(writer), parse_schema(reader))
    assert set(row) == {field["name"] for field in reader["fields"]}
