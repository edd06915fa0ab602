"""Batches that Apache Kafka itself has compressed, stamped and marked: fetched raw from the real broker and decoded."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from millstream.columnar import COLUMNS, ArrowDecoder, _pure
from millstream.columnar.compiled import compiled_or_none
from millstream.raw_client import LATEST, Cluster, TopicPartition
from tests.unit.columnar.rows import rows_in
from tools import apache_kafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COUNT = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("kafka")
    with (
        apache_kafka.ApacheKafkaBroker(apache_kafka.resolve(), directory, jvm=("-Xms256m", "-Xmx512m")) as broker,
        Cluster(broker.bootstrap_servers, timeout_s=60) as connected,
    ):
        yield connected


def rows_of(cluster: Cluster, topic: str) -> list[dict[str, object]]:
    """All rows of partition 0, the same by both implementations."""
    partition = TopicPartition(topic, 0)
    end = cluster.offsets({partition: LATEST})[partition].offset
    tables = []
    for implementation in (_pure, compiled_or_none()):
        if implementation is None:
            continue
        decoder = ArrowDecoder(COLUMNS, max_rows=100, implementation=implementation)
        following, found = 0, []
        while following < end:
            fetched = cluster.fetch(partition, following, max_bytes=20_000, max_wait_ms=500)
            batches, following = decoder.decode(
                fetched.data, topic=topic, partition=0, start=following, stop=end, aborted=fetched.aborted
            )
            found += batches
        tables.append(found)
    assert all(pa.Table.from_batches(each).equals(pa.Table.from_batches(tables[0])) for each in tables)
    return rows_in(tables[0])


def produce(cluster: Cluster, topic: str, *, codec: str = "none", count: int = COUNT) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in range(count):
        headers: list[tuple[str, str | bytes | None]] | None = (
            [("n", str(number).encode())] if number % 3 == 0 else None
        )
        producer.produce(topic, b"value %d " % number * (number % 20), b"%d" % number, 0, headers=headers)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_compressed_by_kafkas_broker_are_decoded(cluster: Cluster, codec: str) -> None:
    cluster.create_topic(codec, 1, 1, {"compression.type": codec})
    produce(cluster, codec, codec="zstd" if codec == "uncompressed" else "none")
    rows = rows_of(cluster, codec)
    assert [row["value"] for row in rows] == [b"value %d " % number * (number % 20) for number in range(COUNT)]
    assert [row["headers"] is not None for row in rows] == [number % 3 == 0 for number in range(COUNT)]
    assert {row["timestampType"] for row in rows} == {0}


def test_the_broker_s_own_time(cluster: Cluster) -> None:
    cluster.create_topic("stamped", 1, 1, {"message.timestamp.type": "LogAppendTime"})
    produce(cluster, "stamped", codec="lz4")
    rows = rows_of(cluster, "stamped")
    assert len(rows) == COUNT and {row["timestampType"] for row in rows} == {1}
    assert len({row["timestamp"] for row in rows}) < COUNT


def test_transactions_with_the_broker_s_markers(cluster: Cluster) -> None:
    cluster.create_topic("transactions", 1, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "columnar", "linger.ms": 5})
    producer.init_transactions(60)
    for turn in range(6):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("transactions", b"%d" % (10 * turn + number), partition=0)
        producer.flush(60)
        if turn % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    values = [int(cast(bytes, row["value"])) for row in rows_of(cluster, "transactions")]
    assert values == [*range(10), *range(20, 30), *range(40, 50)]
