"""Requests encoded once and sent many times, so that the client costs next to nothing.

Only what the raw-socket loads need: Produce v11 and Fetch v12 (flexible versions that name topics, as today's clients
send), CreateTopics v7 for the start-up load, ApiVersions v0 for the check for groups. Written by hand against
the public protocol on purpose: a benchmark must not share code with the broker it measures.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

import crc32c

_CLIENT_ID = b"compare"


def uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def compact(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def frame(api: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def record_batch(values: list[bytes]) -> bytes:
    """An uncompressed v2 batch of a producer without idempotence."""
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0" + _varint(0) + _varint(delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
        records += _varint(len(body)) + body
    now_ms = int(time.time() * 1000)
    last = len(values) - 1
    tail = struct.pack(">hiqqqhii", 0, last, now_ms, now_ms, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c.crc32c(tail)) + tail


def produce_request(topic: str, partition: int, batch: bytes, *, acks: int = -1) -> bytes:
    in_partition = struct.pack(">i", partition) + compact(batch) + b"\0"
    in_topic = compact(topic.encode()) + uvarint(2) + in_partition + b"\0"
    return frame(0, 11, b"\0" + struct.pack(">hi", acks, 30_000) + uvarint(2) + in_topic + b"\0")


def produce_error(response: bytes, topic: str) -> int:
    """The error code in a Produce response (without its length prefix) to a request for one partition."""
    return int(struct.unpack_from(">h", response, 4 + 1 + 1 + 1 + len(topic.encode()) + 1 + 4)[0])


PARTITION_BYTES = 1 << 20
"""The default of clients for `max.partition.fetch.bytes`."""


def fetch_request(
    topic: str, partition: int, offset: int, *, max_wait_ms: int = 500, partition_bytes: int = PARTITION_BYTES
) -> bytes:
    in_partition = struct.pack(">iiqiqi", partition, -1, offset, -1, -1, partition_bytes) + b"\0"
    in_topic = compact(topic.encode()) + uvarint(2) + in_partition + b"\0"
    head = struct.pack(">iiiibii", -1, max_wait_ms, 1, 50 << 20, 0, 0, -1)
    no_forgotten_topics, no_rack = b"\x01", b"\x01"
    return frame(1, 12, head + uvarint(2) + in_topic + no_forgotten_topics + no_rack + b"\0")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one Fetch responded: the offset to go on from and the bytes of records in it."""

    next_offset: int
    records_bytes: int


def fetch_error(response: bytes, topic: str) -> int:
    """The partition's error code in a Fetch v12 response for one partition, or the response's own."""
    own = int(struct.unpack_from(">h", response, 9)[0])
    return own or int(struct.unpack_from(">h", response, 15 + 1 + 1 + len(topic.encode()) + 1 + 4)[0])


def parse_fetch(response: memoryview, topic: str, offset: int) -> Fetched:
    """Read a Fetch v12 response (without its length prefix) for one partition, looking at batch headers only."""
    at = 4 + 1 + 4 + 2 + 4  # correlation id, tags, throttle time, error, session id
    at += 1 + 1 + len(topic.encode()) + 1  # one topic, its name, one partition
    partition_error = struct.unpack_from(">h", response, at + 4)[0]
    if partition_error:
        raise RuntimeError(f"Fetch responded with error {partition_error}")
    at += 4 + 2 + 8 + 8 + 8  # index, error, high watermark, last stable offset, log start offset
    aborted, at = read_uvarint(response, at)
    if aborted > 1:
        raise RuntimeError("unexpected aborted transactions in a Fetch response")
    at += 4  # preferred read replica
    length, at = read_uvarint(response, at)
    end = at + length - 1
    records_bytes = max(length - 1, 0)
    while at + 61 <= end:
        base, size = struct.unpack_from(">qi", response, at)
        if at + 12 + size > end:
            break  # the last batch may be cut short
        offset = base + struct.unpack_from(">i", response, at + 23)[0] + 1
        at += 12 + size
    return Fetched(offset, records_bytes)


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def create_topic_request(topic: str, partitions: int) -> bytes:
    in_topic = compact(topic.encode()) + struct.pack(">ih", partitions, 1) + b"\x01" + b"\x01" + b"\0"
    return frame(19, 7, uvarint(2) + in_topic + struct.pack(">ib", 10_000, 0) + b"\0")


def api_versions_request() -> bytes:
    request = struct.pack(">hhih", 18, 0, 1, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(request)) + request


def offered_apis(response: bytes) -> set[int]:
    """The API keys in an ApiVersions v0 response."""
    count = struct.unpack_from(">i", response, 6)[0]
    return {struct.unpack_from(">h", response, 10 + 6 * at)[0] for at in range(count)}


def connect(bootstrap: str, timeout_s: float = 30.0) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_exactly(connection: socket.socket, buffer: memoryview) -> None:
    filled = 0
    while filled < len(buffer):
        count = connection.recv_into(buffer[filled:])
        if count == 0:
            raise ConnectionError("the broker closed the connection")
        filled += count


def ask(connection: socket.socket, request: bytes) -> bytes:
    """Send one request and return its response without the length prefix."""
    connection.sendall(request)
    prefix = bytearray(4)
    receive_exactly(connection, memoryview(prefix))
    response = bytearray(int.from_bytes(prefix, "big"))
    receive_exactly(connection, memoryview(response))
    return bytes(response)
