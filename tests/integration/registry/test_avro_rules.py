"""Invalid Avro is not registered; the measure is Avro's own parser in Java, which ships with Spark."""

import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.registry.decoding import payload_reader
from millstream.registry.errors import RegistryError
from millstream.registry.formats import InvalidSchemaError
from millstream.registry.records import StoredSchema, parse_subject, schema_entry
from millstream.registry.registering import FORMATS, SchemaRequest
from millstream.registry.registry import Registry
from millstream.schemas import make_format

AVRO = FORMATS["AVRO"]
PROGRAM = Path(__file__).parents[2] / "system" / "clients" / "java" / "AvroVerdicts.java"


def refusal(text: str) -> str | None:
    try:
        return AVRO.parse(text, ()).rule_violation()
    except InvalidSchemaError as error:
        return str(error)


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def field(kind: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INVALID: list[tuple[Any, str]] = [
    (record(field("int"), field("long")), "two fields named 'a'"),
    (record(field("int", "a-b")), "field name 'a-b' is illegal"),
    (record(field("int", "")), "field name is empty"),
    (record(name="1R"), "name '1R' is illegal"),
    (record(name="int"), "primitive type"),
    (record(namespace="a-b"), "part of namespace 'a-b' 'a-b' is illegal"),
    (record(namespace="a..b"), "part of namespace 'a..b' is empty"),
    (record(aliases=["x-y"]), "alias 'x-y' is illegal"),
    (["int", "int"], "has int twice"),
    (["int", {"type": "int", "logicalType": "date"}], "has int twice"),
    ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "has array twice"),
    ([ENUM, "E"], "has E twice"),
    (["int", ["string"]], "is itself a union"),
    ({"type": "map", "values": ["int", ["string"]]}, "/values: branch 1 of the union is itself a union"),
    ({"type": "fixed", "name": "F", "size": -1}, "size of fixed F is -1"),
    ({"type": "fixed", "name": "F", "size": "3"}, "size of fixed F is '3'"),
    ({"type": "fixed", "name": "F", "size": 3_000_000_000}, "must be an integer from 0"),
    ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "symbol 'A' twice"),
    ({"type": "enum", "name": "E", "symbols": ["A-B"]}, "symbol 'A-B' is illegal"),
    ({**ENUM, "default": "C"}, "default 'C' of enum E is not one of its symbols"),
    (record(field("int", order="up")), "order is 'up'"),
    (record(field("int", default="x")), "default 'x' is not a value of type int"),
    (record(field("int", default=2**31)), "not a value of type int"),
    (record(field(["null", "int"], default="x")), "not a value of type union"),
    (record(field(["double"], default="NaN")), "not a value of type union"),
    (record(field(ENUM, default="C")), "not a value of type E"),
    (record(field({"type": "fixed", "name": "F", "size": 2}, default="a")), "not a value of type F"),
    (record(field({"type": "array", "items": "int"}, default=["x"])), "not a value of type array"),
    (record(field({"type": "record", "name": "S", "fields": [field("int")]}, default={})), "not a value of type S"),
    (record(field(ENUM), field(ENUM, "b")), "'E' is defined twice"),
    (record(field("S")), "type 'S' is unknown"),
    ({"type": "array"}, "'items' is missing"),
    (5, "5 is not a type"),
]


@pytest.mark.parametrize(("document", "reason"), INVALID, ids=[reason for _, reason in INVALID])
def test_an_invalid_schema_is_refused_with_the_reason(document: Any, reason: str) -> None:
    assert reason in (refusal(json.dumps(document)) or "")


def test_texts_that_are_no_json_in_java() -> None:
    for default in ("NaN", "Infinity", "1e400"):
        assert refusal(f'{{"type":"record","name":"R","fields":[{{"name":"a","type":"double","default":{default}}}]}}')


def test_the_registry_refuses_new_ones_and_still_finds_stored_ones(registry: Registry) -> None:
    subject, text = parse_subject("s"), '["int","int"]'
    for ask in (
        lambda: registry.register(subject, SchemaRequest(text)),
        lambda: registry.check(subject, SchemaRequest(text), None),
    ):
        with pytest.raises(RegistryError, match="has int twice") as refused:
            ask()
        assert refused.value.code == 42201
    # Another registry may have stored one before rules were checked.
    stored = StoredSchema(subject, 1, 1, "AVRO", text)
    registry._log.write(lambda _: [schema_entry(stored)])
    assert registry.lookup(subject, SchemaRequest(text)).id == 1
    assert registry.register(subject, SchemaRequest(text)).id == 1


@pytest.mark.parametrize(
    "decimal",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5},
        {"type": "bytes", "logicalType": "decimal", "precision": "x"},
        {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 99},
    ],
)
def test_a_decimal_that_is_invalid_is_plain_bytes(decimal: dict[str, Any]) -> None:
    text = json.dumps(record(field(decimal)))
    assert refusal(text) is None
    payload = b"x" if decimal["type"] == "fixed" else b"\x02x"
    assert payload_reader("AVRO", AVRO.parse(text, ())).read(payload) == {"a": "eA=="}
    rows, errors = make_format("avro", options={"schema": text}).decode(pa.array([payload]))
    assert rows.to_pylist() == [{"a": b"x"}] and errors.null_count == 1


# Against Java.

NAMES = ["R", "S", "n.R", ".R", "n.m.S", "1x", "a-b", "", "é", "int", "n.int", "record", "n..x", "_", "x$y", 5, None]
VALUES = [
    None, True, 0, 1, -1, 2**31, 2**63, 1.5, "", "x", "A", "ab", "NaN", [], [1], ["x"], {}, {"a": 1}, {"a": "x"}, "é",
    "Ā",
]  # fmt: skip
TYPES = [
    "null",
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    "R",
    "n.R",
    "S",
    "E",
    "Nowhere",
    "array",
]


def some_type(dice: random.Random, depth: int = 3) -> Any:
    choice = dice.random()
    if depth == 0 or choice < 0.4:
        return dice.choice(TYPES[:8] if dice.random() < 0.8 else TYPES)
    inner = lambda: some_type(dice, depth - 1)  # noqa: E731
    name = lambda: dice.choice(NAMES[:5] if dice.random() < 0.9 else NAMES)  # noqa: E731
    more: dict[str, Any] = {}
    if dice.random() < 0.1:
        more["logicalType"] = dice.choice(["date", "decimal", "uuid", 5])
        more |= dice.choice([{}, {"precision": 3}, {"precision": 3, "scale": 5}, {"precision": "x"}])
    if choice < 0.5:
        return [inner() for _ in range(dice.randrange(4))]
    if choice < 0.6:
        return dice.choice([{"type": "array", "items": inner()}, {"type": "map", "values": inner()}]) | more
    if choice < 0.65:
        return {"type": inner()} | more
    named: dict[str, Any] = {"name": name()} | more
    if dice.random() < 0.15:
        named["namespace"] = dice.choice(["n", "", "a.b", "a-b", "a..b", None])
    if dice.random() < 0.15:
        named["aliases"] = [name() for _ in range(2)]
    if dice.random() < 0.1:
        named["doc"] = dice.choice(["text", 5, None])
    if choice < 0.72:
        return named | {"type": "fixed", "size": dice.choice([0, 1, 2, 16, -1, "3", 2.0, 2**31 - 9, 2**31 - 8])}
    if choice < 0.79:
        symbols = [dice.choice(["A", "B", "C", "a_1", "a-b", ""]) for _ in range(dice.randrange(4))]
        default = {"default": dice.choice(["A", "B", 5])} if dice.random() < 0.3 else {}
        return named | {"type": "enum", "symbols": symbols} | default
    fields = []
    for field_name in dice.sample(["a", "b", "c", "d"], dice.randrange(4)):
        row = {"name": field_name if dice.random() < 0.9 else name(), "type": inner()}
        if dice.random() < 0.4:
            row["default"] = dice.choice(VALUES)
        if dice.random() < 0.1:
            row["order"] = dice.choice(["ascending", "DESCENDING", "ignore", "up", 5, None])
        if dice.random() < 0.1:
            row["aliases"] = dice.choice([["x"], ["x", "x"], ["a-b"], "x", [5]])
        fields.append(row)
    return named | {"type": dice.choice(["record"] * 5 + ["error"]), "fields": fields}


def corpus(count: int) -> Iterator[str]:
    for document, _ in INVALID:
        yield json.dumps(document)
    for seed in range(count):
        yield json.dumps(some_type(random.Random(seed)))


STRICTER = (
    "is defined twice",  # Java 1.12 takes a second definition that is the same, older ones do not
    "is unknown",  # Java 1.12 takes names that are defined later, older ones do not
    "has no namespace",
    "must be strings",  # Java leaves out a namespace that is no string
    "is not one of its symbols",  # Java leaves out an enum's default that is no string
    "is not a value of type",  # Java fails later, when the default is needed
)


def java_verdicts(texts: list[str]) -> list[str]:
    jars = Path(pytest.importorskip("pyspark").__file__).parent / "jars"
    wanted = [str(jar) for name in ("avro-1", "jackson-", "slf4j-api", "commons-") for jar in jars.glob(f"{name}*.jar")]
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", ":".join(wanted), str(PROGRAM)]
    done = subprocess.run(command, input="\n".join(texts), capture_output=True, text=True, check=True, timeout=300)
    verdicts = done.stdout.splitlines()
    assert len(verdicts) == len(texts)
    return verdicts


@pytest.mark.parametrize("count", [5_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_java_parses_whatever_is_registered(count: int) -> None:
    texts = list(corpus(count))
    refusals = [refusal(text) for text in texts]
    stored = [AVRO.parse(text, ()).canonical for text, why in zip(texts, refusals, strict=True) if why is None]
    assert len(stored) > count // 20, "enough of them are valid"
    for text, verdict in zip(stored, java_verdicts(stored), strict=True):
        assert verdict[:2] == "ok", (text, verdict)
    refused = [(text, why) for text, why in zip(texts, refusals, strict=True) if why is not None]
    verdicts = java_verdicts([text for text, _ in refused])
    for (text, why), verdict in itertools.compress(
        zip(refused, verdicts, strict=True), [each[:2] == "ok" for each in verdicts]
    ):
        assert any(reason in why for reason in STRICTER), (text, why, verdict)
