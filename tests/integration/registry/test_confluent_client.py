"""Confluent's own Python client and its three serializers, through a real broker and our registry."""

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from authlib.deprecate import AuthlibDeprecationWarning
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from millstream.gateway.server import Gateway
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.schema_registry.schema_registry_client import ConfigCompatibilityLevel, ServerConfig
    from confluent_kafka.serialization import MessageField, SerializationContext

pytestmark = pytest.mark.timeout(300)

USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
USER_2 = {**USER, "fields": [*USER["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}
USER_3 = {**USER, "fields": [*USER["fields"], {"name": "mail", "type": "string"}]}
JSON_USER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "User",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@pytest.fixture
def client(gateway: Gateway) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": gateway.url}) as client:
        yield client


def avro(document: Any) -> Schema:
    return Schema(json.dumps(document), "AVRO")


def through_the_broker(broker: EmbeddedBroker, topic: str, values: list[bytes]) -> list[bytes]:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    read: list[bytes] = []
    try:
        while len(read) < len(values):
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None and message.error() is None
            found = message.value()
            assert found is not None
            read.append(found)
    finally:
        consumer.close()
    return read


def order_class() -> Any:
    """A message as generated code would have it, with an import that is a reference in the registry."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    money = descriptor_pb2.FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    amount = money.message_type.add(name="Money")
    amount.field.add(name="cents", number=1, type=3, label=1)
    order = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    order.dependency.extend(["shop/money.proto", "google/protobuf/timestamp.proto"])
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=9, label=1)
    message.field.add(name="total", number=2, type=11, label=1, type_name=".shop.Money")
    message.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    pool.AddSerializedFile(money.SerializeToString())
    pool.AddSerializedFile(order.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_confluents_client_reads_and_writes_avro(
    client: SchemaRegistryClient, broker: EmbeddedBroker, topic: str
) -> None:
    name = f"avro{topic}"
    context = SerializationContext(name, MessageField.VALUE)
    write, write_2 = AvroSerializer(client, json.dumps(USER)), AvroSerializer(client, json.dumps(USER_2))
    values = [write({"name": "Ann"}, context), write_2({"name": "Bob", "age": 7}, context)]
    read = AvroDeserializer(client, json.dumps(USER_2))
    rows = [read(value, context) for value in through_the_broker(broker, name, values)]
    assert rows == [{"name": "Ann", "age": None}, {"name": "Bob", "age": 7}]
    assert client.get_versions(f"{name}-value") == [1, 2]


def test_confluents_client_reads_and_writes_json(
    client: SchemaRegistryClient, broker: EmbeddedBroker, topic: str
) -> None:
    name = f"json{topic}"
    context = SerializationContext(name, MessageField.VALUE)
    write, read = JSONSerializer(json.dumps(JSON_USER), client), JSONDeserializer(None, schema_registry_client=client)
    users = [{"name": "Ann", "age": 7}, {"name": "Bob"}]
    values = through_the_broker(broker, name, [write(user, context) for user in users])
    assert [read(value, context) for value in values] == users
    assert client.get_latest_version(f"{name}-value").schema.schema_type == "JSON"


def test_protobuf_with_an_import(client: SchemaRegistryClient, broker: EmbeddedBroker, topic: str) -> None:
    name = f"protobuf{topic}"
    order = order_class()
    context = SerializationContext(name, MessageField.VALUE)
    write, read = ProtobufSerializer(order, client), ProtobufDeserializer(order, schema_registry_client=client)
    sent = order(id="a", total={"cents": 250}, at={"seconds": 5})
    (value,) = through_the_broker(broker, name, [write(sent, context)])
    assert read(value, context) == sent

    stored = client.get_latest_version(f"{name}-value")
    assert stored.schema.schema_str is not None and stored.schema.references is not None
    assert "message Order {" in stored.schema.schema_str, "text, whatever was sent"
    assert [row.name for row in stored.schema.references] == ["shop/money.proto"]
    money = client.get_latest_version("shop/money.proto")
    assert money.version is not None
    assert client.get_referenced_by("shop/money.proto", money.version) == [stored.schema_id]
    again = Schema(stored.schema.schema_str, "PROTOBUF", stored.schema.references)
    assert client.register_schema(f"{name}-value", again) == stored.schema_id, "its text is the same schema"
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_version("shop/money.proto", money.version)
    assert refused.value.error_code == 42206


def test_registering_looking_up_and_deleting(client: SchemaRegistryClient) -> None:
    first = client.register_schema("users-value", avro(USER))
    second = client.register_schema("users-value", avro(USER_2))
    assert client.register_schema("people-value", avro(USER)) == first
    spaced = Schema(json.dumps(USER, indent=4), "AVRO")
    assert client.lookup_schema("users-value", spaced).version == 1
    assert json.loads(client.get_schema(second).schema_str or "") == USER_2
    assert client.get_subjects() == ["people-value", "users-value"]
    assert sorted(str(row.subject) for row in client.get_schema_versions(first)) == ["people-value", "users-value"]
    assert client.get_version("users-value", 1).schema_id == first

    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("users-value", avro(USER_3))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert "mail" in refused.value.error_message and "/fields/1" in refused.value.error_message
    assert not client.test_compatibility("users-value", avro(USER_3))
    assert client.test_compatibility("users-value", avro(USER_2))

    assert client.delete_version("users-value", 2) == 2
    assert client.get_latest_version("users-value").version == 1
    assert client.delete_subject("users-value") == [1]
    assert client.get_subjects() == ["people-value"]
    assert client.get_subjects(deleted=True) == ["people-value", "users-value"]
    assert json.loads(client.get_schema(second).schema_str or "") == USER_2, (
        "data of deleted versions can still be read"
    )
    assert client.delete_subject("users-value", permanent=True) == [1, 2]
    assert client.get_subjects(deleted=True) == ["people-value"]
    assert client.register_schema("users-value", avro(USER_2)) == second + 1, "an id is not given twice"


def test_config_mode_and_contexts(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility("users-value", "FULL_TRANSITIVE")
    assert client.get_compatibility("users-value") == "FULL_TRANSITIVE"
    client.set_config("users-value", ServerConfig(compatibility=ConfigCompatibilityLevel.NONE))
    client.register_schema("users-value", avro(USER))
    client.register_schema("users-value", avro(USER_3))
    client.delete_config("users-value")

    client.update_mode("users-value", "READONLY")
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("users-value", avro(USER_2))
    assert refused.value.error_code == 42205
    client.delete_mode("users-value")
    assert client.get_global_mode() == "READWRITE"

    assert client.register_schema(":.team:users-value", avro({**USER, "name": "Other"})) == 1, "ids of its own"
    assert client.get_contexts() == [".", ".team"]


def test_a_registry_that_is_started_again_knows_everything(start_gateway: Callable[[], Gateway]) -> None:
    reference = [SchemaReference("User", "user", 1)]
    members = {"name": "members", "type": {"type": "array", "items": "User"}}
    group = {"type": "record", "name": "Group", "fields": [members]}
    first = start_gateway()
    with SchemaRegistryClient({"url": first.url}) as client:
        client.register_schema("user", avro(USER))
        group_id = client.register_schema("group", Schema(json.dumps(group), "AVRO", reference))
        client.set_compatibility("group", "FULL")
    first.stop()

    with SchemaRegistryClient({"url": start_gateway().url}) as client:
        resolved = json.loads(client.get_schema(group_id, fmt="resolved").schema_str)
        assert resolved["fields"][0]["type"]["items"]["name"] == "User", "with what it refers to"
        client.clear_caches()
        found = client.get_schema(group_id)
        assert json.loads(found.schema_str) == group
        assert [(row.name, row.subject, row.version) for row in found.references] == [("User", "user", 1)]
        assert client.get_compatibility("group") == "FULL"
        assert client.register_schema("another", Schema(json.dumps(group), "AVRO", reference)) == group_id
