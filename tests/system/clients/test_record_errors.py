"""A batch for a compacted topic, some of whose records have no key: clients drop those that the broker names.

The same tests pass against Apache Kafka (`MILLSTREAM_TEST_BROKER=apache`).
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.system.clients.conftest import GetClient
from tests.system.clients.corpus import record
from tests.waiting import TIMEOUT_SECONDS
from tools import apache_kafka

Create = Callable[..., None]

COUNT = 100
EVERY = 10
KEYLESS = list(range(0, COUNT, EVERY))
KEYED = [number for number in range(COUNT) if number % EVERY]
_JAVA = Path(__file__).parent / "java" / "RecordErrors.java"
_HOUR_MS = 3_600_000


@pytest.fixture
def compacted(topic: str, create_topic: Create, get_client: GetClient) -> str:
    create_topic(get_client("confluent-kafka"), topic, **{"cleanup.policy": "compact"})
    return topic


def _values(get_client: GetClient, bootstrap: str, topic: str, count: int) -> list[str]:
    read = get_client("confluent-kafka").consume(bootstrap, topic, 0, count + 1, timeout_ms=2000)
    return [base64.b64decode(each["value"]).decode() for each in read]


def test_java_gets_an_error_for_each_record(
    bootstrap: str, compacted: str, kafka: apache_kafka.KafkaDistribution, get_client: GetClient
) -> None:
    log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
    command = ["java", "-Xmx256m", *apache_kafka.QUICK_START_OPTIONS, log4j, "-cp", kafka.classpath, str(_JAVA)]
    arguments = [bootstrap, compacted, str(COUNT), str(EVERY)]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    dropped, taken = (json.loads(line) for line in ran.stdout.splitlines())
    assert dropped == KEYLESS
    assert taken == KEYED
    assert _values(get_client, bootstrap, compacted, len(KEYED)) == [f"value-{number}" for number in KEYED]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_gets_an_error_for_each_record(
    bootstrap: str, compacted: str, codec: str, get_client: GetClient
) -> None:
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 900_000, "message.timeout.ms": 2 * _HOUR_MS}
    producer = Producer(settings | {"enable.idempotence": True, "compression.type": codec, "log_level": 0})
    outcomes: dict[int, KafkaError | None] = {}

    def send(numbers: list[int]) -> None:
        for number in numbers:

            def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
                outcomes[number] = error

            key = f"key-{number}" if number % EVERY else None
            producer.produce(compacted, f"value-{number}", key, 0, on_delivery=delivered)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    send(list(range(COUNT)))
    failed = {number: error.code() for number, error in outcomes.items() if error is not None}
    assert [number for number in range(COUNT) if failed.get(number) == KafkaError.INVALID_RECORD] == KEYLESS
    others = [number for number in range(COUNT) if failed.get(number) == KafkaError._INVALID_DIFFERENT_RECORD]
    assert others == KEYED
    send(others)
    assert [number for number in range(COUNT) if outcomes[number] is None] == KEYED
    assert _values(get_client, bootstrap, compacted, len(KEYED)) == [f"value-{number}" for number in KEYED]


def test_franz_go_says_why(bootstrap: str, compacted: str, get_client: GetClient) -> None:
    """It does not say which records: the batch fails as a whole, and the producer goes on after that."""
    go = get_client("franz-go")
    rows = [record(None if number == 1 else b"key", b"value", partition=0) for number in range(3)]
    results = go.produce(bootstrap, compacted, rows)
    assert [each["error"]["code"] for each in results] == [87, 87, 87]
    assert "offset" in go.produce(bootstrap, compacted, [rows[0]])[0]
