"""The walk-through of docs/migration.md under load: mirror, move the consumers, promote, move the producers, and back.

Idempotent producers write all the time, and a group reads. In the end the group has seen each acknowledged record once,
in the order of its partition.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from millstream.raw_client import TopicPartition
from millstream.testing import EmbeddedBroker
from millstream.testing.node_process import free_ports
from tests.mirrors import Mirror, make_source_topic
from tests.waiting import TIMEOUT_SECONDS, until
from tools import apache_kafka

TOPIC, GROUP, PARTITIONS = "house", "family", 3
RECONNECT = {"log_level": 0, "reconnect.backoff.max.ms": 500}
_COORDINATOR_IS_AWAY = ("_WAIT_COORD", "_TRANSPORT", "_TIMED_OUT", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR")
STEP = 40
"""Records of each partition between two steps of the move."""


class Load:
    """Writers and a group on one topic. Each step of the move waits until both have made progress in it."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self.seen: dict[int, list[int]] = defaultdict(list)
        self._next: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self._failures: list[str] = []

    @contextmanager
    def writing_to(self, bootstrap: str) -> Iterator[None]:
        """An idempotent producer that writes numbers, in order, until the block ends; then all are acknowledged."""
        producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 0}
            | RECONNECT
        )
        stopping = threading.Event()

        def write() -> None:
            while not stopping.wait(0.005):
                for partition in range(PARTITIONS):
                    number, self._next[partition] = self._next[partition], self._next[partition] + 1
                    producer.produce(TOPIC, str(number), partition=partition, on_delivery=self._delivered)
                producer.poll(0)

        with _thread(write, stopping):
            yield
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert not self._failures
        assert self.acknowledged == self._next

    @contextmanager
    def read_from(self, bootstrap: str) -> Iterator[None]:
        """A member of the group that reads until the block ends, and commits where it is."""
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest" if not self.seen else "error",
            }
            | RECONNECT
        )
        stopping = threading.Event()

        def read() -> None:
            while not stopping.is_set():
                message = consumer.poll(0.1)
                if message is not None:
                    self._read(message)
            try:
                self._commit(consumer)
            finally:
                consumer.close()

        consumer.subscribe([TOPIC])
        with _thread(read, stopping):
            yield
        assert not self._failures

    def _commit(self, consumer: Consumer) -> None:
        """Commits what was read; again after a retriable error, for example while the coordinator is loading."""
        ends = [Place(TOPIC, partition, len(numbers)) for partition, numbers in self.seen.items()]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                consumer.commit(offsets=ends, asynchronous=False)
                return
            except KafkaException as failure:
                error = failure.args[0]
                if time.monotonic() > deadline or error.name() not in _COORDINATOR_IS_AWAY:
                    self._failures.append(f"not committed: {error.name()} {error}")
                    return

    def both_go_on(self) -> None:
        """Returns when some more records were written, and read."""
        written, read = dict(self.acknowledged), {at: len(self.seen[at]) for at in range(PARTITIONS)}
        until(lambda: self._failures or all(self.acknowledged[at] >= written[at] + STEP for at in written), "no writes")
        until(lambda: self._failures or all(len(self.seen[at]) >= read[at] + STEP for at in read), "no reads")
        assert not self._failures

    def is_read(self) -> None:
        """Returns when everything that was acknowledged is read, once and in order."""
        until(
            lambda: self._failures or all(len(self.seen[at]) >= count for at, count in self.acknowledged.items()),
            "not everything was read",
        )
        assert not self._failures
        assert self.seen == {at: list(range(count)) for at, count in self.acknowledged.items()}

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, number = message.partition() or 0, int(message.value() or b"-1")
        if error is not None or number != self.acknowledged[partition]:
            self._failures.append(f"partition {partition}, number {number}: {error or 'out of order'}")
        self.acknowledged[partition] += 1

    def _read(self, message: Message) -> None:
        error = message.error()
        if error is None:
            partition, number = message.partition() or 0, int(message.value() or b"-1")
            self.seen[partition].append(number)
            if message.offset() != number:
                self._failures.append(f"partition {partition}: number {number} has offset {message.offset()}")
        elif not error.retriable() and error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
            self._failures.append(str(error))

    def await_group(self, mirror: Mirror) -> None:
        """Waits until the committed offsets of the group are at the destination."""
        ends = {TopicPartition(TOPIC, at): len(numbers) for at, numbers in self.seen.items()}
        until(lambda: mirror.admin.cluster.committed_offsets(GROUP, list(ends)) == ends, "the group did not come over")


@contextmanager
def _thread(work: object, stopping: threading.Event) -> Iterator[None]:
    running = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    running.start()
    try:
        yield
    finally:
        stopping.set()
        running.join(TIMEOUT_SECONDS)
        assert not running.is_alive()


def move(load: Load, mirror: Mirror) -> None:
    """Steps 2 to 4 of docs/migration.md."""
    with load.writing_to(mirror.source):
        with load.read_from(mirror.source):
            load.both_go_on()
            mirror.create(TOPIC, groups=GROUP)
            mirror.await_topic(TOPIC)
            load.both_go_on()
        load.await_group(mirror)
        with load.read_from(mirror.here):
            load.both_go_on()
    mirror.admin.promote(mirror.name, timeout_s=TIMEOUT_SECONDS)


@pytest.mark.timeout(300)
def test_from_one_millstream_to_another_and_back(tmp_path: Path) -> None:
    with EmbeddedBroker() as source, EmbeddedBroker() as here:
        load = Load()
        mirror = Mirror("moving", source.bootstrap_servers, here.bootstrap_servers)
        make_source_topic(mirror.source, TOPIC, PARTITIONS)
        move(load, mirror)
        with load.read_from(mirror.here):
            with load.writing_to(mirror.here):
                load.both_go_on()
                mirror.admin.reverse(mirror.name, mirror.source_admin, {"bootstrap.servers": mirror.here})
                load.both_go_on()
            load.is_read()
        back = Mirror(mirror.name, mirror.here, mirror.source)
        load.await_group(back)
        back.admin.promote(back.name, timeout_s=TIMEOUT_SECONDS)
        with load.read_from(mirror.source):
            with load.writing_to(mirror.source):
                load.both_go_on()
            load.is_read()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_apache_kafka_and_back_to_it(tmp_path: Path) -> None:
    """Back: Kafka starts on the data directory of Millstream, at its address. The clients go on as they are."""
    distribution = apache_kafka.installed()
    if distribution is None:
        pytest.skip("Apache Kafka is not in .cache (python tools/apache_kafka.py fetches it)")
    settings, heap = {"group.initial.rebalance.delay.ms": "0"}, ("-Xmx300M", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
    with apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "kafka", settings, jvm=heap) as kafka:
        port, controller = free_ports(2)
        load, data = Load(), tmp_path / "millstream"
        here = EmbeddedBroker(settings, data_dir=data, port=port)
        with here:
            mirror = Mirror("moving", kafka.bootstrap_servers, here.bootstrap_servers)
            make_source_topic(mirror.source, TOPIC, PARTITIONS)
            move(load, mirror)
            kafka.stop()
            with load.read_from(mirror.here), load.writing_to(mirror.here):
                load.both_go_on()
                here.stop()
                returned = apache_kafka.ApacheKafkaBroker(
                    distribution, data, settings, jvm=heap, port=port, voters={1: f"127.0.0.1:{controller}"}
                )
                returned.write_settings()
                try:
                    returned.start()
                    load.both_go_on()
                except BaseException:
                    returned.kill()
                    raise
            try:
                with load.read_from(mirror.here):
                    load.is_read()
            finally:
                returned.stop()
