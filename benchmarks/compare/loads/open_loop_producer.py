"""A producer at a fixed rate that notes how long each acknowledgement took, counted from when the message was due.

Runs as a process of its own: beside another load, as in the cold catch-up read, or as the load itself.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from confluent_kafka import KafkaError, Message

from benchmarks.compare.loads.latency import calm_process, connect_producer, prompt_producer


def produce_until(bootstrap: str, topic: str, rate: int, size_bytes: int, stop: Event, parent: Connection) -> None:
    """Produce until `stop` is set, then send the parent the sorted acknowledgement delays in nanoseconds."""
    delays_ns, failures = _produce(bootstrap, topic, rate, size_bytes, lambda _: not stop.is_set())
    parent.send((sorted(delays_ns), failures))


def produce_count(
    bootstrap: str, topic: str, rate: int, size_bytes: int, warm_up: int, count: int, parent: Connection
) -> None:
    """The same for so many messages, without the delays of those that come first as a warm-up."""
    delays_ns, failures = _produce(bootstrap, topic, rate, size_bytes, lambda sent: sent < warm_up + count)
    parent.send((sorted(delays_ns[warm_up:]), failures))


def produce_dated(bootstrap: str, topic: str, rate: int, size_bytes: int, stop: Event, parent: Connection) -> None:
    """As `produce_until`, but says when it begins, and sends when each message was due along with its delay."""
    due_ns: array[int] = array("q")
    begin = partial(parent.send, "producing")
    delays_ns, failures = _produce(bootstrap, topic, rate, size_bytes, lambda _: not stop.is_set(), begin, due_ns)
    parent.send((list(zip(due_ns, delays_ns, strict=True)), failures))


def _produce(
    bootstrap: str,
    topic: str,
    rate: int,
    size_bytes: int,
    go_on: Callable[[int], bool],
    begin: Callable[[], None] = lambda: None,
    acknowledged_due_ns: array[int] | None = None,
) -> tuple[array[int], list[str]]:
    calm_process()
    producer = prompt_producer({"bootstrap.servers": bootstrap})
    connect_producer(producer, topic)
    begin()
    payload = b"x" * size_bytes
    delays_ns = array("q")
    failures: list[str] = []
    interval_ns = 1_000_000_000 // rate

    def on_ack(due_ns: int, error: KafkaError | None) -> None:
        if error is not None:
            failures.append(str(error))
        delays_ns.append(time.monotonic_ns() - due_ns)
        if acknowledged_due_ns is not None:
            acknowledged_due_ns.append(due_ns)

    def send(due_ns: int) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            on_ack(due_ns, error)

        producer.produce(topic, payload, partition=0, on_delivery=delivered)

    due_ns = time.monotonic_ns()
    sent = 0
    while go_on(sent):
        # Waiting inside poll() serves acknowledgements the moment they arrive.
        while (wait_ns := due_ns - time.monotonic_ns()) > 0:
            producer.poll(wait_ns / 1e9)
        send(due_ns)
        due_ns += interval_ns
        sent += 1
    producer.flush(60)
    return delays_ns, failures[:3]
