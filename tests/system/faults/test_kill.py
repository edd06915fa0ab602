"""Kill -9 at any moment: what was acknowledged is there afterwards, once, in order."""

import random
import threading
import time

import pytest
from confluent_kafka import Producer

from millstream.testing import EmbeddedBroker
from tests.system.faults.conftest import TOPIC, number, read_numbers
from tests.wire import Closed, Wire, batch, values


def produce_until_killed(address: str, partition: int, acked: list[int]) -> None:
    """Pipelines small batches; every response that comes back is a promise."""
    try:
        with Wire(address) as wire:
            for value in range(1_000_000):
                if wire.produce(TOPIC, batch(number(value, 300)), partition).error_code == 0:
                    acked.append(value)
    except (Closed, OSError):
        pass


@pytest.mark.parametrize("seed", [1, 2])
def test_acknowledged_records_survive_a_kill(broker: EmbeddedBroker, seed: int) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 3, segment_bytes="1048576")
    acked: list[list[int]] = [[], [], []]
    threads = [
        threading.Thread(target=produce_until_killed, args=(broker.bootstrap_servers, partition, acked[partition]))
        for partition in range(3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(random.Random(seed).uniform(0.2, 1.2))
    broker.kill()
    for thread in threads:
        thread.join()
    broker.start()
    assert sum(map(len, acked)) > 0
    for partition in range(3):
        found = read_numbers(broker.bootstrap_servers, partition=partition)
        assert found[: len(acked[partition])] == acked[partition]
        assert len(found) <= len(acked[partition]) + 1  # the one that was under way


def test_killed_again_and_again(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
        for value in range(200):
            assert wire.produce(TOPIC, batch(number(value, 1000))).error_code == 0
    for _ in range(2):
        broker.kill()
        broker.start()
    assert read_numbers(broker.bootstrap_servers) == list(range(200))


def test_an_idempotent_producer_goes_on_over_kills(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.num.messages": 200,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": 120_000,
        }
    )

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    total, sent = 30_000, 0
    for kill_at in (8_000, 19_000, total):
        while sent < kill_at:
            producer.produce(TOPIC, b"%d" % sent, partition=0, on_delivery=delivered)
            sent += 1
            if sent % 500 == 0:
                producer.poll(0.005)
        if sent < total:
            broker.kill()
            broker.start()
    assert producer.flush(120) == 0
    assert not failed
    with Wire(broker.bootstrap_servers) as wire:
        found: list[bytes] = []
        while len(found) < wire.fetch(TOPIC).high_watermark:
            rows = values(wire.fetch(TOPIC, len(found)).records)
            found += rows[len(found) - offset_of_first(rows) :]
    assert found == [b"%d" % value for value in range(total)]


def offset_of_first(rows: list[bytes]) -> int:
    """Where the batch begins that a fetch starts with; records carry their own number, and none may be missing."""
    return int(rows[0])
