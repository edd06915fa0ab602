"""A simple client for any Kafka broker, based on confluent-kafka. Public.

    with millstream.connect("localhost:9092") as client:
        client.publish("orders", {"id": 1})
        for record in client.consume("orders"):
            print(record.offset, record.json())

It imports no code of the broker, but for `expected_offset`, which librdkafka does not have. What needs confluent-kafka
is imported at its first use: it is an extra (`millstream[client]`), and errors and addresses need no extra.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from millstream.client.async_client import AsyncClient, AsyncRecordStream
    from millstream.client.client import Client
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

_LATER = {
    "AsyncClient": "async_client",
    "AsyncRecordStream": "async_client",
    "Client": "client",
    "Partition": "topics",
    "RecordStream": "stream",
    "Topic": "topics",
}
"""The names that need confluent-kafka, and their modules."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'millstream.client' has no attribute {name!r}")
    try:
        return getattr(import_module(f"millstream.client.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        hint = "the client of Millstream needs the package confluent-kafka: pip install 'millstream[client]'"
        raise ModuleNotFoundError(hint, name=error.name) from None


def connect(
    bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
) -> "Client":
    """Connects to a broker. Raises NoBrokerError at once if no broker listens at the address.

    `settings` are settings of librdkafka (security, compression.type, acks, …). `timeout` bounds each call, in seconds.
    """
    kind: type[Client] = __getattr__("Client")
    return kind(bootstrap, settings=settings, timeout=timeout)


def connect_async(
    bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
) -> "AsyncClient":
    """A client for asyncio: `async with millstream.connect_async(...) as client`."""
    kind: type[AsyncClient] = __getattr__("AsyncClient")
    return kind(bootstrap, settings=settings, timeout=timeout)
