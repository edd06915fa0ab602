"""Batches that librdkafka wrote and a broker stored, fetched raw and decoded: what was sent is what comes out."""

from types import ModuleType

import pytest
from confluent_kafka import Producer

from millstream.columnar import COLUMNS, ArrowDecoder, ArrowEncoder, stamp
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import read_batches
from millstream.raw_client import Cluster, TopicPartition
from millstream.testing import EmbeddedBroker
from tests.unit.columnar.rows import rows_in
from tests.waiting import TIMEOUT_SECONDS

COUNT = 500


@pytest.fixture(scope="module")
def broker() -> object:
    with EmbeddedBroker() as running:
        yield running


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_librdkafka_are_decoded(implementation: ModuleType, broker: EmbeddedBroker, codec: str) -> None:
    topic = f"{codec}-{implementation.__name__.rpartition('.')[2].strip('_')}"
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 50,
            "enable.idempotence": True,  # a retry on a busy machine must neither double nor reorder
        }
    )
    for number in range(COUNT):
        producer.produce(
            topic,
            None if number % 7 == 0 else b"value %d " % number * (number % 40),
            None if number % 5 == 0 else b"key %d" % number,
            0,
            timestamp=1_700_000_000_000 + number,
            headers=[("a", b"x"), ("b", None), ("a", b"")] if number % 3 == 0 else None,
        )
    assert producer.flush(TIMEOUT_SECONDS) == 0
    with Cluster(broker.bootstrap_servers) as cluster:
        data, following = bytearray(), 0
        decoder = ArrowDecoder(COLUMNS, max_rows=100, implementation=implementation)
        batches = []
        while following < COUNT:
            fetched = cluster.fetch(TopicPartition(topic, 0), following, max_bytes=1 << 20, max_wait_ms=500)
            found, following = decoder.decode(
                fetched.data, topic=topic, partition=0, start=following, stop=COUNT, aborted=fetched.aborted
            )
            data += fetched.data
            batches += found
    rows = rows_in(batches)
    assert [row["offset"] for row in rows] == list(range(COUNT))
    for number, row in enumerate(rows):
        assert row["key"] == (None if number % 5 == 0 else b"key %d" % number)
        assert row["value"] == (None if number % 7 == 0 else b"value %d " % number * (number % 40))
        names = [(header["key"], header["value"]) for header in row["headers"] or []]
        assert names == ([("a", b"x"), ("b", None), ("a", b"")] if number % 3 == 0 else [])
        assert row["timestamp"].timestamp() == pytest.approx(1_700_000_000 + number / 1000)
    # And the way back: the same rows encoded are the same records.
    again = []
    encoder = ArrowEncoder(Codec(next(read_batches(data))[0].codec), implementation=implementation)
    for batch in batches:
        for encoded in encoder.encode(batch.select(["key", "value", "headers", "timestamp"])):
            stamp(encoded, 1, 0, 0, False)
            again += [record for _, records in read_batches(encoded.data) for record in records]
    sent = [record for _, records in read_batches(data) for record in records]
    assert [record[:4] for record in again] == [record[:4] for record in sent]
