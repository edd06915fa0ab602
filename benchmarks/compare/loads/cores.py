"""Loads for `millstream serve --cores 2` beside one broker of Apache Kafka, which uses all cores by itself.

With one process, one client loop is enough to keep the broker busy. Two processes need two: the client is two
processes here, on both brokers alike. Each connection writes to a partition of its own, at the partition's leader.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.loads import produce_librdkafka
from benchmarks.compare.loads.produce_librdkafka import ProduceLibrdkafka
from benchmarks.compare.loads.small_requests import (
    CONNECTIONS,
    FULL_SECONDS,
    PIPELINED_IN_FLIGHT,
    RECORD_BYTES,
    WARM_UP_SECONDS,
    drive_each,
)
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import leaders, temporary_topic

_PREFIX = "--cores 2: "
_CLIENTS = 2


class CoresSmallRequests(Load):
    name: ClassVar[str] = "cores-small-requests"
    title: ClassVar[str] = "Many small requests, two processes"
    measures: Sequence[Measure] = (
        Measure("one", f"{_PREFIX}small requests, 8 partitions, 1 in flight", "req/s", "higher", 1.6),
        Measure("pipelined", f"{_PREFIX}small requests, 8 partitions, 5 in flight", "req/s", "higher", 2.0),
        Measure("cpu", f"{_PREFIX}broker CPU per small request, 1 in flight", "µs", "lower"),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        values: dict[str, float] = {}
        seconds = scale.seconds(FULL_SECONDS)
        with multiprocessing.get_context("spawn").Pool(_CLIENTS) as clients:
            for key, in_flight in (("one", 1), ("pipelined", PIPELINED_IN_FLIGHT)):
                with temporary_topic(target, CONNECTIONS, expected_bytes=100 << 20) as topic:
                    by_leader = sorted((leader, at) for at, leader in leaders(target.bootstrap, topic).items())
                    # Each client has partitions of every leader.
                    shares = [by_leader[own::_CLIENTS] for own in range(_CLIENTS)]
                    warm_up_s = min(WARM_UP_SECONDS, seconds)
                    clients.starmap(_drive, [(share, topic, in_flight, warm_up_s) for share in shares], 1)
                    cpu_before = cpu_seconds(target.pid)
                    found = clients.starmap(_drive, [(share, topic, in_flight, seconds) for share in shares], 1)
                    if key == "one":
                        cpu_s = cpu_seconds(target.pid) - cpu_before
                        values["cpu"] = cpu_s / sum(count for count, _ in found) * 1e6
                    values[key] = sum(count / elapsed for count, elapsed in found)
        return values


def _drive(share: Sequence[tuple[str, int]], topic: str, in_flight: int, seconds: float) -> tuple[int, float]:
    """One client: a connection to the leader of each of its partitions."""
    batch = wire.record_batch([b"x" * RECORD_BYTES])
    each = [(partial(wire.connect, leader), wire.produce_request(topic, at, batch)) for leader, at in share]
    return drive_each(each, topic, in_flight, seconds)


class CoresProduce(ProduceLibrdkafka):
    name: ClassVar[str] = "cores-produce"
    title: ClassVar[str] = "Produce with librdkafka, two processes"
    measures: Sequence[Measure] = produce_librdkafka.measures(_PREFIX)
