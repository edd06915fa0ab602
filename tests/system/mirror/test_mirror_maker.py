"""Kafka's MirrorMaker 2 between Apache Kafka and Millstream, in both directions at once, as an exactly-once source.

It is Kafka Connect with source connectors, so it also shows Connect's internal topics and the fencing of its producers.
It is killed in the middle: no record may be missing or doubled for readers of committed records.
"""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from millstream.testing import EmbeddedBroker
from millstream.testing.node_process import free_ports
from tests import waiting
from tests.waiting import LONG_TIMEOUT_SECONDS
from tools import apache_kafka, kafka_libraries
from tools.apache_kafka import KafkaDistribution, ToolchainMissingError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

until = partial(waiting.until, timeout_s=waiting.LONG_TIMEOUT_SECONDS)

MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
COUNT = 200
TIMEOUT_MS = str(int(LONG_TIMEOUT_SECONDS * 1000))
NOT_READY = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
)


def settings(kafka: str, millstream: str) -> str:
    rows = {
        "clusters": "kafka, millstream",
        "kafka.bootstrap.servers": kafka,
        "millstream.bootstrap.servers": millstream,
        "kafka->millstream.enabled": "true",
        "kafka->millstream.topics": "orders",
        "millstream->kafka.enabled": "true",
        "millstream->kafka.topics": "payments",
        "replication.factor": "1",
        "tasks.max": "1",
        "plugin.discovery": "service_load",
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "offset.lag.max": "0",
        "kafka.exactly.once.source.support": "enabled",
        "millstream.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
        "offset.flush.interval.ms": "1000",
        # Every ERROR line fails the test. On a busy machine the default times would make some that say nothing else.
        "offset.flush.timeout.ms": TIMEOUT_MS,
        "task.shutdown.graceful.timeout.ms": TIMEOUT_MS,
        "admin.timeout.ms": TIMEOUT_MS,
    }
    for cluster in ("kafka", "millstream"):
        for client in ("admin", "consumer", "producer"):
            rows[f"{cluster}.{client}.request.timeout.ms"] = TIMEOUT_MS
        for client in ("admin", "consumer"):
            rows[f"{cluster}.{client}.default.api.timeout.ms"] = TIMEOUT_MS
    for topic in ("checkpoints", "heartbeats", "offset-syncs"):
        rows[f"{topic}.topic.replication.factor"] = "1"
    for storage in ("offset", "status", "config"):
        rows[f"{storage}.storage.replication.factor"] = "1"
        rows[f"{storage}.storage.partitions"] = "1"
    return "".join(f"{name} = {value}\n" for name, value in rows.items())


@contextmanager
def mirror_maker(jars: KafkaDistribution, properties: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = jars.command(
        MIRROR_MAKER, str(properties), jvm=("-Xmx384M",), performance=apache_kafka.QUICK_START_OPTIONS
    )
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def produce(bootstrap: str, topic: str, begin: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(begin, begin + COUNT):
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % 7), headers=[("n", b"%d" % number)])
    assert producer.flush(LONG_TIMEOUT_SECONDS) == 0


class Reader:
    """Reads committed records of a mirrored topic from its beginning, once it exists."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self.numbers: list[int] = []

    def read(self, count: int) -> None:
        if not self._consumer.assignment():
            until(
                lambda: self._topic in self._admin.list_topics(timeout=LONG_TIMEOUT_SECONDS).topics,
                f"{self._topic} was not created",
            )
            self._consumer.assign([TopicPartition(self._topic, 0, 0)])

        def enough() -> bool:
            for message in self._consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                assert message.headers() == [("n", value)] and message.key() == b"key-%d" % (int(value) % 7)
                self.numbers.append(int(value))
            return len(self.numbers) >= count

        until(enough, f"{self._topic} has {len(self.numbers)} records")

    def close(self) -> None:
        self._consumer.close()


def test_both_directions_exactly_once(tmp_path: Path) -> None:
    try:
        distribution, jars = apache_kafka.resolve(), kafka_libraries.connect()
    except ToolchainMissingError as reason:
        pytest.skip(f"MirrorMaker: {reason}")
    quick = {"group.initial.rebalance.delay.ms": "0"}
    kafka = apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "kafka", quick, jvm=("-Xmx384M",))
    log, properties = tmp_path / "mirror-maker.log", tmp_path / "mm2.properties"
    with kafka, EmbeddedBroker(settings=quick) as millstream:
        here, there = millstream.bootstrap_servers, kafka.bootstrap_servers
        properties.write_text(settings(there, here))
        for bootstrap, topic in ((there, "orders"), (here, "payments")):
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "777777"})])[topic].result(
                LONG_TIMEOUT_SECONDS
            )
            produce(bootstrap, topic, 0)
        commit(there, "billing", "orders", COUNT)
        orders, payments = Reader(here, "kafka.orders"), Reader(there, "millstream.payments")
        with mirror_maker(jars, properties, log) as process:
            for reader in (orders, payments):
                reader.read(COUNT)
            produce(there, "orders", COUNT)
            produce(here, "payments", COUNT)
            process.send_signal(signal.SIGKILL)  # with transactions open, as it happens
        with mirror_maker(jars, properties, log):
            for reader in (orders, payments):
                reader.read(2 * COUNT)
                assert reader.numbers == list(range(2 * COUNT)), log
            produce(there, "orders", 2 * COUNT)
            orders.read(3 * COUNT)
            assert orders.numbers == list(range(3 * COUNT))
            until(lambda: committed(here, "billing", "kafka.orders") > 0, "the offsets of the group were not synced")
            until(lambda: setting(here, "kafka.orders") == "777777", "the settings of the topic were not synced")
        for reader in (orders, payments):
            reader.close()
    wrong = [line for line in log.read_text().splitlines() if "] ERROR " in line]
    assert not wrong, wrong[:5]


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})

    def done() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        except KafkaException as error:  # the topic of offsets is being created
            assert error.args[0].code() in NOT_READY, error
            return False
        return True

    until(done, f"the offset of {group} was not committed")
    consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=LONG_TIMEOUT_SECONDS)
        return int(found.offset)
    finally:
        consumer.close()


def setting(bootstrap: str, topic: str) -> str | None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return str(found.result(LONG_TIMEOUT_SECONDS)["max.message.bytes"].value)
