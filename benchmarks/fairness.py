"""Fair turns: the latency of a well-behaved client, alone and beside a client that floods the broker.

    python -m benchmarks.fairness [--seconds 10] [--connections 200] [--pipelined 8]

The flooding client (a process of its own, from 127.0.0.2) has many connections with several small produce requests in
flight on each. The other client (from 127.0.0.1) sends one request at a time, with pauses. Each is a tenant by its
address. The figure is the p99 of the second client with the flood, over its p99 without.
"""

import argparse
import multiprocessing
import random
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event

from millstream.formats.protocol.schema import request_schema
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker

TOPIC = "fairness"
_VERSION = 11
_PAUSE_SECONDS = 0.002


def produce_frame(value_bytes: int) -> bytes:
    """A produce request of one record, with its size."""
    records = bytes(build_batch([Record(None, b"x" * value_bytes, timestamp=int(time.time() * 1000))]))
    schema = request_schema("produce")
    rows = [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}]
    body = schema.encode({"acks": 1, "timeout_ms": 30_000, "topic_data": rows}, _VERSION)
    frame = struct.pack(">hhih", schema.api_key, _VERSION, 1, 4) + b"fair" + b"\0" + body
    return struct.pack(">i", len(frame)) + frame


def connect(address: str, source: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), 30, (source, 0))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def flood(address: str, connections: int, pipelined: int, started: Event, ended: Event) -> None:
    """Keeps `pipelined` requests in flight on each connection until `ended` is set."""
    frame = produce_frame(100)
    response_bytes = len(exchange(connect(address, "127.0.0.2"), frame)) + 4
    waiting = selectors.DefaultSelector()
    for _ in range(connections):
        made = connect(address, "127.0.0.2")
        made.sendall(frame * pipelined)
        waiting.register(made, selectors.EVENT_READ, [0])
    started.set()
    while not ended.is_set():
        for key, _ in waiting.select(0.1):
            sock, received = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            received[0] += len(sock.recv(1 << 16))
            done, received[0] = divmod(received[0], response_bytes)
            if done:
                sock.sendall(frame * done)


def exchange(sock: socket.socket, frame: bytes) -> bytes:
    """Sends one request; the response without its size."""
    sock.sendall(frame)
    (size,) = struct.unpack(">i", _exactly(sock, 4))
    return _exactly(sock, size)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return data


def latencies(address: str, seconds: float) -> list[float]:
    """Milliseconds of single requests, with pauses between them."""
    frame, sock, found = produce_frame(100), connect(address, "127.0.0.1"), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        exchange(sock, frame)
        found.append((time.perf_counter() - begun) * 1000)
        time.sleep(random.uniform(0, 2 * _PAUSE_SECONDS))
    sock.close()
    return found


def percentile(sample: Sequence[float], part: float) -> float:
    ordered = sorted(sample)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure(seconds: float, connections: int, pipelined: int) -> dict[str, float]:
    with EmbeddedBroker({"num.partitions": 1}) as broker:
        address = broker.bootstrap_servers
        with Cluster(address) as cluster:
            cluster.create_topic(TOPIC, 1)
        latencies(address, min(1.0, seconds))  # warms up
        alone = latencies(address, seconds)
        context = multiprocessing.get_context("spawn")
        started, ended = context.Event(), context.Event()
        process = context.Process(target=flood, args=(address, connections, pipelined, started, ended))
        process.start()
        try:
            assert started.wait(60), "the flooding client did not start"
            flooded = latencies(address, seconds)
        finally:
            ended.set()
            process.join(30)
    return {
        "alone_p50_ms": percentile(alone, 0.5),
        "alone_p99_ms": percentile(alone, 0.99),
        "flooded_p50_ms": percentile(flooded, 0.5),
        "flooded_p99_ms": percentile(flooded, 0.99),
        "ratio_p99": percentile(flooded, 0.99) / percentile(alone, 0.99),
        "requests": float(len(flooded)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--connections", type=int, default=200)
    options.add_argument("--pipelined", type=int, default=8)
    chosen = options.parse_args(arguments)
    for name, value in measure(chosen.seconds, chosen.connections, chosen.pipelined).items():
        print(f"{name:16} {value:10.3f}")


if __name__ == "__main__":
    main()
