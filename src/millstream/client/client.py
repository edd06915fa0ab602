"""`Client`: the verbs of a log (create, list, describe, delete, publish, consume) in one small object.

Works against any Kafka broker. What needs more than these verbs (consumer groups, transactions) is better served by
confluent-kafka itself, on which this stands.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

from millstream.client.connection import Connection
from millstream.client.partitioners import Partitioner
from millstream.client.publisher import Publisher
from millstream.client.record import Decode, Headers, Key, Message, Published, Record, Value, decoder
from millstream.client.stream import RecordStream, Start, resolve
from millstream.client.topics import Topic, Topics

T = TypeVar("T")
Partitions = int | Iterable[int] | None


class Client:
    """A connection to a broker or cluster. Make one with `millstream.connect`; use it with `with`."""

    def __init__(
        self, bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> None:
        self._connection = Connection(bootstrap, settings, timeout)
        self._connection.probe()
        self._topics: Topics | None = None
        self._publisher = Publisher(self._connection)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<millstream client of {self._connection.bootstrap}>"

    @property
    def bootstrap_servers(self) -> str:
        """The address this client was given."""
        return self._connection.bootstrap

    def close(self) -> None:
        """Wait for records on their way and let go of the connections."""
        self._publisher.close()
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
        """Create a topic, ready for use on return. Counts not given are the broker's defaults.

        Returns True if it was created, False if it existed and `exist_ok` was set.
        """
        return self.topics.create(
            name, partitions=partitions, replication=replication, config=config or {}, exist_ok=exist_ok
        )

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        return self.topics.names(internal=internal)

    def describe_topic(self, name: str) -> Topic:
        """Partitions, leaders, offsets and own settings of a topic."""
        return self.topics.describe(name)

    def alter_topic(self, name: str, *, partitions: int | None = None, config: Mapping[str, Any] | None = None) -> None:
        """Grow a topic to `partitions`, and set settings (None: back to the default)."""
        if config:
            self.topics.alter_config(name, config)
        if partitions is not None:
            self.topics.add_partitions(name, partitions)

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Delete a topic with all its records. True if it was there."""
        return self.topics.delete(name, missing_ok=missing_ok)

    def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """Drop the records before an offset, per partition (-1: all of them); returns the new earliest offsets."""
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
    ) -> Published:
        """Send one record and return where it is stored. Without `partition` the key decides, else any will do.

        `partitioner` decides instead, for keys too hot for one partition: see `millstream.client.partitioners`.
        """
        return self._publisher.publish(topic, value, key, headers, partition, timestamp, partitioner)

    def publish_many(
        self,
        topic: str,
        items: Iterable[Value | tuple[Key, Value] | Message],
        *,
        partitioner: Partitioner | None = None,
    ) -> int:
        """Send many records fast: values, (key, value) pairs or `Message`s. Returns how many, once all are stored.

        Stops at the first failure it hears of and raises DeliveryError.
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
        """Iterate over the records of a topic.

        start      'earliest', 'latest', an offset, -N (the last N of each partition), a datetime, a timedelta (that
                   long ago), or a mapping from partition to one of these
        partition  one or several partitions; all of them by default
        follow     False: stop at the end as it is now. True: wait for new records for ever.
                   By default only start='latest' follows, as there is nothing to read otherwise
        timeout    following: stop when no record came for this many seconds.
                   Not following: give up with DeadlineError after that long without progress
        limit      stop after this many records
        decode     what `record.value` is: 'bytes' (default), 'text', 'json', or a function of bytes
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
            # Retention may delete the first segment between asking and reading; whoever asked for "the beginning"
            # wants the new one, whoever asked for a number wants to hear that it is gone.
            reset="earliest" if start == "earliest" else "error",
        )

    @property
    def topics(self) -> Topics:
        """The admin side, for what the verbs above leave out."""
        if self._topics is None:
            self._topics = Topics(self._connection)
        return self._topics

    @property
    def connection(self) -> Connection:
        """Address and settings, for code that makes its own confluent-kafka clients."""
        return self._connection

    @property
    def publisher(self) -> Publisher:
        """The sending side; the async client bridges its delivery reports."""
        return self._publisher


__all__ = ["Client", "Record"]
