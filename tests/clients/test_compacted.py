"""A topic that the broker has cleaned, with transactions in it: every client reads the latest record of each key."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterator

import pytest

import apache_kafka
import install_test_clients

from . import brokers, corpus
from .client_program import ClientProgram, eventually
from .conftest import GetClient
from .test_dump_log import Dump

TOPIC = "cleaned"
KEYS = 20
ROUNDS = 40
VALUE_BYTES = 4000
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.cleaner.threads": "1"}
CONFIG = {
    "cleanup.policy": "compact",
    # The smallest segment Kafka allows.
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
}


class Written:
    """What was written to the partition, by offset, and which of it must remain."""

    def __init__(self, broker: brokers.BrokerProcess) -> None:
        self.broker = broker
        self.latest: dict[str, str] = {}
        self.total = 0
        self.remaining = 0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, get_client: GetClient) -> Iterator[Written]:
    """A partition of which all but the last segment has been cleaned."""
    broker = brokers.start_broker(tmp_path_factory.mktemp("compacted") / "data", SETTINGS)
    try:
        done = Written(broker)
        write(done, get_client("confluent-kafka"))
        client = get_client("confluent-kafka")

        def is_cleaned() -> bool:
            """Nobody is told when a pass is over; when it is, less comes back, and then always the same."""
            before = done.remaining
            options = {"isolation": "read_committed", "timeout_ms": 1500}
            done.remaining = len(client.consume(broker.bootstrap_servers, TOPIC, 0, done.total, **options))
            return done.remaining == before < done.total // 2

        assert eventually(is_cleaned, 90)
        yield done
    finally:
        broker.stop()


def write(done: Written, writer: ClientProgram) -> None:
    bootstrap = done.broker.bootstrap_servers
    writer.ask("create_topic", bootstrap, topic=TOPIC, partitions=1, config=CONFIG)
    noise = random.Random(1)
    for number in range(ROUNDS):
        records = [
            corpus.record(f"key {key}".encode(), b"%d " % number + noise.randbytes(VALUE_BYTES)) for key in range(KEYS)
        ]
        if number % 4 == 1:
            writer.transact(bootstrap, f"compacted {bootstrap}", TOPIC, records, end="abort")
            continue
        if number % 4 == 3:
            writer.transact(bootstrap, f"compacted {bootstrap}", TOPIC, records)
        else:
            codec = corpus.CODECS[number % len(corpus.CODECS)]
            writer.produce(bootstrap, TOPIC, records, codec=codec, batch_records=7)
        done.total += len(records)
        done.latest |= {each["key"]: each["value"] for each in records}


def decoded(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")


@pytest.mark.parametrize("name", install_test_clients.CLIENTS)
def test_every_client_reads_a_cleaned_topic(name: str, get_client: GetClient, written: Written) -> None:
    bootstrap = written.broker.bootstrap_servers
    client = get_client(name)
    read = client.consume(bootstrap, TOPIC, 0, written.remaining, isolation="read_committed")
    assert len(read) == written.remaining
    offsets = [each["offset"] for each in read]
    assert offsets == sorted(set(offsets))
    latest = {each["key"]: each["value"] for each in read}
    assert {decoded(key) for key in latest} == {f"key {key}" for key in range(KEYS)}
    differing = [decoded(key) for key, value in latest.items() if value != written.latest[key]]
    assert not differing


def test_dump_log_accepts_it(kafka: apache_kafka.KafkaDistribution, get_client: GetClient, written: Written) -> None:
    """Last in this file: it stops the broker."""
    written.broker.stop()
    directory = written.broker.data_dir / f"{TOPIC}-0"
    files = sorted(path for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex", ".snapshot"))
    dump = Dump(kafka)
    said = dump(files)
    assert re.search(r"isvalid: true", said)
    for index in directory.glob("*.txnindex"):
        if index.stat().st_size:
            dump([index])
    checkpoint = written.broker.data_dir / "cleaner-offset-checkpoint"
    (line,) = [each for each in checkpoint.read_text().splitlines() if each.startswith(f"{TOPIC} 0 ")]
    assert int(line.split()[2]) > 0
