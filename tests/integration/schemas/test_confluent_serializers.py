"""Confluent's own serializers and ours, over Millstream's registry: each reads what the other writes."""

import json
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.schemas import Reference, RegistryClient, RegistryError, Schema, make_format
from millstream.schemas.formats import ResolvedSchema
from millstream.schemas.protobuf_schema import load_file, message_type
from millstream.testing import EmbeddedBroker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # authlib's, about a module of its own
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

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


MONEY = 'syntax = "proto3"; package common; message Money { int64 cents = 1; }'
SALE = 'syntax = "proto3"; package shop; import "common/money.proto"; message Sale { common.Money price = 1; }'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedBroker() as broker, Gateway(GatewayOptions(broker.bootstrap_servers)) as gateway:
        yield gateway.url


@pytest.fixture(scope="module")
def confluent(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as client:
        yield client


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_is_that_of_confluents_serializers(url: str, confluent: SchemaRegistryClient) -> None:
    context = value_of("avro")
    theirs = AvroSerializer(confluent, AVRO)
    data = pa.array([theirs(row, context) for row in ROWS])
    form = make_format("avro", topic="avro", registry_url=url)
    rows, errors = form.decode(data)
    assert rows.to_pylist() == ROWS and errors.null_count == len(ROWS)
    ours = form.encode(rows)
    assert ours.to_pylist() == data.to_pylist()
    assert [AvroDeserializer(confluent)(each, context) for each in ours.to_pylist()] == ROWS


def test_an_avro_schema_that_we_made(url: str, confluent: SchemaRegistryClient) -> None:
    row = {"id": 1, "at": datetime(2024, 5, 6, 7, 8, 9, 123_456, UTC), "price": Decimal("1.50"), "in": {"tags": ["a"]}}
    data = make_format("avro", topic="made", registry_url=url).encode(pa.array([row]))
    assert AvroDeserializer(confluent)(data[0].as_py(), value_of("made")) == row
    with pytest.raises(RegistryError, match=r"refuses a schema for subject 'made-value' \(HTTP 409"):
        make_format("avro", topic="made", registry_url=url, options={"schema": AVRO.replace("long", "string")}).encode(
            pa.array([{"id": "x", "name": None, "tags": [""]}])
        )


def test_keys_are_those_of_confluents_serializers(url: str, confluent: SchemaRegistryClient) -> None:
    context = SerializationContext("keys", MessageField.KEY)
    keys = make_format("avro", role="key", topic="keys", registry_url=url).encode(pa.array(["a", None]))
    assert AvroDeserializer(confluent)(keys[0].as_py(), context) == "a"
    assert AvroSerializer(confluent, '"string"')("a", context) == keys[0].as_py()


def test_json_is_that_of_confluents_serializers(url: str, confluent: SchemaRegistryClient) -> None:
    context = value_of("json")
    theirs = JSONSerializer(JSON, confluent)
    data = pa.array([theirs(row, context) for row in ROWS])
    form = make_format("json", topic="json", registry_url=url)
    rows, errors = form.decode(data)
    assert rows.to_pylist() == ROWS and errors.null_count == len(ROWS)
    reader = JSONDeserializer(JSON, schema_registry_client=confluent)
    assert [reader(each, context) for each in form.encode(rows).to_pylist()] == ROWS


def message_class(schema: ResolvedSchema, name: str) -> Any:
    return message_factory.GetMessageClass(message_type(load_file(schema), name))


def test_protobuf_is_that_of_confluents_serializers(url: str, confluent: SchemaRegistryClient) -> None:
    context = value_of("protobuf")
    order = message_class(ResolvedSchema(PROTO, "PROTOBUF"), "Order")
    theirs = ProtobufSerializer(order, confluent, {"use.deprecated.format": False})
    data = pa.array([theirs(order(**row), context) for row in ROWS])
    form = make_format("protobuf", topic="protobuf", registry_url=url, options={"message": "shop.Order"})
    rows, errors = form.decode(data)
    assert rows.to_pylist() == ROWS and errors.null_count == len(ROWS)
    ours = form.encode(rows)
    assert ours.to_pylist() == data.to_pylist()
    # Another client: the one that registered keeps schemas as text, which the deserializer cannot read.
    with SchemaRegistryClient({"url": url}) as another:
        reader = ProtobufDeserializer(order, {"use.deprecated.format": False}, another)
        found = [reader(each, context) for each in ours.to_pylist()]
    assert [{"id": each.id, "name": each.name, "tags": list(each.tags)} for each in found] == ROWS


def test_protobuf_with_a_reference(url: str) -> None:
    client = RegistryClient(url)
    client.register("money", Schema(MONEY, "PROTOBUF"))
    schema_id = client.register("sales-value", Schema(SALE, "PROTOBUF", (Reference("common/money.proto", "money", 1),)))
    form = make_format("protobuf", topic="sales", registry_url=url)
    rows = pa.array([{"price": {"cents": 5}}], form.arrow_type())
    data = form.encode(rows)
    sale = message_class(ResolvedSchema(SALE, "PROTOBUF", (("common/money.proto", MONEY),)), "Sale")
    expected = sale()
    expected.price.cents = 5
    assert data.to_pylist() == [b"\x00" + schema_id.to_bytes(4, "big") + b"\x00" + expected.SerializeToString()]
    assert form.decode(data)[0].to_pylist() == rows.to_pylist()
