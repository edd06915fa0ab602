"""The broker alone: pre-encoded 1 MB Produce requests in, bare Fetch requests out, no client library in between.

With two cores a client library takes as much CPU as the broker; here the client only copies bytes, so this is nearest
to what the broker itself can move. It says where the client is the limit in the other loads.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

_RECORD_BYTES = 1024
RECORDS_PER_BATCH = 900  # just under message.max.bytes
FULL_BATCHES = 800
_IN_FLIGHT = 4


class RawTransfer(Load):
    name: ClassVar[str] = "raw-transfer"
    title: ClassVar[str] = "Raw produce and fetch"
    measures: Sequence[Measure] = (
        Measure("produce", "produce 1 KB, pre-encoded 1 MB requests, 4 in flight", "MB/s", "higher", 1.5),
        Measure("fetch", "fetch 1 KB, bare Fetch requests of 1 MB", "MB/s", "higher", 1.2),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        batches = scale.records(FULL_BATCHES, least=20)
        batch = full_batch()
        with (
            temporary_topic(target, 1, batches * len(batch)) as topic,
            wire.connect(target.bootstrap) as connection,
        ):
            produced_s = produce(connection, wire.produce_request(topic, 0, batch), topic, batches)
            fetched_bytes, fetched_s = fetch(connection, topic, batches * RECORDS_PER_BATCH)
        return {"produce": batches * len(batch) / produced_s / 1e6, "fetch": fetched_bytes / fetched_s / 1e6}


def full_batch() -> bytes:
    return wire.record_batch([b"x" * _RECORD_BYTES] * RECORDS_PER_BATCH)


def produce(connection: socket.socket, request: bytes, topic: str, batches: int) -> float:
    prefix = memoryview(bytearray(4))

    def await_response() -> None:
        wire.receive_exactly(connection, prefix)
        response = bytearray(int.from_bytes(prefix, "big"))
        wire.receive_exactly(connection, memoryview(response))
        if error := wire.produce_error(bytes(response), topic):
            raise RuntimeError(f"Produce responded with error {error}")

    started = time.perf_counter()
    for sent in range(batches):
        if sent >= _IN_FLIGHT:
            await_response()
        connection.sendall(request)
    for _ in range(min(_IN_FLIGHT, batches)):
        await_response()
    return time.perf_counter() - started


def fetch(
    connection: socket.socket,
    topic: str,
    end_offset: int,
    *,
    allow_empty: bool = False,
    partition_bytes: int = wire.PARTITION_BYTES,
) -> tuple[int, float]:
    """Bytes of records and seconds. `allow_empty`: the broker may still wait for records when a request ends.
    `partition_bytes`: `max.partition.fetch.bytes`."""
    buffer = memoryview(bytearray(partition_bytes + (4 << 20)))
    offset = total = 0
    started = time.perf_counter()
    while offset < end_offset:
        connection.sendall(wire.fetch_request(topic, 0, offset, partition_bytes=partition_bytes))
        wire.receive_exactly(connection, buffer[:4])
        response = buffer[4 : 4 + int.from_bytes(buffer[:4], "big")]
        wire.receive_exactly(connection, response)
        fetched = wire.parse_fetch(response, topic, offset)
        if fetched.next_offset == offset and not allow_empty:
            raise RuntimeError(f"Fetch at offset {offset} of {end_offset} brought no whole batch")
        offset, total = fetched.next_offset, total + fetched.records_bytes
    return total, time.perf_counter() - started
