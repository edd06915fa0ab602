"""Confluent's own serializers and ours, over one registry: each reads what the other writes."""

import json
import warnings
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from millstream.schemas import make_format
from millstream.schemas.protobuf_schema import load_file, message_type
from millstream.schemas.schema_choice import ResolvedSchema
from tests.schemas.tiny_registry import TinyRegistry

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # authlib's, about a module of its own
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

CONTEXT = SerializationContext("orders", MessageField.VALUE)
ROWS: list[dict[str, Any]] = [{"id": 1, "name": "x", "tags": ["a"]}, {"id": 2, "name": "", "tags": []}]
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
)
PROTO = """
syntax = "proto3";
package shop;
message Other { int32 a = 1; }
message Order { int64 id = 1; string name = 2; repeated string tags = 3; }
"""


@pytest.fixture
def confluent(registry: TinyRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def test_avro(registry: TinyRegistry, confluent: SchemaRegistryClient) -> None:
    theirs = AvroSerializer(confluent, AVRO)
    data = pa.array([theirs(row, CONTEXT) for row in ROWS])
    form = make_format("avro", topic="orders", registry_url=registry.url)
    rows, errors = form.decode(data)
    assert rows.to_pylist() == ROWS and errors.null_count == len(ROWS)
    ours = form.encode(rows)
    assert ours.to_pylist() == data.to_pylist()
    assert [AvroDeserializer(confluent)(each, CONTEXT) for each in ours.to_pylist()] == ROWS


def test_json(registry: TinyRegistry, confluent: SchemaRegistryClient) -> None:
    theirs = JSONSerializer(JSON, confluent)
    data = pa.array([theirs(row, CONTEXT) for row in ROWS])
    form = make_format("json", topic="orders", registry_url=registry.url)
    rows, errors = form.decode(data)
    assert rows.to_pylist() == ROWS and errors.null_count == len(ROWS)
    reader = JSONDeserializer(JSON, schema_registry_client=confluent)
    assert [reader(each, CONTEXT) for each in form.encode(rows).to_pylist()] == ROWS


def test_protobuf(registry: TinyRegistry, confluent: SchemaRegistryClient) -> None:
    registry.register("orders-value", {"schema": PROTO, "schemaType": "PROTOBUF"})
    descriptor = message_type(load_file(ResolvedSchema(PROTO, "PROTOBUF")), "Order")
    order = message_factory.GetMessageClass(descriptor)
    config = {"auto.register.schemas": False, "use.latest.version": True, "use.deprecated.format": False}
    theirs = ProtobufSerializer(order, confluent, config)
    data = pa.array([theirs(order(**row), CONTEXT) for row in ROWS])
    form = make_format("protobuf", topic="orders", registry_url=registry.url, options={"message": "shop.Order"})
    rows, errors = form.decode(data)
    assert rows.to_pylist() == ROWS and errors.null_count == len(ROWS)
    ours = form.encode(rows)
    assert ours.to_pylist() == data.to_pylist()
    reader = ProtobufDeserializer(order, {"use.deprecated.format": False}, confluent)
    found = [reader(each, CONTEXT) for each in ours.to_pylist()]
    assert [{"id": each.id, "name": each.name, "tags": list(each.tags)} for each in found] == ROWS
