"""A small friendly client for any Kafka broker, on confluent-kafka.

    with millstream.connect("localhost:9092") as client:
        client.publish("orders", {"id": 1})
        for record in client.consume("orders"):
            print(record.offset, record.json())

Stands beside the broker's rooms and imports none of them.
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
    OffsetOutOfRangeError,
    RefusedError,
    TopicExistsError,
    TopicNotFoundError,
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
    "connect",
    "connect_async",
]


def connect(
    bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
) -> Client:
    """Connect to a broker, at once: raises NoBrokerError if nobody listens there.

    `settings` are librdkafka's (security, compression.type, acks, …); `timeout` bounds each call, in seconds.
    """
    return Client(bootstrap, settings=settings, timeout=timeout)


def connect_async(
    bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
) -> AsyncClient:
    """The same for asyncio: `async with millstream.connect_async(...) as client`."""
    return AsyncClient(bootstrap, settings=settings, timeout=timeout)
