"""Queues with the real thing: confluent-kafka's ShareConsumer against a broker that is killed in between."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from millstream.testing.embedded import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS, until
from tests.wire import Wire

_numbers = itertools.count()


class Queue:
    """A topic, a share group, and what tests do with them."""

    def __init__(self, broker: EmbeddedBroker, partitions: int = 1, **topic_config: str) -> None:
        self.broker = broker
        number = next(_numbers)
        self.topic, self.group = f"queue-{number}", f"workers-{number}"
        self.create(self.topic, partitions, **topic_config)
        self.configure(**{"share.auto.offset.reset": "earliest"})

    @property
    def _address(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.broker.bootstrap_servers}

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        admin = AdminClient(self._address)
        named = {name.replace("_", "."): value for name, value in config.items()}
        for made in admin.create_topics([NewTopic(topic, partitions, config=named)]).values():
            made.result()

    def configure(self, **settings: str) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        admin = AdminClient(self._address)
        resource = ConfigResource(ConfigResource.Type.GROUP, self.group, incremental_configs=entries)
        for done in admin.incremental_alter_configs([resource]).values():
            done.result()

    def send(
        self, *values: str, key: str | None = None, headers: list[tuple[str, str | bytes | None]] | None = None
    ) -> None:
        producer = Producer({**self._address, "linger.ms": 20})
        for value in values:
            producer.produce(self.topic, value=value, key=key or value, headers=headers)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    @contextmanager
    def worker(self, mode: str = "explicit") -> Iterator[ShareConsumer]:
        consumer = ShareConsumer(
            {**self._address, "group.id": self.group, "share.acknowledgement.mode": mode, "socket.timeout.ms": 5000}
        )
        consumer.subscribe([self.topic])
        try:
            yield consumer
        finally:
            consumer.close()

    def take(self, worker: ShareConsumer, count: int, seconds: float = TIMEOUT_SECONDS) -> list[Any]:
        """Polls until it got so many records; fewer only when the time is over."""
        messages: list[Any] = []
        deadline = time.monotonic() + seconds
        while len(messages) < count and time.monotonic() < deadline:
            messages += [each for each in worker.poll(0.5) if each.error() is None]
        return messages

    def has_begun(self) -> bool:
        """Whether the group has an offset in its topic."""
        asked = [{"group_id": self.group, "topics": [{"topic_name": self.topic, "partitions": [0]}]}]
        with Wire(self.broker.bootstrap_servers) as wire:
            (group,) = wire.call("describe_share_group_offsets", 1, groups=asked).groups
        return any(row.start_offset >= 0 for topic in group.topics for row in topic.partitions)

    def read_topic(self, topic: str, count: int) -> list[Any]:
        consumer = Consumer({**self._address, "group.id": f"reader-{next(_numbers)}", "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        messages: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(messages) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                messages.append(message)
        consumer.close()
        return messages


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {
        # Long: on a busy machine, a worker may not come to its acknowledgement for seconds.
        "group.share.record.lock.duration.ms": 60_000,
        "group.share.min.record.lock.duration.ms": 1000,
        # A worker whose broker was killed under it cannot say goodbye; its partitions go to others after this.
        "group.share.session.timeout.ms": 6000,
        "group.share.min.session.timeout.ms": 6000,
        "group.share.heartbeat.interval.ms": 1000,
        "group.share.min.heartbeat.interval.ms": 1000,
        "group.initial.rebalance.delay.ms": 0,
    }
    with EmbeddedBroker(settings) as started:
        yield started


MakeQueue = Callable[..., Queue]


@pytest.fixture
def make_queue(broker: EmbeddedBroker) -> MakeQueue:
    return lambda partitions=1, **config: Queue(broker, partitions, **config)


def values(messages: list[Any]) -> list[str]:
    return [message.value().decode() for message in messages]


def test_each_record_goes_to_one_of_the_workers(make_queue: MakeQueue) -> None:
    queue = make_queue(partitions=3)
    sent = [str(number) for number in range(500)]
    with queue.worker("implicit") as one, queue.worker("implicit") as two:
        queue.send(*sent)
        got: list[str] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(got) < len(sent) and time.monotonic() < deadline:
            got += values([each for each in (*one.poll(0.2), *two.poll(0.2)) if each.error() is None])
    assert Counter(got) == Counter(sent)


def test_accept_release_and_reject(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.send("accepted", "released", "rejected")
    with queue.worker() as worker:
        messages = queue.take(worker, 3)
        verdicts = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
        for message, verdict in zip(messages, verdicts, strict=True):
            worker.acknowledge(message, verdict)
        assert set(worker.commit_sync().values()) == {None}
        again = queue.take(worker, 1)
        assert values(again) == ["released"]
        worker.acknowledge(again[0])
        worker.commit_sync()
        assert queue.take(worker, 1, seconds=1) == []


def test_a_lock_expires_and_another_worker_gets_the_record(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.configure(**{"share.record.lock.duration.ms": "4000"})
    queue.send("slow")
    with queue.worker() as first, queue.worker() as second:
        held = queue.take(first, 1)
        assert values(held) == ["slow"]
        retried = queue.take(second, 1)
        assert values(retried) == ["slow"]
        first.acknowledge(held[0])
        (refusal,) = first.commit_sync().values()
        assert refusal is not None  # it is not its record any more
        second.acknowledge(retried[0])
        assert set(second.commit_sync().values()) == {None}
        assert (held[0].delivery_count(), retried[0].delivery_count()) == (1, 2)


def test_a_worker_that_leaves_gives_its_records_back(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.send("left behind")
    with queue.worker() as worker:
        assert values(queue.take(worker, 1)) == ["left behind"]
    with queue.worker() as worker:
        again = queue.take(worker, 1)
        assert values(again) == ["left behind"]
        worker.acknowledge(again[0])


def test_acknowledgements_survive_kill_9(broker: EmbeddedBroker, make_queue: MakeQueue) -> None:
    queue = make_queue(partitions=2)
    sent = [str(number) for number in range(60)]
    queue.send(*sent)
    accepted: list[str] = []
    with queue.worker() as worker:
        messages = queue.take(worker, len(sent))
        assert Counter(values(messages)) == Counter(sent)
        for at, message in enumerate(messages):
            if at % 3 == 0:  # every third, so that the state has gaps
                accepted += values([message])
                worker.acknowledge(message)
            else:
                worker.acknowledge(message, AcknowledgeType.RELEASE)
        assert set(worker.commit_sync().values()) == {None}
        broker.kill()
    broker.restart()
    with queue.worker("implicit") as worker:
        rest = values(queue.take(worker, len(sent) - len(accepted)))
    assert Counter(rest) == Counter(sent) - Counter(accepted)


def test_latest_means_the_same_after_kill_9(broker: EmbeddedBroker, make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.configure(**{"share.auto.offset.reset": "latest"})
    queue.send("before the group began")
    with queue.worker() as worker:
        until(lambda: queue.take(worker, 1, seconds=0.5) == [] and queue.has_begun())
    queue.send("after it began")
    broker.kill()
    broker.restart()
    with queue.worker("implicit") as worker:
        assert values(queue.take(worker, 1)) == ["after it began"]


def test_records_that_are_given_up_become_dead_letters(make_queue: MakeQueue) -> None:
    queue = make_queue()
    graveyard = f"dlq.{queue.topic}"
    queue.create(graveyard, errors_deadletterqueue_group_enable="true")
    queue.configure(**{"errors.deadletterqueue.topic.name": graveyard, "share.delivery.count.limit": "2"})
    queue.send("poison", headers=[("trace", b"17")])
    queue.send("hopeless")
    with queue.worker() as worker:
        for message in queue.take(worker, 2):
            poison = message.value() == b"poison"
            worker.acknowledge(message, AcknowledgeType.REJECT if poison else AcknowledgeType.RELEASE)
        worker.commit_sync()
        (again,) = queue.take(worker, 1)
        worker.acknowledge(again, AcknowledgeType.RELEASE)
        worker.commit_sync()
        letters = {letter.value(): letter for letter in queue.read_topic(graveyard, 2)}
        assert queue.take(worker, 1, seconds=1) == []
    assert set(letters) == {b"poison", b"hopeless"}
    headers = dict(letters[b"poison"].headers())
    assert letters[b"poison"].key() == b"poison"
    assert headers["trace"] == b"17"
    assert headers["__dlq.errors.topic"] == queue.topic.encode()
    assert headers["__dlq.errors.offset"] == b"0"
    assert headers["__dlq.errors.group"] == queue.group.encode()
    assert headers["__dlq.errors.delivery.count"] == b"1"
    assert b"rejected" in headers["__dlq.errors.message"]
    assert b"limit" in dict(letters[b"hopeless"].headers())["__dlq.errors.message"]


def test_records_of_a_key_are_delivered_in_order(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.configure(**{"share.key.order": "true"})
    keys, rounds = ("a", "b", "c"), 6
    for turn in range(rounds):
        for key in keys:
            queue.send(f"{key}{turn}", key=key)
    seen: dict[str, list[str]] = {key: [] for key in keys}
    with queue.worker() as one, queue.worker() as two:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        released = False
        while sum(map(len, seen.values())) < rounds * len(keys) and time.monotonic() < deadline:
            for worker in (one, two):
                batch = [each for each in worker.poll(0.3) if each.error() is None]
                now = values(batch)
                assert len({value[0] for value in now}) == len(now), f"two records of one key at once: {now}"
                for message in batch:
                    if message.value() == b"b2" and not released:
                        released = True  # it comes again before b3 does
                        worker.acknowledge(message, AcknowledgeType.RELEASE)
                        continue
                    its_key, value = message.key(), message.value()
                    assert its_key is not None and value is not None
                    seen[its_key.decode()].append(value.decode())
                    worker.acknowledge(message)
                worker.commit_sync()
    assert seen == {key: [f"{key}{turn}" for turn in range(rounds)] for key in keys}
    assert released


def test_delayed_delivery_survives_a_restart(broker: EmbeddedBroker, make_queue: MakeQueue) -> None:
    queue = make_queue(millstream_delivery_delay_ms="0")
    due_ms = int(time.time() * 1000) + 4000
    queue.send("later", headers=[("millstream-deliver-at", str(due_ms).encode())])
    queue.send("now")
    with queue.worker("implicit") as worker:
        assert values(queue.take(worker, 1)) == ["now"]
        worker.commit_sync()
    broker.kill()
    broker.restart()
    with queue.worker("implicit") as worker:
        (late,) = queue.take(worker, 1)
        assert time.time() * 1000 >= due_ms
        assert values([late]) == ["later"]


def test_a_topic_can_delay_everything(make_queue: MakeQueue) -> None:
    queue = make_queue(millstream_delivery_delay_ms="1500")
    queue.send("one", "two")
    with queue.worker("implicit") as worker:
        messages = queue.take(worker, 2)
        assert sorted(values(messages)) == ["one", "two"]
        assert time.time() * 1000 >= max(message.timestamp()[1] for message in messages) + 1500


def test_the_queue_goes_on_when_the_broker_comes_back(broker: EmbeddedBroker, make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.send("one")
    with queue.worker("implicit") as worker:
        assert values(queue.take(worker, 1)) == ["one"]
        worker.commit_sync()
        broker.kill()
        broker.restart()
        queue.send("two")
        assert values(queue.take(worker, 1)) == ["two"]


def test_a_confirmed_record_never_comes_back_through_kill_9(broker: EmbeddedBroker, make_queue: MakeQueue) -> None:
    queue = make_queue(partitions=2)
    sent = {str(number) for number in range(400)}
    queue.send(*sent)
    confirmed: set[str] = set()
    deaths = [100, 250]
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with queue.worker() as worker:
        while confirmed != sent and time.monotonic() < deadline:
            batch = [each for each in worker.poll(0.5) if each.error() is None]
            again = confirmed.intersection(values(batch))
            assert not again, f"accepted and yet delivered again: {again}"
            for at, message in enumerate(batch):
                # Some of each batch are let go, so that the state is full of holes when the broker dies.
                kind = (
                    AcknowledgeType.RELEASE if message.delivery_count() == 1 and at % 7 == 3 else AcknowledgeType.ACCEPT
                )
                worker.acknowledge(message, kind)
            accepted = [each for at, each in enumerate(batch) if not (each.delivery_count() == 1 and at % 7 == 3)]
            if deaths and len(confirmed) + len(accepted) >= deaths[0]:
                del deaths[0]
                broker.kill()  # before the acknowledgements are sent: they may not be confirmed
                broker.restart()
            results: dict[tuple[str | None, int | None], object] = {
                (each.topic, each.partition): error for each, error in worker.commit_sync(10).items()
            }
            for message in accepted:
                if results.get((message.topic(), message.partition()), "nothing") is None:
                    confirmed |= set(values([message]))
    assert confirmed == sent
