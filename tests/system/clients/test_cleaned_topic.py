"""A topic that was cleaned: every client reads what is left, and Kafka's tools find nothing to complain about."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.system.clients import brokers, corpus
from tests.system.clients.client_program import ClientProgram, eventually
from tests.system.clients.conftest import GetClient
from tests.system.clients.test_dump_log import COMPLAINTS, FIRST_OFFSET_QUIRK
from tests.system.cluster.kafka_tools import KafkaTools

TOPIC = "cleaned"
KEYS = 50
ROUNDS = 8
VALUE_BYTES = 4000
SETTINGS = {"log.cleaner.backoff.ms": "200"}
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
# Cleaning leaves gaps, which the tool reports between the records of a cleaned log of Apache Kafka's too.
GAPS = re.compile(r"Non-consecutive offsets in .*\n(  -?\d+ is followed by \d+\n)+")


@dataclass(slots=True)
class Written:
    latest: dict[bytes, bytes | None] = field(default_factory=dict)
    count: int = 0
    data_dir: Path = Path()
    left: dict[str, list[int]] = field(default_factory=dict)
    """The offsets that one client reads, by isolation: the others must find the same."""


def _records(written: Written, label: str, deleted: range, *, keep: bool = True) -> list[corpus.WireRecord]:
    values = random.Random(label)
    found = []
    for number in range(KEYS):
        key = b"key-%d" % number
        value = None if number in deleted else label.encode() + values.randbytes(VALUE_BYTES)
        found.append(corpus.record(key, value))
        if keep:
            written.latest[key] = value
    written.count += KEYS
    return found


def _write(client: ClientProgram, bootstrap: str) -> Written:
    written = Written()
    client.ask("create_topic", bootstrap, topic=TOPIC, partitions=1, config=TOPIC_CONFIG)
    for number in range(ROUNDS):
        for codec in corpus.CODECS:
            records = _records(written, f"{codec} {number}", range(number, number + 3))
            for result in client.produce(bootstrap, TOPIC, records, codec=codec, batch_records=7):
                assert "error" not in result, result
        for end in ("commit", "abort"):
            records = _records(written, f"{end} {number}", range(number, number + 3), keep=end == "commit")
            client.transact(bootstrap, "writer", TOPIC, records, end=end)
            written.count += 1
    # What is in the active segment stays as it is; this one fills it up.
    for _ in range(3):
        for result in client.produce(bootstrap, TOPIC, _records(written, "last", range(3)), batch_records=7):
            assert "error" not in result, result
    return written


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    broker = brokers.start_broker(tmp_path_factory.mktemp("cleaned") / "data", SETTINGS)
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def written(running: brokers.BrokerProcess, get_client: GetClient) -> Written:
    if brokers.RUNS_ON_APACHE:
        pytest.skip("looks into the data directory")
    client, bootstrap = get_client("confluent-kafka"), running.bootstrap_servers
    written = _write(client, bootstrap)
    written.data_dir = running.data_dir / f"{TOPIC}-0"

    def is_cleaned() -> bool:
        """All that may be: the log takes no more than what is alive, and an active segment."""
        return sum(file.stat().st_size for file in written.data_dir.glob("*.log")) < 1_700_000

    assert eventually(is_cleaned), list(written.data_dir.iterdir())
    for isolation in ("read_committed", "read_uncommitted"):
        read = client.consume(bootstrap, TOPIC, 0, written.count, isolation=isolation, timeout_ms=8000)
        written.left[isolation] = [record["offset"] for record in read]
        assert KEYS <= len(read) < written.count // 2
    return written


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_every_client_reads_it(
    isolation: str, client: ClientProgram, running: brokers.BrokerProcess, written: Written
) -> None:
    read = client.consume(running.bootstrap_servers, TOPIC, 0, len(written.left[isolation]), isolation=isolation)
    assert [record["offset"] for record in read] == written.left[isolation]
    offsets = [record["offset"] for record in read]
    assert offsets == sorted(offsets)
    latest: dict[bytes, bytes | None] = {}
    for record in read:
        latest[_bytes(record["key"]) or b""] = _bytes(record["value"])
    assert latest == written.latest


def test_kafka_dump_log_reads_cleaned_segments(written: Written, kafka_tools: KafkaTools) -> None:
    suffixes = (".log", ".index", ".timeindex", ".txnindex")
    files = sorted(file for file in written.data_dir.iterdir() if file.suffix in suffixes)
    active = max(file.stem for file in files)
    sealed = [file for file in files if file.stem != active]
    for options in ([], ["--deep-iteration"]):
        said = kafka_tools("kafka-dump-log", "--files", ",".join(map(str, sealed)), *options)
        said = GAPS.sub("", FIRST_OFFSET_QUIRK.sub("", said))
        complaint = COMPLAINTS.search(said)
        assert complaint is None, said[max(0, complaint.start() - 1000) : complaint.end() + 1000]
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d+\]", said), "no delete horizon"


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
