"""`millstream.value.schema.validation`: the broker takes only records that carry an id of the topic's subject."""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from authlib.deprecate import AuthlibDeprecationWarning
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.integration.gateway.conftest import Caller
from tests.topics import await_topic
from tests.waiting import TIMEOUT_SECONDS

with warnings.catch_warnings():
    # A library of Confluent's client warns of its own when it is imported.
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

pytestmark = pytest.mark.timeout(300)
AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
JSON = '{"title":"R","type":"object","properties":{"a":{"type":"integer"}}}'
_numbers = itertools.count()


def guarded_topic(bootstrap: str, *, part: str = "value", **settings: str) -> str:
    name = f"guarded-{next(_numbers)}"
    new = NewTopic(name, 1, -1, config={f"millstream.{part}.schema.validation": "true", **settings})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[name].result(TIMEOUT_SECONDS)
    return name


class Sender:
    """Sends one record and says what became of it."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "delivery.timeout.ms": 120_000} | settings
        )

    def __call__(self, topic: str, value: bytes | None, key: bytes | None = None) -> KafkaError | None:
        told: list[KafkaError | None] = []
        self.producer.produce(topic, value, key, on_delivery=lambda error, _: told.append(error))
        assert self.producer.flush(TIMEOUT_SECONDS) == 0
        return told[0]


def prefixed(schema_id: int, body: bytes = b"\x02") -> bytes:
    return b"\x00" + schema_id.to_bytes(4) + body


def end_of(bootstrap: str, topic: str) -> int:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_SECONDS)[1])
    finally:
        consumer.close()


def register(call: Caller, subject: str, schema: str = AVRO) -> int:
    return int(call("POST", f"/subjects/{subject}/versions", {"schema": schema}).json["id"])


def test_confluents_serializers_pass_and_others_do_not(broker: EmbeddedBroker, gateway: Gateway) -> None:
    topic, send = guarded_topic(broker.bootstrap_servers), Sender(broker.bootstrap_servers)
    other = guarded_topic(broker.bootstrap_servers)
    with SchemaRegistryClient({"url": gateway.url}) as registry:
        avro = AvroSerializer(registry, AVRO)
        # The id is produced right after it was registered: the broker cannot have heard of it before.
        assert send(topic, avro({"a": 1}, SerializationContext(topic, MessageField.VALUE))) is None
        json_schema = JSONSerializer(JSON, registry, to_dict=lambda value, _: value)
        of_other = json_schema({"a": 1}, SerializationContext(other, MessageField.VALUE))
    assert send(topic, None, b"k") is None, "a null has no schema"
    for raw in (b"", b"{}", b"\x00\x00", b"\x01\x00\x00\x00\x01x", prefixed(900_000)):
        error = send(topic, raw)
        assert error is not None and error.code() == KafkaError.INVALID_RECORD, raw
    assert send(other, of_other) is None
    assert send(topic, of_other) is not None, "this id is of another topic's subject"
    assert end_of(broker.bootstrap_servers, topic) == 2


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_validated(broker: EmbeddedBroker, call: Caller, codec: str) -> None:
    topic = guarded_topic(broker.bootstrap_servers)
    good = prefixed(register(call, f"{topic}-value"), b"a" * 400)
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 300})
    for value in (good, good, b"b" * 400, good):
        producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert all(error is not None for error in told), "the batch is refused as a whole"
    producer.produce(topic, good, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0 and told[-1] is None
    assert end_of(broker.bootstrap_servers, topic) == 1


def test_keys_are_validated(broker: EmbeddedBroker, call: Caller) -> None:
    topic, send = guarded_topic(broker.bootstrap_servers, part="key"), Sender(broker.bootstrap_servers)
    known = register(call, f"{topic}-key")
    assert send(topic, b"anything", prefixed(known)) is None
    assert send(topic, b"anything") is None, "no key, no schema"
    assert send(topic, b"anything", b"key") is not None


def test_idempotent_producers_go_on_after_a_refusal(broker: EmbeddedBroker, call: Caller) -> None:
    topic = guarded_topic(broker.bootstrap_servers)
    send = Sender(broker.bootstrap_servers, **{"enable.idempotence": True})
    good = prefixed(register(call, f"{topic}-value"))
    assert send(topic, good) is None
    error = send(topic, b"bad")
    assert error is not None and error.code() == KafkaError.INVALID_RECORD
    assert send(topic, good) is None
    assert end_of(broker.bootstrap_servers, topic) == 2


def test_transactional_records_are_validated(broker: EmbeddedBroker, call: Caller) -> None:
    topic = guarded_topic(broker.bootstrap_servers)
    send = Sender(broker.bootstrap_servers, **{"transactional.id": topic, "transaction.timeout.ms": 300_000})
    producer = send.producer
    producer.init_transactions(TIMEOUT_SECONDS)
    producer.begin_transaction()
    assert send(topic, prefixed(register(call, f"{topic}-value"))) is None
    producer.commit_transaction(TIMEOUT_SECONDS)
    producer.begin_transaction()
    error = send(topic, b"bad")
    assert error is not None and error.code() == KafkaError.INVALID_RECORD
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_SECONDS)
    producer.abort_transaction(TIMEOUT_SECONDS)


def test_it_can_be_turned_on_and_off(broker: EmbeddedBroker) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    topic, send = guarded_topic(broker.bootstrap_servers), Sender(broker.bootstrap_servers)
    assert send(topic, b"plain") is not None
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    off = ConfigEntry("millstream.value.schema.validation", "false", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[off])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)
    while send(topic, b"plain") is not None:
        pass
    wrong = NewTopic("wrong", 1, config={"millstream.value.schema.validation": "perhaps"})
    with pytest.raises(KafkaException, match=r"value\.schema\.validation"):
        admin.create_topics([wrong])["wrong"].result(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, {"default.replication.factor": "1", "min.insync.replicas": "1"}) as running:
        yield running


def test_every_broker_of_a_cluster_hears_of_new_ids(cluster: EmbeddedCluster) -> None:
    """Three topics led by three brokers, at most one of which leads `_schemas`; each id is used right away."""
    bootstrap = cluster.bootstrap_servers
    with Gateway(GatewayOptions(bootstrap)) as gateway:
        call, send = Caller(gateway.address), Sender(bootstrap, **{"message.send.max.retries": 0})
        topics = [guarded_topic(bootstrap) for _ in range(6)]
        for topic in topics:
            await_topic(cluster, topic)
        admin = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_SECONDS)
        assert len({admin.topics[topic].partitions[0].leader for topic in topics}) > 1
        for round_ in range(3):
            for topic in topics:
                schema = AVRO.replace('"R"', f'"R{round_}"').replace('"a"', f'"{topic.replace("-", "_")}"')
                call("PUT", f"/config/{topic}-value", {"compatibility": "NONE"})
                assert send(topic, prefixed(register(call, f"{topic}-value", schema))) is None
        assert send(topics[0], prefixed(900_001)) is not None
