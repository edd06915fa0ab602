"""`Client`: create, list, describe and delete topics; publish and consume records. Works with any Kafka broker.

For consumer groups and transactions use confluent-kafka, on which this client is based.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

from millstream.client.conditional import ConditionalPublisher
from millstream.client.connection import Connection
from millstream.client.partitioners import Partitioner
from millstream.client.publisher import Publisher
from millstream.client.record import Decode, Headers, Key, Message, Published, Record, Value, decoder
from millstream.client.stream import RecordStream, Start, resolve
from millstream.client.topics import Topic, Topics

T = TypeVar("T")
Partitions = int | Iterable[int] | None


class Client:
    """A client of a broker or cluster. `millstream.connect` makes one; use it in a `with` statement."""

    def __init__(
        self, bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> None:
        self._connection = Connection(bootstrap, settings, timeout)
        self._connection.probe()
        self._topics: Topics | None = None
        self._publisher = Publisher(self._connection)
        self._conditional = ConditionalPublisher(self._connection)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<millstream client of {self._connection.bootstrap}>"

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap address."""
        return self._connection.bootstrap

    def close(self) -> None:
        """Waits for records in flight, then closes the connections."""
        self._publisher.close()
        self._conditional.close()
        self._topics = None

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication: int | None = None,
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """Creates a topic and waits until it can be used. Numbers that are not given are the defaults of the broker.

        Returns True if it was created, False if it existed and `exist_ok` is set.
        """
        return self.topics.create(
            name, partitions=partitions, replication=replication, config=config or {}, exist_ok=exist_ok
        )

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted. Internal topics are included if `internal` is set."""
        return self.topics.names(internal=internal)

    def describe_topic(self, name: str) -> Topic:
        """Partitions, leaders, offsets and settings of a topic."""
        return self.topics.describe(name)

    def alter_topic(self, name: str, *, partitions: int | None = None, config: Mapping[str, Any] | None = None) -> None:
        """Adds partitions, so that there are `partitions`, and changes settings. None resets one to its default."""
        if config:
            self.topics.alter_config(name, config)
        if partitions is not None:
            self.topics.add_partitions(name, partitions)

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Deletes a topic and its records. Returns False if it did not exist and `missing_ok` is set."""
        return self.topics.delete(name, missing_ok=missing_ok)

    def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Deletes the records before an offset of each partition (-1: all). Returns the new earliest offsets."""
        return self.topics.delete_records(name, before)

    # Records

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: Headers = None,
        partition: int | None = None,
        timestamp: datetime | int | None = None,
        partitioner: Partitioner | None = None,
        expected_offset: int | None = None,
    ) -> Published:
        """Sends one record and waits until it is stored. Returns its partition and offset.

        Without `partition` the partition depends on the key, or on `partitioner`, which can spread hot keys over
        several partitions (see `HotKeyPartitioner`).

        With `expected_offset` (and `partition`) the record is written only if the partition ends at this offset, which
        becomes its own; otherwise UnexpectedEndError has the end. Brokers of Millstream can do this, others refuse it.
        """
        if expected_offset is not None:
            message = Message(value, key, headers, partition, timestamp)
            return self._conditional.publish(topic, message, expected_offset)
        return self._publisher.publish(topic, value, key, headers, partition, timestamp, partitioner)

    def publish_many(
        self,
        topic: str,
        items: Iterable[Value | tuple[Key, Value] | Message],
        *,
        partitioner: Partitioner | None = None,
    ) -> int:
        """Sends many records in large batches: values, (key, value) pairs or `Message`s.

        Waits until all are stored and returns their number. Raises DeliveryError at the first failure.
        """
        return self._publisher.publish_many(topic, items, partitioner)

    @overload
    def consume(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = ...,
        *,
        partition: Partitions = ...,
        follow: bool | None = ...,
        timeout: float | None = ...,
        limit: int | None = ...,
        decode: Literal["bytes"] | None = ...,
    ) -> RecordStream[bytes | None]: ...

    @overload
    def consume(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = ...,
        *,
        partition: Partitions = ...,
        follow: bool | None = ...,
        timeout: float | None = ...,
        limit: int | None = ...,
        decode: Literal["text"],
    ) -> RecordStream[str | None]: ...

    @overload
    def consume(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = ...,
        *,
        partition: Partitions = ...,
        follow: bool | None = ...,
        timeout: float | None = ...,
        limit: int | None = ...,
        decode: Literal["json"],
    ) -> RecordStream[Any]: ...

    @overload
    def consume(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = ...,
        *,
        partition: Partitions = ...,
        follow: bool | None = ...,
        timeout: float | None = ...,
        limit: int | None = ...,
        decode: Callable[[bytes], T],
    ) -> RecordStream[T | None]: ...

    def consume(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        *,
        partition: Partitions = None,
        follow: bool | None = None,
        timeout: float | None = None,
        limit: int | None = None,
        decode: Decode = None,
    ) -> RecordStream[Any]:
        """Iterates over the records of a topic.

        - `start`: 'earliest', 'latest', an offset, -N (the last N of each partition), a datetime, a timedelta (an age),
          or a mapping from partition to one of these.
        - `partition`: one or several partitions; all by default.
        - `follow`: False stops at the present end, True waits for new records. The default is True only for
          start='latest', which has nothing else to read.
        - `timeout`: with `follow`, stop after this many seconds without records. Without it, DeadlineError after this
          many seconds without progress.
        - `limit`: stop after this many records.
        - `decode`: the type of `record.value`: 'bytes' (default), 'text', 'json', or a function of bytes.
        """
        spans = resolve(self.topics, topic, start, partition)
        return RecordStream(
            self._connection,
            topic,
            spans,
            follow=start == "latest" if follow is None else follow,
            timeout=timeout,
            limit=limit,
            decode=decoder(decode),
            # Retention may delete the first segment before it is read. For 'earliest' the new first offset is right,
            # for a given offset it is an error.
            reset="earliest" if start == "earliest" else "error",
        )

    @property
    def topics(self) -> Topics:
        """More requests about topics."""
        if self._topics is None:
            self._topics = Topics(self._connection)
        return self._topics

    @property
    def connection(self) -> Connection:
        """Address and settings, for code that creates confluent-kafka clients itself."""
        return self._connection

    @property
    def publisher(self) -> Publisher:
        """The producer side. The async client uses its delivery reports."""
        return self._publisher


__all__ = ["Client", "Record"]
