"""End-to-end latency at a steady 5,000 msg/s of 1 KB: librdkafka without linger, one partition, acks=all.

Producer and consumer are processes of their own. The producer is open-loop: message i is due at start + i/rate
whatever happened before, and each carries the time it was *due*, so a stall of the broker (or of the load generator)
counts against every message it delayed. Both processes read the same monotonic clock.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import struct
import time
from array import array
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.compare.measure import LATENCY_GOAL, Load, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

RATE = 5_000
_SIZE_BYTES = 1024
_FULL_SECONDS = 8.0
_WARM_UP_SECONDS = 3.0
_DUE = struct.Struct(">q")
_PROBE = 0
_PR_SET_TIMERSLACK = 29


class Latency(Load):
    name: ClassVar[str] = "latency"
    title: ClassVar[str] = f"End-to-end latency at {RATE:,} msg/s"
    measures: Sequence[Measure] = (
        Measure("p50", "end-to-end latency p50, 5,000 msg/s", "ms", "lower"),
        Measure("p99", "end-to-end latency p99, 5,000 msg/s", "ms", "lower", LATENCY_GOAL),
        Measure("p999", "end-to-end latency p99.9, 5,000 msg/s", "ms", "lower"),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        delays_ns = end_to_end(target, {"bootstrap.servers": target.bootstrap}, scale)
        return {
            key: percentile(delays_ns, share) / 1e6 for key, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
        }


def end_to_end(target: Target, client: Mapping[str, str], scale: Scale) -> list[int]:
    """The delays in nanoseconds, sorted; `client` is how both clients reach the broker."""
    warm_up = int(RATE * min(_WARM_UP_SECONDS, scale.seconds(_FULL_SECONDS)))
    count = int(RATE * scale.seconds(_FULL_SECONDS))
    context = multiprocessing.get_context("spawn")
    with temporary_topic(target, 1, (warm_up + count) * _SIZE_BYTES) as topic:
        connect_producer(Producer(dict(client)), topic)  # something to find at once
        here, there = context.Pipe()
        consumer = context.Process(target=_consume, args=(client, topic, warm_up, count, there))
        consumer.start()
        there.close()
        try:
            if not here.poll(30):
                raise RuntimeError(f"{target.name}: the consumer did not start to read")
            here.recv()
            producer = context.Process(target=_produce, args=(client, topic, warm_up + count))
            producer.start()
            producer.join(timeout=120)
            if not here.poll(60):
                raise RuntimeError(f"{target.name}: the consumer did not see all {count} messages")
            delays_ns: list[int] = list(here.recv())
            return delays_ns
        finally:
            consumer.join(timeout=5)
            if consumer.is_alive():
                consumer.kill()


def percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def calm_process() -> None:
    """Sleep precisely, never pause for garbage: the generator must be calmer than what it measures."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    gc.disable()


def prompt_producer(client: Mapping[str, str]) -> Producer:
    """No linger. Idempotent, as the Java producer is by default, so at most five requests are in flight.

    Without that bound librdkafka sends every message in a request of its own however far behind the broker is, and
    once a broker is slow the measurement is only of how it drowns.
    """
    settings = {"linger.ms": 0, "acks": "all", "enable.idempotence": True, "socket.nagle.disable": True}
    return Producer({**client, **settings})


def connect_producer(producer: Producer, topic: str) -> None:
    """Send one message marked as a probe and wait for it, so that connecting is not part of what is measured."""
    producer.produce(topic, _DUE.pack(_PROBE), partition=0)
    if producer.flush(30):
        raise RuntimeError(f"the first message to {topic} was not acknowledged")


def _produce(client: Mapping[str, str], topic: str, count: int) -> None:
    calm_process()
    producer = prompt_producer(client)
    connect_producer(producer, topic)
    filler = b"x" * (_SIZE_BYTES - _DUE.size)
    interval_ns = 1_000_000_000 // RATE
    due_ns = time.monotonic_ns() + 50_000_000
    for _ in range(count):
        while (wait_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(wait_ns / 1e9)
        producer.produce(topic, _DUE.pack(due_ns) + filler, partition=0)
        due_ns += interval_ns
    if producer.flush(60):
        raise RuntimeError("not all messages were acknowledged")


def _consume(client: Mapping[str, str], topic: str, warm_up: int, count: int, parent: Connection) -> None:
    calm_process()
    consumer = Consumer(
        {
            **client,
            "group.id": "unused",  # librdkafka insists on a name; assign() never joins it
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while (probe := consumer.poll(10.0)) is None or probe.error() is not None:
        pass
    parent.send("reading")
    delays_ns = array("q")
    deadline = time.monotonic() + 120
    while len(delays_ns) < warm_up + count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            now_ns = time.monotonic_ns()
            due_ns = _DUE.unpack_from(message.value() or b"")[0]
            if due_ns != _PROBE:
                delays_ns.append(now_ns - due_ns)
    if len(delays_ns) == warm_up + count:
        parent.send(sorted(delays_ns[warm_up:]))
    consumer.close()
