"""A raw Kafka client for tests: any API, any version, any bytes; made from the wire schemas, not from our fast codecs.

with Wire(broker.bootstrap_servers) as wire:
    response = wire.call("metadata", 12, topics=None)
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from types import TracebackType
from typing import Any

from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import Message, request_schema, response_schema, split_entries
from millstream.formats.records.record import Record, build_batch, read_batches
from tests.waiting import TIMEOUT_SECONDS

API_VERSIONS_KEY = 18


def request_names() -> dict[int, str]:
    """Every API by its key."""
    entries = split_entries(files("millstream.formats.protocol").joinpath("wire.schema").read_text())
    return {int(entry.split(None, 3)[1]): name for (kind, name), entry in entries.items() if kind == "request"}


def now_ms() -> int:
    return int(time.time() * 1000)


def header(key: int, version: int, correlation_id: int, *, flexible: bool, client_id: str | None = "wire") -> bytes:
    name = None if client_id is None else client_id.encode()
    out = struct.pack(">hhih", key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
    return out + b"\x00" if flexible else out


def request(
    api: str, version: int, fields: Mapping[str, Any], correlation_id: int = 0, client_id: str | None = "wire"
) -> bytes:
    """A request without its length."""
    schema = request_schema(api)
    flexible = schema.is_flexible(version)
    head = header(schema.api_key, version, correlation_id, flexible=flexible, client_id=client_id)
    return head + schema.encode(fields, version)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def decode(api: str, version: int, data: bytes) -> tuple[int, Message]:
    """Correlation id and response; every byte must have been used."""
    schema = response_schema(api)
    cursor = Cursor(data)
    (correlation_id,) = struct.unpack_from(">i", data, cursor.take(4))
    if schema.is_flexible(version) and schema.api_key != API_VERSIONS_KEY:
        assert data[cursor.take(1)] == 0, "tags in a response's header"
    message = schema.read(cursor, version)
    assert cursor.position == len(data), f"{len(data) - cursor.position} bytes left over in the response to {api}"
    return correlation_id, message


def batch(*values: bytes, timestamp: int | None = None, **options: Any) -> bytes:
    """A record batch as a producer sends it."""
    when = now_ms() if timestamp is None else timestamp
    return bytes(build_batch([Record(None, value, timestamp=when) for value in values], **options))


def values(records: bytes | memoryview | None) -> list[bytes]:
    """The values in the batches of a fetch response; a batch that is cut off at the end is left out."""
    return [record.value or b"" for _, rows in read_batches(records or b"") for record in rows]


class Closed(Exception):
    """The broker closed the connection."""


class Wire:
    def __init__(self, address: str, timeout: float = TIMEOUT_SECONDS, client_id: str | None = "wire") -> None:
        self.client_id = client_id
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self._next = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed from error

    def send(self, api: str, version: int, **fields: Any) -> int:
        """Sends without waiting for the response."""
        self._next += 1
        self.send_raw(framed(request(api, version, fields, self._next, self.client_id)))
        return self._next

    def receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self.socket.recv(min(count - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return bytes(data)

    def receive_raw(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def receive(self, api: str, version: int) -> tuple[int, Message]:
        return decode(api, version, self.receive_raw())

    def call(self, api: str, version: int, **fields: Any) -> Message:
        sent = self.send(api, version, **fields)
        correlation_id, response = self.receive(api, version)
        assert correlation_id == sent
        return response

    def is_closed(self) -> bool:
        """Waits for the broker to close; False if it says something instead."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    # The three things most tests do

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Creates a topic (settings with `_` for `.`) and returns its id."""
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        (row,) = self.call("create_topics", 7, topics=[topic], timeout_ms=10_000, validate_only=False).topics
        assert row.error_code == 0, (row.error_code, row.error_message)
        return row.topic_id

    def produce(self, topic: str, data: bytes | None, partition: int = 0, acks: int = -1, version: int = 12) -> Message:
        rows = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
        response = self.call("produce", version, acks=acks, timeout_ms=10_000, topic_data=rows)
        row: Message = response.responses[0].partition_responses[0]
        return row

    def fetch(self, topic: str, offset: int = 0, partition: int = 0, version: int = 12, **options: Any) -> Message:
        """One partition, outside any session."""
        response = self.call("fetch", version, **fetch_fields([(topic, partition, offset)], **options))
        row: Message = response.responses[0].partitions[0]
        return row


def fetch_fields(
    wanted: Sequence[tuple[Any, int, int]],
    *,
    by_id: bool = False,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[tuple[Any, Sequence[int]]] = (),
    leader_epoch: int = -1,
) -> dict[str, Any]:
    """The fields of a fetch of (topic, partition, offset)s."""
    key = "topic_id" if by_id else "topic"
    topics: dict[Any, list[dict[str, Any]]] = {}
    for topic, partition, offset in wanted:
        row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        topics.setdefault(topic, []).append(
            row | {"current_leader_epoch": leader_epoch, "last_fetched_epoch": -1, "log_start_offset": -1}
        )
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [{key: topic, "partitions": rows} for topic, rows in topics.items()],
        "forgotten_topics_data": [{key: topic, "partitions": list(indexes)} for topic, indexes in forgotten],
        "rack_id": "",
    }
