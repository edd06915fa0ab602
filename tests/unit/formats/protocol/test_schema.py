"""The schema codec against kio, an independent implementation of the same messages, and against hostile bytes."""

import io
import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import (
    Field,
    Message,
    Schema,
    Structure,
    _entries,
    request_schema,
    response_schema,
)

LIMITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}


def all_schemas() -> list[Schema]:
    return [Schema(entry) for entry in _entries().values()]


def random_value(each: Field, kind: str, version: int, rng: random.Random) -> Any:
    if each.name.endswith("error_code"):
        return rng.choice([0, 3, 87])
    if each.name.endswith("_ms"):
        return rng.randrange(0, 1 << 31)
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
        case "string":
            return "".join(rng.choices("abcé\u4e16-", k=rng.randrange(8)))
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(8))
        case "uuid":
            return UUID(int=rng.getrandbits(128))
        case "{}":
            assert each.children is not None
            return random_structure(each.children, version, rng)
        case _:
            low = 0 if kind.startswith("u") else -(1 << LIMITS[kind])
            return rng.randrange(low, 1 << LIMITS[kind])


OUR_FIRST_TAG = 10_000


def random_structure(structure: Structure, version: int, rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in structure.fields:
        if version not in each.versions or (version in each.tagged and rng.random() < 0.5):
            continue
        if each.tag >= OUR_FIRST_TAG:
            continue  # kio knows only Kafka's
        if version in each.nullable and rng.random() < 0.3:
            values[each.name] = None
        elif each.type.startswith("[]"):
            values[each.name] = [random_value(each, each.type[2:], version, rng) for _ in range(rng.randrange(3))]
        else:
            values[each.name] = random_value(each, each.type, version, rng)
    return values


def as_dictionary(message: Message, structure: Structure, version: int) -> dict[str, Any]:
    def convert(each: Field, value: Any) -> Any:
        if value is None or not each.type.endswith("{}"):
            return value
        assert each.children is not None
        if each.type == "[]{}":
            return [as_dictionary(item, each.children, version) for item in value]
        return as_dictionary(value, each.children, version)

    return {f.name: convert(f, getattr(message, f.name)) for f in structure.fields if version in f.versions}


CASES = [
    pytest.param(schema, version, id=f"{schema.name}-{schema.kind}-v{version}")
    for schema in all_schemas()
    if schema.api_key < 10_000  # from there on they are Millstream's own
    for version in range(schema.versions.low, schema.versions.high + 1)
]


@pytest.mark.parametrize(("schema", "version"), CASES)
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(schema: Schema, version: int) -> None:
    kind: Any = EntityType.request if schema.kind == "request" else EntityType.response
    module = load_payload_module(schema.api_key, version, kind)
    entity_type = next(
        v
        for v in vars(module).values()
        if isinstance(v, type) and getattr(v, "__type__", None) is kind and v.__module__ == module.__name__
    )
    rng = random.Random(f"{schema.name} {schema.kind} {version}")
    for _ in range(5):
        encoded = schema.encode(random_structure(schema.root, version, rng), version)
        entity: Any
        entity, size = entity_reader(entity_type)(encoded, 0)
        assert size == len(encoded)
        again = io.BytesIO()
        entity_writer(entity_type)(again, entity)
        decoded = schema.decode(encoded, version)
        # kio spells out some tagged structures that hold nothing but defaults, so meanings are compared, not bytes.
        assert schema.decode(again.getvalue(), version) == decoded
        assert schema.encode(as_dictionary(decoded, schema.root, version), version) == encoded


@given(data=st.binary(max_size=200), case=st.sampled_from(all_schemas()), version=st.integers(0, 18))
def test_random_bytes_are_read_or_refused_and_nothing_else(data: bytes, case: Schema, version: int) -> None:
    version = case.versions.low + version % (case.versions.high - case.versions.low + 1)
    try:
        case.decode(data, version)
    except MalformedMessage:
        pass


def test_an_array_that_claims_more_items_than_bytes_is_refused_before_any_memory_is_taken() -> None:
    schema = request_schema("metadata")
    with pytest.raises(MalformedMessage, match="array of 2147483647 items"):
        schema.decode(b"\x7f\xff\xff\xff" + bytes(8), 8)


def test_fields_that_a_version_does_not_send_have_their_defaults() -> None:
    message = request_schema("metadata").decode(b"\x00\x00\x00\x00", 0)
    assert message.topics == []
    assert message.allow_auto_topic_creation is True


def test_a_field_no_version_knows_is_a_programming_error() -> None:
    with pytest.raises(KeyError, match="no field"):
        response_schema("metadata").encode({"topcis": []}, 12)


def test_unknown_tagged_fields_are_skipped() -> None:
    schema = request_schema("api_versions")
    encoded = bytearray(schema.encode({"client_software_name": "a", "client_software_version": "b"}, 3))
    assert encoded[-1] == 0
    encoded[-1:] = b"\x01\x63\x03xyz"
    assert schema.decode(encoded, 3).client_software_name == "a"
