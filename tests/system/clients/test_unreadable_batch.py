"""A batch with a right checksum whose records cannot be read: what consumers of all kinds get to know of it.

Apache Kafka opens every batch that it is sent, and refuses this one; Millstream finds it when a consumer is stuck.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from millstream.formats.records.compression import Codec
from tests.integration.node.broker.unreadable import GARBAGE, records_with, sealed, unreadable
from tests.system.clients import brokers
from tests.system.clients.client_program import ClientFailedError, ClientProgram
from tests.system.clients.conftest import GetClient
from tests.wire import Wire, batch

Create = Callable[..., None]

GOOD = batch(b"a", b"b", b"c")
INVALID_RECORD = 87
DELIVERY_SECONDS = 60


@pytest.fixture
def stuck(bootstrap: str, topic: str, create_topic: Create, get_client: GetClient) -> str:
    """A topic of which offsets 3 to 5 cannot be read."""
    create_topic(get_client("confluent-kafka"), topic)
    with Wire(bootstrap) as wire:
        for data in (GOOD, unreadable(), GOOD):
            assert wire.produce(topic, data).error_code == 0
    return topic


def refused_by_librdkafka(bootstrap: str, topic: str) -> tuple[list[int], KafkaError | None]:
    """The offsets that a consumer gets before it is told of an error."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "stuck", "enable.auto.commit": False})
    offsets: list[int] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(DELIVERY_SECONDS)) is not None:
            if message.error() is not None:
                return offsets, message.error()
            offsets.append(message.offset() or 0)
        return offsets, None
    finally:
        consumer.close()


@pytest.mark.skipif(brokers.RUNS_ON_APACHE, reason="Kafka refuses it")
def test_librdkafka_is_told_which_offset_it_is_stuck_at(bootstrap: str, stuck: str) -> None:
    """It drops such a batch without a word, and fetches it again."""
    offsets, error = refused_by_librdkafka(bootstrap, stuck)
    assert offsets == [0, 1, 2]
    assert error is not None, "nothing came for a minute, not even an error"
    assert error.code() == INVALID_RECORD and "offset 3" in error.str()


@pytest.mark.skipif(brokers.RUNS_ON_APACHE, reason="Kafka refuses it")
def test_every_client_is_told_and_gets_past_it(bootstrap: str, stuck: str, client: ClientProgram) -> None:
    """Once the broker knows. (kcat prints such errors, and goes on waiting.)"""
    refused_by_librdkafka(bootstrap, stuck)
    if client.name == "aiokafka":
        client.consume(bootstrap, stuck, 0, 9, start=3, timeout_ms=2000)
        assert "Unexpected error while fetching data" in client.log_file.read_text()
    elif client.name != "kcat":
        with pytest.raises(ClientFailedError) as told:
            client.consume(bootstrap, stuck, 0, 9, start=3, timeout_ms=30_000)
        assert told.value.code in (INVALID_RECORD, None), told.value
    assert [each["offset"] for each in client.consume(bootstrap, stuck, 0, 3, start=6)] == [6, 7, 8]


def wrong(**kinds: tuple[bytes, int]) -> Any:
    return pytest.mark.parametrize(("records", "count"), kinds.values(), ids=kinds.keys())


@wrong(garbage=(GARBAGE, 3), too_few=(records_with(0, 1, 2), 4), too_many=(records_with(0, 1, 2, 3), 3))
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_what_is_refused_when_it_is_sent(
    bootstrap: str, topic: str, create_topic: Create, get_client: GetClient, records: bytes, count: int, codec: Codec
) -> None:
    """Kafka refuses all of it, Millstream what is not compressed."""
    create_topic(get_client("confluent-kafka"), topic)
    with Wire(bootstrap) as wire:
        row = wire.produce(topic, sealed(records, count, codec))
        is_refused = brokers.RUNS_ON_APACHE or codec is Codec.NONE
        assert row.error_code == (INVALID_RECORD if is_refused else 0)
