"""Conditional append (KIP-27) on the wire: the condition, repetitions, batches of other clients, and the raw client."""

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.produce import CONDITIONAL_APPEND, encode_conditional, end_in_response
from millstream.formats.protocol.schema import response_schema
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster, SetupError, TopicPartition
from millstream.raw_client.conditional import ConditionalProducer, UnexpectedEndError
from millstream.testing import EmbeddedBroker
from tests.wire import Wire, batch, framed, header


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as connected:
        yield connected


def append(
    wire: Wire, topic: bytes, data: bytes, expected: int, version: int = 12, acks: int = -1
) -> tuple[Any, int | None]:
    body = encode_conditional(topic, 0, data, expected, 5000, version)
    if acks != -1:
        body[1:3] = acks.to_bytes(2, "big", signed=True)
    wire.send_raw(framed(header(0, version, 1, flexible=True) + bytes(body)))
    frame = wire.receive_raw()
    row = response_schema("produce").read(Cursor(frame, 5), version).responses[0].partition_responses[0]
    return row, end_in_response(frame, 5, version)


def test_the_end_must_be_the_expected_one(wire: Wire, topic: str) -> None:
    row, end = append(wire, topic.encode(), batch(b"a", b"b"), 0)
    assert (row.error_code, row.base_offset, end) == (0, 0, 2)
    for expected in (0, 1, 3, -1):
        row, end = append(wire, topic.encode(), batch(b"c"), expected)
        assert (row.error_code, end) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
        assert "the end of the partition is 2" in row.error_message
    topic_id: UUID = wire.call("metadata", 12, topics=[{"name": topic}]).topics[0].topic_id
    row, end = append(wire, topic_id.bytes, batch(b"c"), 2, version=13)
    assert (row.error_code, row.base_offset, end) == (0, 2, 3)
    assert wire.produce(topic, batch(b"d")).base_offset == 3  # without a condition


def test_a_repetition_of_a_success_is_a_success(wire: Wire, topic: str) -> None:
    producer = wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout_ms=1).producer_id

    def made(sequence: int) -> bytes:
        records = [Record(None, b"x", timestamp=1)]
        return bytes(build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence))

    assert append(wire, topic.encode(), made(0), 0)[0].error_code == 0
    assert append(wire, topic.encode(), made(1), 0)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    row, end = append(wire, topic.encode(), made(0), 0)
    assert (row.error_code, row.base_offset, end) == (0, 0, 1)
    assert append(wire, topic.encode(), made(1), 1)[0].error_code == 0  # the sequence was not used up
    row, end = append(wire, topic.encode(), made(0), 0)
    assert (row.error_code, row.base_offset) == (0, 0)


def test_it_needs_all_replicas(wire: Wire, topic: str) -> None:
    row, end = append(wire, topic.encode(), batch(b"a"), 0, acks=1)
    assert (row.error_code, end) == (ErrorCode.INVALID_REQUIRED_ACKS, None)


def test_the_feature_is_advertised(wire: Wire) -> None:
    response = wire.call("api_versions", 3, client_software_name="a", client_software_version="1")
    assert CONDITIONAL_APPEND in {row.name for row in response.supported_features}


def test_the_raw_client_appends_conditionally(cluster: Cluster, topic: str) -> None:
    at, producer = TopicPartition(topic, 0), ConditionalProducer(cluster)
    records = [Record(b"k", b"v", timestamp=1)]
    assert producer.append(at, records, 0) == 1
    with pytest.raises(UnexpectedEndError) as refused:
        producer.append(at, records, 0)
    assert refused.value.end_offset == 1
    assert producer.append(at, records * 3, 1) == 4
    assert producer.append(at, records, 4) == 5


def test_a_broker_without_the_feature_is_sent_nothing(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.raw_client.conditional.CONDITIONAL_APPEND", "something.else")
    with pytest.raises(SetupError, match="does not support conditional append"):
        ConditionalProducer(cluster).append(TopicPartition(topic, 0), [Record(None, b"x", timestamp=1)], 0)


def test_of_many_writers_one_wins_each_offset(broker: EmbeddedBroker, topic: str) -> None:
    won: list[int] = []

    def write() -> None:
        with Cluster(broker.bootstrap_servers) as connected:
            producer, expected = ConditionalProducer(connected), 0
            for _ in range(40):
                try:
                    end = producer.append(TopicPartition(topic, 0), [Record(None, b"x", timestamp=1)], expected)
                    won.append(expected)
                    expected = end
                except UnexpectedEndError as error:
                    expected = error.end_offset

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(len(won))) and len(won) >= 40
