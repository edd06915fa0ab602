"""A simple client for any Kafka broker, based on confluent-kafka. Public.

    with millstream.connect("localhost:9092") as client:
        client.publish("orders", {"id": 1})
        for record in client.consume("orders"):
            print(record.offset, record.json())

It imports no code of the broker, but for `expected_offset`, which librdkafka does not have.
"""

from collections.abc import Mapping
from typing import Any

from millstream.client.async_client import AsyncClient, AsyncRecordStream
from millstream.client.client import Client
from millstream.client.errors import (
    DamagedRecordsError,
    DeadlineError,
    DeliveryError,
    EncodingError,
    MillstreamError,
    NoBrokerError,
    NotAllowedError,
    OffsetOutOfRangeError,
    RefusedError,
    TopicExistsError,
    TopicNotFoundError,
    UnexpectedEndError,
)
from millstream.client.partitioners import HotKeyPartitioner, Partitioner, SaltingPartitioner
from millstream.client.record import Message, Published, Record
from millstream.client.stream import RecordStream
from millstream.client.topics import Partition, Topic

__all__ = [
    "AsyncClient",
    "AsyncRecordStream",
    "Client",
    "DamagedRecordsError",
    "DeadlineError",
    "DeliveryError",
    "EncodingError",
    "HotKeyPartitioner",
    "Message",
    "MillstreamError",
    "NoBrokerError",
    "NotAllowedError",
    "OffsetOutOfRangeError",
    "Partition",
    "Partitioner",
    "Published",
    "Record",
    "RecordStream",
    "RefusedError",
    "SaltingPartitioner",
    "Topic",
    "TopicExistsError",
    "TopicNotFoundError",
    "UnexpectedEndError",
    "connect",
    "connect_async",
]


def connect(
    bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
) -> Client:
    """Connects to a broker. Raises NoBrokerError at once if no broker listens at the address.

    `settings` are settings of librdkafka (security, compression.type, acks, …). `timeout` bounds each call, in seconds.
    """
    return Client(bootstrap, settings=settings, timeout=timeout)


def connect_async(
    bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
) -> AsyncClient:
    """A client for asyncio: `async with millstream.connect_async(...) as client`."""
    return AsyncClient(bootstrap, settings=settings, timeout=timeout)
