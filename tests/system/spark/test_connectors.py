"""Spark's own Kafka connector on our broker, beside ours: what one writes, both read alike.

(Ours on Apache Kafka: test_source.py, test_sink.py.)
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY
from tests.system.spark.crosswise import CONNECTORS
from tests.waiting import TIMEOUT_SECONDS
from tools import spark_kafka_connector
from tools.apache_kafka import ToolchainMissingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KINDS = ("batch", "stream")

# As in crosswise.RECORDS: key, value, partition (None: by key), headers; in the order of writing.
WRITTEN: list[tuple[bytes | None, bytes | None, int | None, list[list[str | None]] | None]] = [
    (b"k1", b"v1", 0, [["h", "00ff"], ["h", None], ["é", ""]]),
    (None, b"no key", 1, None),
    (b"tombstone", None, 2, None),  # no headers and an empty array of them are the same on the wire
    (b"", b"", 0, None),
    (b"\x00\x01\x7f\x80\xfe\xff", b"\xff\xfe\x80\x7f\x01\x00", 1, None),
    (None, None, 2, None),
    *((f"key-{number}".encode(), f"value {number}".encode(), None, None) for number in range(60)),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the program read, with all its topics on one broker."""
    try:
        jars = ",".join(map(str, spark_kafka_connector.jars()))
    except ToolchainMissingError as reason:
        pytest.skip(f"Spark's Kafka connector cannot be had here: {reason}")
    directory = tmp_path_factory.mktemp("crosswise")
    with EmbeddedBroker() as broker:
        opened = _prepare(broker.bootstrap_servers)
        command = [sys.executable, "-m", "tests.system.spark.crosswise", broker.bootstrap_servers, str(directory), jars]
        kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=kept | {"PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        yield json.loads(done.stdout.splitlines()[-1])
        opened.abort_transaction(TIMEOUT_SECONDS)


def _prepare(bootstrap: str) -> Producer:
    """The topics; the producer that is given back has a transaction open."""
    with Cluster(bootstrap) as cluster:
        for topic in (*(f"{writer}-{kind}" for writer in CONNECTORS for kind in KINDS), "moved"):
            cluster.create_topic(topic, 3, 1, {})
        cluster.create_topic("transactions", 1, 1, {})
        cluster.create_topic("stamped", 1, 1, {"message.timestamp.type": "LogAppendTime"})
        cluster.create_topic("timed", 1, 1, {"retention.ms": "-1"})  # its records are from 1970
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce("stamped", value="s", timestamp=1000)
    for number in range(6):
        plain.produce("timed", value=str(number), timestamp=(number + 1) * 1000)
    for number in range(20):
        plain.produce("moved", value=str(number), partition=number % 3)
    assert plain.flush(TIMEOUT_SECONDS) == 0
    producers = {}
    for name in ("first", "second"):
        # Until the program has ended, not a minute: the broker would abort what stays open.
        given = {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 800_000}
        producers[name] = Producer(given)
        producers[name].init_transactions(TIMEOUT_SECONDS)
    first, second = producers["first"], producers["second"]
    for fate in ("committed", "aborted", "committed", "aborted"):
        first.begin_transaction()
        for number in range(3):
            first.produce("transactions", key=fate, value=f"{fate} {number}")
        first.flush(TIMEOUT_SECONDS)
        first.commit_transaction(TIMEOUT_SECONDS) if fate == "committed" else first.abort_transaction(TIMEOUT_SECONDS)
    second.begin_transaction()
    second.produce("transactions", key="open", value="open")
    second.flush(TIMEOUT_SECONDS)
    return second


def _content(row: list[Any]) -> tuple[Any, ...]:
    """Key, value and headers of a row that was read."""
    return row[0], row[1], json.dumps(row[7])


def _values(rows: list[list[Any]]) -> list[str]:
    return [bytes.fromhex(row[1]).decode() for row in rows]


@pytest.mark.parametrize("reading", KINDS)
@pytest.mark.parametrize("writing", KINDS)
@pytest.mark.parametrize("writer", CONNECTORS)
def test_both_read_alike_what_either_wrote(told: dict[str, Any], writer: str, writing: str, reading: str) -> None:
    topic = f"{writer}-{writing}"
    ours, sparks = (told[f"{topic} read as {reading}"][each] for each in CONNECTORS)
    assert ours == sparks
    written = [(_hex(key), _hex(value), json.dumps(headers)) for key, value, _, headers in WRITTEN]
    assert sorted(map(_content, ours), key=repr) == sorted(written, key=repr)
    chosen = {row[0]: row[3] for row in ours if row[0] is not None}
    assert all(chosen[_hex(key)] == at for key, _, at, _ in WRITTEN if key is not None and at is not None)
    assert {row[2] for row in ours} == {topic} and {row[6] for row in ours} == {0}


def test_both_put_keys_into_the_same_partitions(told: dict[str, Any]) -> None:
    by_key = [
        {row[0]: row[3] for row in told[f"{writer}-batch read as batch"]["kafka"] if row[0] is not None}
        for writer in CONNECTORS
    ]
    assert by_key[0] == by_key[1] and len(by_key[0]) == 64


@pytest.mark.parametrize("reading", KINDS)
def test_both_connectors_read_the_same_transactions(told: dict[str, Any], reading: str) -> None:
    committed = told[f"read_committed as {reading}"]
    assert committed["millstream"] == committed["kafka"]
    assert _values(committed["kafka"]) == [f"committed {number}" for number in range(3)] * 2
    uncommitted = told[f"read_uncommitted as {reading}"]
    assert uncommitted["millstream"] == uncommitted["kafka"]
    fates = ("committed", "aborted", "committed", "aborted")
    assert _values(uncommitted["kafka"]) == [f"{fate} {number}" for fate in fates for number in range(3)] + ["open"]


def test_both_connectors_begin_and_end_at_the_same_offsets(told: dict[str, Any]) -> None:
    for question in ("broker's time", "from offsets", "from a time"):
        assert told[question]["millstream"] == told[question]["kafka"], question
    assert told["broker's time"]["kafka"][0][6] == 1
    assert [(row[3], row[4]) for row in told["from offsets"]["kafka"]] == [
        (0, 1),
        (0, 2),
        *((1, at) for at in range(4)),
    ]
    assert _values(told["from a time"]["kafka"]) == ["2", "3"]


def test_a_checkpoint_of_sparks_connector_goes_on_with_ours(told: dict[str, Any]) -> None:
    before, at_the_end = told["moved"]
    assert sorted(map(int, _values(before))) == list(range(20))
    assert len(at_the_end) == len({(row[3], row[4]) for row in at_the_end}) == 20 + len(WRITTEN)
    assert all(row in at_the_end for row in before)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
