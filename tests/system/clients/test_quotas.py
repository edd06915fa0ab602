"""Quotas with unmodified clients: Kafka's kafka-configs, librdkafka, Java's clients, kafka-python."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import EmbeddedBroker
from tests.system.cluster.kafka_tools import KafkaTools
from tests.waiting import until
from tools import apache_kafka, install_test_clients

SIZE = 20_000
"""Bytes of a record. With a window of two seconds the quota allows two of them at once."""
QUOTA = 40_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"quota.window.num": 2}) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: EmbeddedBroker) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("limited", 1, 1)])["limited"].result()
    return "limited"


@pytest.fixture(scope="module")
def configs(kafka_tools: KafkaTools, broker: EmbeddedBroker) -> Iterator[Configs]:
    made = Configs(kafka_tools, broker.bootstrap_servers)
    made("--alter", "--entity-type", "clients", "--entity-default", "--add-config",
         f"producer_byte_rate={QUOTA},consumer_byte_rate={QUOTA}")  # fmt: skip
    yield made


class Configs:
    """kafka-configs."""

    def __init__(self, tools: KafkaTools, bootstrap: str) -> None:
        self._tools = tools
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str) -> str:
        code, said = self._tools.outcome(apache_kafka.CONFIG_COMMAND, "--bootstrap-server", self._bootstrap, *arguments)
        # For a user, the tool describes SCRAM credentials after the quotas.
        assert code == 0 or "DESCRIBE_USER_SCRAM_CREDENTIALS" in said, said
        return said


@pytest.mark.parametrize(
    ("entity", "key"),
    [
        (("--entity-type", "users", "--entity-name", "alice"), "producer_byte_rate"),
        (("--entity-type", "users", "--entity-default"), "request_percentage"),
        (("--entity-type", "clients", "--entity-name", "app"), "consumer_byte_rate"),
        (("--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-default"),
         "controller_mutation_rate"),
        (("--entity-type", "ips", "--entity-name", "192.0.2.7"), "connection_creation_rate"),
    ],
)  # fmt: skip
def test_kafka_configs_sets_and_deletes_quotas(configs: Configs, entity: tuple[str, ...], key: str) -> None:
    configs("--alter", *entity, "--add-config", f"{key}=1000000")
    assert f"{key}=1000000.0" in configs("--describe", *entity)
    configs("--alter", *entity, "--delete-config", key)
    assert key not in configs("--describe", *entity)


def test_librdkafka_is_throttled(configs: Configs, broker: EmbeddedBroker, topic: str) -> None:
    throttled: list[float] = []
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": "librdkafka",
        "throttle_cb": lambda event: throttled.append(event.throttle_time),
    }
    producer = Producer({**settings, "linger.ms": 0, "max.in.flight": 1, "batch.num.messages": 1})
    delivered: list[int] = []
    for _ in range(8):
        producer.produce(topic, b"x" * SIZE, on_delivery=lambda error, message: delivered.append(error is None))
    until(lambda: producer.poll(0.1) is not None and len(delivered) == 8 and throttled, "no throttle was reported")
    assert all(delivered)
    throttled.clear()
    consumer = Consumer({**settings, "group.id": "librdkafka", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read = 0

    def all_read() -> bool:
        nonlocal read
        message = consumer.poll(0.2)
        read += message is not None and message.error() is None
        return read >= 8 and bool(throttled)

    until(all_read, "no throttle was reported to the consumer")
    consumer.close()


def test_javas_clients_are_throttled(
    configs: Configs, kafka: apache_kafka.KafkaDistribution, broker: EmbeddedBroker, topic: str
) -> None:
    wrote = kafka.run(
        apache_kafka.PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", "8", "--record-size", str(SIZE), "--throughput", "-1", "--print-metrics"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap_servers}", "client.id=java", "batch.size=0"),
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    assert wrote.returncode == 0, wrote.stdout + wrote.stderr
    assert "8 records sent" in wrote.stdout
    assert _metric(wrote.stdout, "produce-throttle-time-max") > 0
    read = kafka.run(
        apache_kafka.CONSUMER_PERFORMANCE,
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--num-records", "8", "--print-metrics"),
        performance=apache_kafka.QUICK_START_OPTIONS,
    )
    assert read.returncode == 0, read.stdout + read.stderr
    assert _metric(read.stdout, "fetch-throttle-time-max") > 0


def test_kafka_python_is_throttled(configs: Configs, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    try:
        python = install_test_clients.kafka_python().command[0]
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(str(reason))
    program = tmp_path / "throttled.py"
    program.write_text(_KAFKA_PYTHON)
    done = subprocess.run(
        [python, str(program), broker.bootstrap_servers, topic, str(SIZE)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    produced, fetched = (float(word) for word in done.stdout.split())
    assert produced > 0 and fetched > 0


_KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition


def throttled(client):
    groups = client.metrics().values()
    return max(rows[name] for rows in groups for name in rows if name.endswith("throttle-time-max"))


bootstrap, topic, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="kafka-python", batch_size=0, acks="all")
for _ in range(8):
    producer.send(topic, b"x" * size).get(60)
produced = throttled(producer)
producer.close()
consumer = KafkaConsumer(bootstrap_servers=bootstrap, client_id="kafka-python", auto_offset_reset="earliest")
consumer.assign([TopicPartition(topic, 0)])
consumer.seek_to_beginning()
read = 0
while read < 8:
    read += sum(len(rows) for rows in consumer.poll(1000).values())
fetched = throttled(consumer)
consumer.close()
print(produced, fetched)
"""


def _metric(text: str, name: str) -> float:
    found = re.search(rf"{name}[^\n]*:\s*([0-9.]+)\s*$", text, re.MULTILINE)
    assert found is not None, text[-3000:]
    return float(found.group(1))
