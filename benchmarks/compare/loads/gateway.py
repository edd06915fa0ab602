"""Produce over HTTP: batches of 500 records of 1 KB in base64, through one gateway process that has one core to itself.

The gateway is a process of its own in front of the broker, all its threads bound to one core; requests are encoded once
and sent by one epoll loop over four connections, one in flight on each, as four callers would. A record counts once the
gateway has responded where it is: on all in-sync replicas. The end offsets are looked at afterwards. CPU is that of the
gateway alone; the time of one small request is taken on a connection of its own, one after the other.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from benchmarks.compare import librdkafka
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.target import Target
from benchmarks.compare.topic import THROUGHPUT_PARTITIONS, temporary_topic

_CONNECTIONS = 4
_BATCH, _RECORD_BYTES = 500, 1024
_FULL_SECONDS = 5.0
_WARM_UP_SECONDS = 1.0
_SMALL_REQUESTS = 300
_PROMISED = 20_000
_TIMEOUT_SECONDS = 60.0


class GatewayProduce(Load):
    name: ClassVar[str] = "gateway"
    title: ClassVar[str] = "Produce over HTTP"
    measures: Sequence[Measure] = (
        Measure("rate", "HTTP: batches of 500 × 1 KB, gateway on one core", "records/s", "higher", at_least=_PROMISED),
        Measure("cpu", "HTTP: the gateway's CPU per record of a batch", "µs", "lower"),
        Measure("p50", "HTTP: one record per request, p50", "ms", "lower"),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        seconds, warm_up = scale.seconds(_FULL_SECONDS), scale.seconds(_WARM_UP_SECONDS)
        with (
            temporary_topic(target, THROUGHPUT_PARTITIONS, int(seconds * 100) << 20) as topic,
            _gateway(target.bootstrap) as (address, pid),
        ):
            request = _request(address, f"/topics/{topic}/messages/batch", _batch())
            sent = _drive(address, request, warm_up)[0]
            cpu_before = cpu_seconds(pid)
            responses, elapsed = _drive(address, request, seconds)
            cpu = cpu_seconds(pid) - cpu_before
            delays = _one_by_one(address, topic, scale.records(_SMALL_REQUESTS, least=20))
            arrived = sum(librdkafka.end_offsets(target.bootstrap, topic, THROUGHPUT_PARTITIONS))
            expected = (sent + responses) * _BATCH + len(delays)
            if arrived != expected:
                raise RuntimeError(f"{target.name}: {arrived} records in the log, {expected} were acknowledged")
        return {
            "rate": responses * _BATCH / elapsed,
            "cpu": cpu / (responses * _BATCH) * 1e6,
            "p50": sorted(delays)[len(delays) // 2] * 1e3,
        }


def _batch() -> bytes:
    messages = [
        {"key": f"user_{number}", "value": base64.b64encode(os.urandom(_RECORD_BYTES)).decode()}
        for number in range(_BATCH)
    ]
    return json.dumps({"messages": messages}).encode()


def _request(address: str, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@contextmanager
def _gateway(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Its address and process id. Bound to a core before it starts a thread."""
    core = max(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [sys.executable, "-m", "millstream", "gateway", "-b", bootstrap, "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        ready = process.stdout.readline().decode().strip()
        if not ready.startswith("ready http="):
            raise RuntimeError(f"the gateway did not start: {ready or 'it said nothing'}")
        yield ready.partition("=")[2].split()[0], process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _drive(address: str, request: bytes, seconds: float) -> tuple[int, float]:
    """Keeps one request under way on each connection; returns how many responses came, and in which time."""
    connections = {connection.fileno(): connection for connection in (_connect(address) for _ in range(_CONNECTIONS))}
    poller = select.epoll()
    responses, started = 0, time.perf_counter()
    try:
        for number, connection in connections.items():
            connection.sendall(request)
            poller.register(number, select.EPOLLIN)
        waiting = len(connections)
        while waiting:
            for number, _ in poller.poll(_TIMEOUT_SECONDS):
                _read_response(connections[number])
                responses += 1
                if time.perf_counter() - started < seconds:
                    connections[number].sendall(request)
                else:
                    waiting -= 1
        return responses, time.perf_counter() - started
    finally:
        poller.close()
        for connection in connections.values():
            connection.close()


def _one_by_one(address: str, topic: str, count: int) -> list[float]:
    body = json.dumps({"value": base64.b64encode(os.urandom(100)).decode()}).encode()
    request = _request(address, f"/topics/{topic}/messages", body)
    delays = []
    with _connect(address) as connection:
        for _ in range(count):
            started = time.perf_counter()
            connection.sendall(request)
            _read_response(connection)
            delays.append(time.perf_counter() - started)
    return delays


def _read_response(connection: socket.socket) -> bytes:
    """One whole response, which must be 200."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _received(connection)
    head = bytes(data[:end]).lower()
    size = end + 4 + int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    while len(data) < size:
        data += _received(connection)
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"the gateway responded {bytes(data[:300])!r}")
    return bytes(data[end + 4 :])


def _received(connection: socket.socket) -> bytes:
    received = connection.recv(1 << 20)
    if not received:
        raise ConnectionError("the gateway closed the connection")
    return received
