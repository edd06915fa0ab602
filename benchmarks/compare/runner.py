"""Runs the loads on the targets in alternation, several rounds, and collects what they found.

Both brokers stay up all the time, so a JVM stays warm and neither profits from a fresh process; the idle one costs
next to nothing. Which broker goes first changes every round. A load that fails is reported and the comparison goes
on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.compare import librdkafka, wire
from benchmarks.compare.cluster_target import ClusterTarget
from benchmarks.compare.cluster_topic import replicated_topic
from benchmarks.compare.comparison import Comparison
from benchmarks.compare.loads.small_requests import drive, drive_dialed
from benchmarks.compare.measure import Load, LoadUnavailableError, Scale
from benchmarks.compare.secured_target import SASL, TLS, SecuredTarget, TlsDialer, client_settings
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, leaders, temporary_topic


@dataclass(frozen=True, slots=True)
class Step:
    """Reported before each piece of work."""

    round_number: int
    load: Load
    target: Target


def run_rounds(
    targets: list[Target],
    loads: list[Load],
    comparison: Comparison,
    scale: Scale,
    on_step: Callable[[Step], None],
) -> None:
    for round_number in range(1, comparison.rounds + 1):
        order = targets if round_number % 2 else targets[::-1]
        for load in loads:
            if round_number > getattr(load, "most_rounds", comparison.rounds):
                continue
            for target in order:
                on_step(Step(round_number, load, target))
                try:
                    comparison.add(load, target.name, load.run(target, scale))
                except LoadUnavailableError as reason:
                    comparison.note(f"{load.name}: {reason}")
                except Exception as problem:
                    # Whatever goes wrong with one broker in one load is a finding, not the end of the comparison.
                    comparison.failures.append(f"round {round_number}, {load.name} on {target.name}: {problem}")


def warm_up_cluster(target: ClusterTarget, seconds: float) -> None:
    """The same work for both until the time is over: records that three nodes hold."""
    deadline = time.monotonic() + seconds
    count = 20_000 if seconds >= 5 else 500
    while time.monotonic() < deadline:
        with replicated_topic(target, THROUGHPUT_PARTITIONS, expected_bytes=count * 1024 * 4) as topic:
            producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
            for size in (1024, 100, 1024, 100):
                producer.send(count, size)
            producer.close()


def warm_up(target: Target, seconds: float) -> None:
    """The same work for both until the time is over, so that a JVM has compiled what will be measured."""
    deadline = time.monotonic() + seconds
    count = 50_000 if seconds >= 5 else 1_000
    while time.monotonic() < deadline:
        for size in (1024, 100):
            with temporary_topic(target, THROUGHPUT_PARTITIONS, count * size * 4) as topic:
                producer = librdkafka.Producer(target.bootstrap, topic, acks="all")
                for _ in range(4):
                    producer.send(count, size)
                producer.close()
                librdkafka.consume_all(target.bootstrap, topic, THROUGHPUT_PARTITIONS)
        with temporary_topic(target, 1, 10 << 20) as topic:
            request = wire.produce_request(topic, 0, wire.record_batch([b"x" * 100]))
            drive(leaders(target.bootstrap, topic)[0], request, topic, 1, seconds / 8)


def warm_up_secured(target: SecuredTarget, seconds: float) -> None:
    """The same over TLS and SASL_SSL."""
    deadline = time.monotonic() + seconds
    count = 20_000 if seconds >= 5 else 1_000
    while time.monotonic() < deadline:
        for listener in (TLS, SASL):
            address, settings = target.addresses[listener], client_settings(target, listener)
            with temporary_topic(target, THROUGHPUT_PARTITIONS, count * 1024 * 4) as topic:
                producer = librdkafka.Producer(address, topic, acks="all", settings=settings)
                for _ in range(4):
                    producer.send(count, 1024)
                producer.close()
                librdkafka.consume_all(address, topic, THROUGHPUT_PARTITIONS, settings=settings)
        with temporary_topic(target, 1, 10 << 20) as topic:
            request = wire.produce_request(topic, 0, wire.record_batch([b"x" * 100]))
            drive_dialed(TlsDialer(target, TLS), request, topic, 1, seconds / 8)
