"""Many small requests: one 100 B record per Produce request, 8 connections, with one and with five in flight each.

The client is a single epoll loop that sends a request encoded once and only counts and checks what comes back, so
that the broker is the bottleneck. Five in flight is the Java producer's default.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

CONNECTIONS = 8
PIPELINED_IN_FLIGHT = 5
FULL_SECONDS = 3.0
WARM_UP_SECONDS = 0.5
RECORD_BYTES = 100


class SmallRequests(Load):
    name: ClassVar[str] = "small-requests"
    title: ClassVar[str] = "Many small requests"
    measures: Sequence[Measure] = (
        Measure("one", "small requests, 8 connections, 1 in flight", "req/s", "higher", 1.1),
        Measure("pipelined", "small requests, 8 connections, 5 in flight", "req/s", "higher", 1.2),
        Measure("cpu", "broker CPU per small request, 1 in flight", "µs", "lower", 0.6),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        values: dict[str, float] = {}
        seconds = scale.seconds(FULL_SECONDS)
        for key, in_flight in (("one", 1), ("pipelined", PIPELINED_IN_FLIGHT)):
            with temporary_topic(target, partitions=1, expected_bytes=100 << 20) as topic:
                request = wire.produce_request(topic, 0, wire.record_batch([b"x" * RECORD_BYTES]), acks=-1)
                drive(target.bootstrap, request, topic, in_flight, min(WARM_UP_SECONDS, seconds))
                cpu_before = cpu_seconds(target.pid)
                responses, elapsed = drive(target.bootstrap, request, topic, in_flight, seconds)
                if key == "one":
                    values["cpu"] = (cpu_seconds(target.pid) - cpu_before) / responses * 1e6
                values[key] = responses / elapsed
        return values


def drive(bootstrap: str, request: bytes, topic: str, in_flight: int, seconds: float) -> tuple[int, float]:
    """Keep `in_flight` copies of the request under way on each connection; returns responses counted and seconds."""
    return drive_dialed(partial(wire.connect, bootstrap), request, topic, in_flight, seconds)


def drive_dialed(
    dial: Callable[[], socket.socket], request: bytes, topic: str, in_flight: int, seconds: float
) -> tuple[int, float]:
    """The same, with connections that `dial` opens. With TLS too, no bytes stay unread beside the socket: the buffer
    has room for all that is in flight, and nothing is read ahead."""
    return drive_each([(dial, request)] * CONNECTIONS, topic, in_flight, seconds)


def drive_each(
    each: Sequence[tuple[Callable[[], socket.socket], bytes]], topic: str, in_flight: int, seconds: float
) -> tuple[int, float]:
    """The same, with a request for each connection; they differ in the partition only."""
    connections: dict[socket.socket, bytes] = {}
    try:
        for dial, request in each:
            connections[dial()] = request
        # The first response of each connection tells the size of all of them: nothing in it varies in length.
        sizes = {len(_checked(wire.ask(*pair), topic)) + 4 for pair in connections.items()}
        if len(sizes) != 1:
            raise RuntimeError(f"Produce responses of different sizes: {sorted(sizes)}")
        return _loop(connections, topic, sizes.pop(), in_flight, seconds)
    finally:
        for connection in connections:
            connection.close()


def _checked(response: bytes, topic: str) -> bytes:
    if error := wire.produce_error(response, topic):
        raise RuntimeError(f"Produce responded with error {error}")
    return response


def _loop(
    connections: Mapping[socket.socket, bytes], topic: str, response_bytes: int, in_flight: int, seconds: float
) -> tuple[int, float]:
    by_descriptor = {connection.fileno(): connection for connection in connections}
    pending = dict.fromkeys(by_descriptor, 0)  # bytes of a response received in part
    several = {
        connection.fileno(): [request * count for count in range(in_flight + 1)]
        for connection, request in connections.items()
    }
    buffer = bytearray(response_bytes * in_flight)
    poller = select.epoll()
    for connection in connections:
        poller.register(connection.fileno(), select.EPOLLIN)
    responses = 0
    started = time.perf_counter()
    stop_at = started + seconds
    for connection in connections:
        connection.sendall(several[connection.fileno()][in_flight])
    try:
        while time.perf_counter() < stop_at:
            for descriptor, _ in poller.poll(1.0):
                connection = by_descriptor[descriptor]
                received = connection.recv_into(buffer)
                if not received:
                    raise ConnectionError("the broker closed the connection")
                complete, pending[descriptor] = divmod(pending[descriptor] + received, response_bytes)
                if complete:
                    responses += complete
                    connection.send(several[descriptor][complete])
        elapsed = time.perf_counter() - started
        # One response per connection is looked into at the end; a broker that started to refuse would show here.
        for descriptor, connection in by_descriptor.items():
            connection.settimeout(30)
            rest = memoryview(bytearray(response_bytes * in_flight - pending[descriptor]))
            wire.receive_exactly(connection, rest)
            _checked(bytes(rest[-response_bytes + 4 :]), topic)
        return responses, elapsed
    finally:
        poller.close()
