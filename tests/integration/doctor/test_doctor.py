"""`millstream doctor` on clusters that are really slow: each cause is made, and the doctor names it."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.admin.quotas import QuotaAdmin
from millstream.cli.main import main
from millstream.doctor import evidence
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests import failing_disk
from tests.waiting import eventually, until
from tests.wire import Wire


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"quota.window.num": 2}) as running:
        yield running


def make_topic(broker: EmbeddedBroker, name: str, partitions: int = 1, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": "false"})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result()
    return name


class Load:
    """Calls a function again and again in a thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,))

    def _run(self, work: Callable[[], object]) -> None:
        while not self._ended.is_set():
            work()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def doctor(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(["doctor", "--json", "--seconds", "1.5", "--bootstrap", broker.bootstrap_servers])
    assert code == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def expect(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], cause: str, *texts: str) -> None:
    """The doctor names the cause. On a busy machine something else may be slower for a moment."""

    def check() -> None:
        told = doctor(broker, capsys)
        assert told["cause"] == cause, told
        assert all(text in told["sentence"] for text in texts), told

    eventually(check)


def producer(broker: EmbeddedBroker, **settings: object) -> Producer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **named})


def test_nothing_is_slow(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    expect(broker, capsys, "none")

    def check() -> None:
        assert main(["doctor", "--seconds", "0.5", "--bootstrap", broker.bootstrap_servers]) == 0
        assert "Nothing is slow" in capsys.readouterr().out

    eventually(check)  # on a busy machine the event loop may be late for a moment


def test_a_client_that_sends_records_one_by_one(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    topic = make_topic(broker, "one-by-one")
    sender = producer(broker, linger_ms=0, client_id="hasty")

    def send() -> None:
        sender.produce(topic, b"x")
        sender.flush()

    with Load(send):
        expect(broker, capsys, "client", "1.0 records per request", "linger.ms")


def test_a_client_that_a_quota_throttles(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    topic = make_topic(broker, "limited")
    with Cluster(broker.bootstrap_servers) as cluster:
        QuotaAdmin(cluster).alter({"client-id": "greedy"}, {"producer_byte_rate": 20_000.0})
        evidence.subscribe(cluster, on=True)
    sender = producer(broker, linger_ms=5, client_id="greedy")

    def send() -> None:
        sender.produce(topic, b"x" * 10_000)
        sender.flush()

    with Load(send):
        expect(broker, capsys, "throttling", "greedy is throttled by", "quota")


def test_a_slow_disk_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not failing_disk.can_be_built():
        pytest.skip("gcc is needed")
    disks, data = failing_disk.FailingDisks(tmp_path), tmp_path / "data"
    for name, value in disks.environment(data).items():
        monkeypatch.setenv(name, value)
    with EmbeddedBroker(data_dir=data) as broker:
        monkeypatch.delenv("LD_PRELOAD")
        topic = make_topic(broker, "durable", flush_before_ack="true")
        disks.fail(data, failing_disk.SLOW)
        sender = producer(broker, linger_ms=5)

        def send() -> None:
            sender.produce(topic, b"x")
            sender.flush()

        with Load(send):
            expect(broker, capsys, "disk", "an fsync on broker")
        disks.heal(data)


def test_a_hot_key_is_found_by_the_doctor(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    topic = make_topic(broker, "keyed", 4)
    sender = producer(broker, linger_ms=20)

    def send() -> None:
        for _ in range(200):
            sender.produce(topic, b"x", key=b"the same")
        sender.flush()

    def check() -> None:
        told = doctor(broker, capsys)
        hot = [each for each in told["findings"] if "of keyed gets 100% of the records" in each["sentence"]]
        assert hot and hot[0]["cause"] == "broker", told

    with Load(send):
        eventually(check)


def test_clients_push_after_the_doctor_subscribed(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    address = broker.bootstrap_servers
    assert main(["doctor", "--subscribe", "--bootstrap", address]) == 0
    with Wire(address) as wire:
        (row,) = wire.call("list_config_resources", 1, resource_types=[16]).config_resources
        assert row.resource_name == evidence.SUBSCRIPTION
        changed = [{"name": "interval.ms", "config_operation": 0, "value": "200"}]
        resource = {"resource_type": 16, "resource_name": evidence.SUBSCRIPTION, "configs": changed}
        assert wire.call("incremental_alter_configs", 1, resources=[resource]).responses[0].error_code == 0
    topic = make_topic(broker, "observed")
    sender = producer(broker, linger_ms=50, client_id="observed-client")
    sender.produce(topic, b"x")
    sender.flush()
    with Cluster(address) as cluster:
        until(lambda: "observed-client" in {each.client_id for each in evidence.read_clients(cluster)})
        (client,) = [each for each in evidence.read_clients(cluster) if each.client_id == "observed-client"]
    assert client.software.startswith("confluent-kafka-python") and client.principal == "User:ANONYMOUS"
    assert "producer.record.queue.time.avg" in client.metrics
    assert main(["doctor", "--unsubscribe", "--bootstrap", address]) == 0
    with Wire(address) as wire:
        assert wire.call("list_config_resources", 1, resource_types=[16]).config_resources == []
