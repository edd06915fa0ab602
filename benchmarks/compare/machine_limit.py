"""The machine's own limit: the simplest possible programs that move the same bytes, without a broker.

A sender and a receiver on loopback; the receiver writes what it gets to a file in the page cache (`recv_into` +
`write`), or sends a file with `sendfile` as a broker serving from the page cache would. For small requests, an epoll
loop that responds to each request with a canned response and stores nothing, driven by the same client as the brokers.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.compare import wire
from benchmarks.compare.loads.small_requests import drive
from benchmarks.compare.measure import Scale
from benchmarks.compare.topic import settle

_FULL_BYTES = 800 << 20
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 3

# Which limit each kind of measure is held against, by (load, measure key).
LIMIT_OF = {
    ("produce-librdkafka", "1024_1"): "copy_in",
    ("produce-librdkafka", "1024_all"): "copy_in",
    ("produce-librdkafka", "100_1"): "copy_in",
    ("produce-librdkafka", "100_all"): "copy_in",
    ("produce-java", "1024_1"): "copy_in",
    ("produce-java", "1024_all"): "copy_in",
    ("produce-java", "100_1"): "copy_in",
    ("produce-java", "100_all"): "copy_in",
    ("produce-java", "1024_big"): "copy_in",
    ("raw-transfer", "produce"): "copy_in",
    ("raw-transfer", "fetch"): "copy_out",
    ("consume-librdkafka", "mb_s"): "copy_out",
    ("consume-java", "mb_s"): "copy_out",
    ("small-requests", "one"): "echo_one",
    ("small-requests", "pipelined"): "echo_pipelined",
}
LIMIT_TITLES = {
    "copy_in": ("loopback receive + page-cache write", "MB/s"),
    "copy_out": ("page-cache sendfile + loopback receive", "MB/s"),
    "echo_one": ("canned responses, 8 connections, 1 in flight", "req/s"),
    "echo_pipelined": ("canned responses, 8 connections, 5 in flight", "req/s"),
}


def measure_limits(directory: Path, scale: Scale) -> dict[str, float]:
    """The four limits; run once per comparison on the brokers' own disk."""
    size = max(int(_FULL_BYTES * scale.factor), 4 * _CHUNK_BYTES)
    path = directory / "machine-limit"
    try:
        settle(size)
        # A limit is the best seen, not the middle.
        copy_in_s = min(_copy_in(path, size) for _ in range(_ATTEMPTS))
        copy_out_s = min(_copy_out(path, size) for _ in range(_ATTEMPTS))
    finally:
        path.unlink(missing_ok=True)
    return {
        "copy_in": size / copy_in_s / 1e6,
        "copy_out": size / copy_out_s / 1e6,
        "echo_one": _echo(1, scale.seconds(2.0)),
        "echo_pipelined": _echo(5, scale.seconds(2.0)),
    }


def _copy_in(path: Path, size: int) -> float:
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = context.Process(target=_send_zeros, args=(server.getsockname()[1], size))
        sender.start()
        connection, _ = server.accept()
        with connection, open(path, "wb", buffering=0) as file:
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            started = time.perf_counter()
            while count := connection.recv_into(buffer):
                file.write(buffer[:count])
            seconds = time.perf_counter() - started
        sender.join()
    return seconds


def _send_zeros(port: int, size: int) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(size // _CHUNK_BYTES):
            connection.sendall(chunk)


def _copy_out(path: Path, size: int) -> float:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = context.Process(target=_receive_all, args=(server.getsockname()[1], there))
        receiver.start()
        connection, _ = server.accept()
        with connection, open(path, "rb") as file:
            at = 0
            while at < size // _CHUNK_BYTES * _CHUNK_BYTES:
                at += os.sendfile(connection.fileno(), file.fileno(), at, _CHUNK_BYTES)
        seconds = float(here.recv())
        receiver.join()
    return seconds


def _receive_all(port: int, parent: Connection) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv_into(buffer)
        started = time.perf_counter()
        while connection.recv_into(buffer):
            pass
        parent.send(time.perf_counter() - started)


def _echo(in_flight: int, seconds: float) -> float:
    """Requests per second of a server that does nothing but respond: what client and kernel leave room for."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    request = wire.produce_request("limit", 0, wire.record_batch([b"x" * 100]))
    server = context.Process(target=_respond_forever, args=(len(request), there))
    server.start()
    try:
        responses, elapsed = drive(f"127.0.0.1:{here.recv()}", request, "limit", in_flight, seconds)
        return responses / elapsed
    finally:
        server.terminate()
        server.join()


def _respond_forever(request_bytes: int, parent: Connection) -> None:
    response = bytes(60)  # about the size of a Produce response; all zero also means "no error"
    response = len(response).to_bytes(4, "big") + response
    server = socket.create_server(("127.0.0.1", 0))
    poller = select.epoll()
    poller.register(server.fileno(), select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    pending: dict[int, int] = {}
    buffer = bytearray(64 * 1024)
    parent.send(server.getsockname()[1])
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == server.fileno():
                connection, _ = server.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()], pending[connection.fileno()] = connection, 0
                poller.register(connection.fileno(), select.EPOLLIN)
                continue
            received = connections[descriptor].recv_into(buffer)
            if not received:
                poller.unregister(descriptor)
                connections.pop(descriptor).close()
                continue
            complete, pending[descriptor] = divmod(pending[descriptor] + received, request_bytes)
            if complete:
                connections[descriptor].send(response * complete)
