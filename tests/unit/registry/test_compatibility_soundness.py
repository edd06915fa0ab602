"""What is called compatible is: data made with one schema is read with another by libraries that know nothing of us."""

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.schema import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.registry.formats import Dependency
from millstream.registry.json_schema.documents import VALIDATION_KEYWORDS
from millstream.registry.registering import FORMATS
from tests.examples import examples
from tests.integration.registry.json_pairs import UnjudgedError, at, first_witness, pair, places, verdict

AVRO = FORMATS["AVRO"]

SEEDS = range(120)


@pytest.mark.parametrize(
    "seeds", [range(examples(120)), pytest.param(range(1_000, 6_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_json_documents_stay_valid(seeds: range) -> None:
    compatible = 0
    skipped: list[str] = []
    for seed in seeds:
        draft, reader, writer = pair(seed)
        if verdict(reader, writer):
            compatible += 1
            try:
                witness = first_witness(draft, reader, writer)
            except UnjudgedError as error:
                skipped.append(f"seed {seed}: {error}")
                continue
            assert witness is None, (seed, witness, reader, writer)
    assert compatible > len(seeds) // 4, "enough of them are compatible"
    assert len(skipped) <= len(seeds) // 100, skipped


def test_the_pairs_have_every_keyword() -> None:
    met: set[str] = set()
    for seed in SEEDS:
        for schema in pair(seed)[1:]:
            for place in places(schema):
                found = at(schema, place)
                met.update(found if isinstance(found, dict) else ())
    assert met >= VALIDATION_KEYWORDS


TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"items": {"$ref": "#/$defs/T"}}}}
WIDER = {"type": "object", "properties": {"v": {"type": "number"}, "kids": {"items": {"$ref": "#/$defs/T"}}}}
SELF = {"allOf": [{"$ref": "#"}], "type": "object"}
KINDS = [{"properties": {"k": {"const": f"k{number}"}}, "required": ["k"], "type": "object"} for number in range(16)]
MANY = [{"anyOf": [{"maxLength": number}, {"minLength": number}, {"maximum": number}]} for number in range(14)]
CROWD = [
    {
        "type": "object",
        "properties": {"k": {"const": f"k{number}"}, "a": {"type": "integer"}},
        "required": ["k"],
        "additionalProperties": False,
    }
    for number in range(40)
]
GROWN: list[Any] = [{**kind, "properties": {**kind["properties"], "b": {"type": "string"}}} for kind in CROWD]  # type: ignore[dict-item]
BASE = Dependency("base", '{"properties": {"id": {"$ref": "#/$defs/I"}}, "$defs": {"I": {"type": "integer"}}}')


@pytest.mark.parametrize(
    ("reader", "writer", "verdicts"),
    [
        ({"$ref": "#/$defs/T", "$defs": {"T": WIDER}}, {"$ref": "#/$defs/T", "$defs": {"T": TREE}}, []),
        ({"$ref": "#/$defs/T", "$defs": {"T": TREE}}, {"$ref": "#/$defs/T", "$defs": {"T": WIDER}}, ["TYPE_CHANGED"]),
        (SELF, {**SELF, "title": "x"}, []),
        ({"type": "object"}, SELF, []),
        ({"$ref": "#"}, {"type": "string"}, ["CONDITION_CHANGED"]),
        ({"oneOf": KINDS}, {"oneOf": KINDS[:-1]}, []),
        ({"oneOf": GROWN}, {"oneOf": CROWD}, []),
        ({"oneOf": [*GROWN[:1], *CROWD[1:]]}, {"oneOf": CROWD}, []),
        ({"oneOf": CROWD}, {"oneOf": [*CROWD[1:], *GROWN[:1]]}, ["SUM_TYPE_NARROWED"]),
        ({"allOf": [*MANY, {"minLength": 1}]}, {"allOf": MANY}, ["TOO_COMPLEX"]),
        ({"properties": {"id": {"type": "number"}}}, {"allOf": [{"$ref": "base"}, {"maxProperties": 3}]}, []),
        ({"patternProperties": {r"(a)\1": {"type": "string"}}}, {"properties": {"aa": {"type": "integer"}},
          "additionalProperties": False}, ["TYPE_CHANGED"]),
    ],
    ids=["tree", "narrower tree", "self", "written self", "only self", "kinds", "many kinds changed",
         "one of many changed", "one of many narrowed", "too many", "documents", "no RE2"],
)  # fmt: skip
def test_circles_and_crowds_come_to_a_verdict(reader: Any, writer: Any, verdicts: list[str]) -> None:
    new, old = (FORMATS["JSON"].parse(json.dumps(each), (BASE,)) for each in (reader, writer))
    assert [problem.kind for problem in new.problems_reading(old)] == verdicts


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


@settings(max_examples=examples(120))
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
    row: Any = fastavro.schemaless_reader(written, parse_schema(writer), parse_schema(reader))
    assert set(row) == {field["name"] for field in reader["fields"]}
