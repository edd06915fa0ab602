"""Records in internal topics that no coordinator wrote: after a restart the coordinators load and serve as before."""

import struct
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.formats.protocol.schema import request_schema
from millstream.formats.records.record import Record, build_batch
from millstream.node.server.request import BROKER_CLIENT_ID
from millstream.testing import EmbeddedBroker
from tests.acting_broker import act_as_broker
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, decode, framed, header, now_ms

TOPIC = "orders"
INTERNAL_TOPICS = ["__consumer_offsets", "__transaction_state"]
KEYS = [b"", b"\0", b"\0\0", b"\0\0\xff", struct.pack(">h", 2) + b"\xff"]
SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def write_as_a_broker(address: str, data_dir: Path, topic: str, key: bytes, value: bytes | None) -> int:
    """Produces as a broker, which may write to internal topics."""
    data = bytes(build_batch([Record(key, value, timestamp=now_ms())]))
    schema = request_schema("produce")
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    body = schema.encode({"acks": -1, "timeout_ms": 10_000, "topic_data": rows}, 12)
    with Wire(address) as wire:
        act_as_broker(wire, data_dir)
        wire.send_raw(framed(header(schema.api_key, 12, 1, flexible=True, client_id=f"{BROKER_CLIENT_ID}9") + body))
        response = decode("produce", 12, wire.receive_raw())[1]
    return int(response.responses[0].partition_responses[0].error_code)


def transact(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "tx"})
    producer.init_transactions(TIMEOUT_SECONDS)
    producer.begin_transaction()
    producer.produce(TOPIC, b"x")
    producer.commit_transaction(TIMEOUT_SECONDS)


def committed(address: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "group"})
    try:
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], 30)
        return int(found.offset)
    finally:
        consumer.close()


def commit(address: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "group"})
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("value", [None, b"", b"\xff" * 30])
def test_coordinators_load_beside_unreadable_records(tmp_path: Path, value: bytes | None) -> None:
    with EmbeddedBroker(SETTINGS, data_dir=tmp_path) as broker:
        address = broker.bootstrap_servers
        with Wire(address) as wire:
            wire.create_topic(TOPIC)
        transact(address)
        commit(address, 7)
        for topic in INTERNAL_TOPICS:
            for key in KEYS:
                assert write_as_a_broker(address, tmp_path, topic, key, value) == 0
        commit(address, 8)
        broker.kill()
        broker.start()
        assert committed(broker.bootstrap_servers) == 8
        transact(broker.bootstrap_servers)
