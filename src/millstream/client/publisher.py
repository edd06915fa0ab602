"""Sends records and waits for their acknowledgement.

There are two librdkafka producers, created on first use, because the two ways of sending need opposite settings.
`publish` sends one record at once and needs its delivery report. `publish_many` fills batches and gets reports of
failures only, which saves one Python call per record. Both are idempotent unless the user sets weaker `acks`. Both
wait for delivery, so records keep the order of the calls.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaException, Producer

from millstream.client.connection import Connection
from millstream.client.errors import DeadlineError, DeliveryError, MillstreamError, topic_not_found
from millstream.client.partitioners import ANY_PARTITION, Partitioner
from millstream.client.record import (
    Headers,
    Key,
    Message,
    Published,
    Value,
    encode_headers,
    encode_key,
    encode_timestamp,
    encode_value,
)

SETTLE_SECONDS = 5.0
"""librdkafka reports every record within its own timeout. After this additional time we give up."""
SETTLE_IN_SECONDS = 0.025
"""librdkafka 2.16 requests a producer id a few milliseconds after it connects. A record before that delays the request
by half a second. This wait reduces the time of a client's first record from 500 ms to 30 ms."""
POLL_EVERY = 2000
TOPIC_APPEARS_SECONDS = 5.0
"""A topic that is unknown for so long is an error. A new topic needs a moment until all brokers know it."""
PARTITION_COUNT_AGE_SECONDS = 60.0
"""Age after which the number of partitions is read again. New partitions are not used until then."""
_CHUNK_SECONDS = 0.25
"""Longest single wait, so that Ctrl-C takes effect soon."""


class Publisher:
    """Sends records. Thread safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._single: Producer | None = None
        self._bulk: Producer | None = None
        self._counts: dict[str, tuple[int, float]] = {}

    def publish(
        self,
        topic: str,
        value: Value,
        key: Key,
        headers: Headers,
        partition: int | None,
        timestamp: datetime | int | None,
        partitioner: Partitioner | None = None,
    ) -> Published:
        """Sends one record and waits until it is stored."""
        producer = self.single()
        outcome: list[tuple[Any, Any]] = []
        message = Message(value, key, headers, partition, timestamp)
        if partitioner is not None:
            message = self.placed(message, partitioner, self.partition_count(topic))
        self.enqueue(
            producer,
            topic,
            message,
            lambda error, message: outcome.append((error, message)),
        )
        waited = 0.0
        while not outcome and waited < self._connection.timeout + SETTLE_SECONDS:
            self._serve(producer.poll, _CHUNK_SECONDS, topic)
            waited += _CHUNK_SECONDS
        if not outcome:
            self._connection.probe()  # distinguishes a missing broker from a slow one
            raise DeadlineError(f"{self._connection.bootstrap} did not acknowledge the record in time")
        return self.outcome(topic, *outcome[0])

    def publish_many(self, topic: str, items: Iterable[Any], partitioner: Partitioner | None = None) -> int:
        """Sends all items in large batches and waits until they are stored. Returns their number."""
        producer = self._bulk_producer()
        if partitioner is not None:
            items = self._all_placed(topic, items, partitioner)
        failures: list[Any] = []

        def report(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)

        count = 0
        # Fast path for plain values, the most common case.
        produce = producer.produce
        for item in items:
            count += 1
            if type(item) is bytes:
                try:
                    produce(topic, item, on_delivery=report)
                except (BufferError, KafkaException):
                    self.enqueue(producer, topic, Message(item), report)
            else:
                self.enqueue(producer, topic, as_message(item), report)
            if count % POLL_EVERY == 0:
                self._serve(producer.poll, 0, topic)
                if failures:
                    break
        self._drain(producer, topic)
        if failures:
            first = self._connection.error(failures[0], topic)
            raise DeliveryError(
                f"{len(failures)} of {count} records were not stored: {first.message}", first.code, len(failures)
            ) from first
        return count

    def placed(self, message: Message, partitioner: Partitioner, partition_count: int) -> Message:
        """The message with the partition that the partitioner chooses, if it has none."""
        if message.partition is not None:
            return message
        value, key = encode_value(message.value), encode_key(message.key)
        chosen = partitioner(key, partition_count, len(value or b""))
        if not ANY_PARTITION <= chosen < partition_count:
            raise MillstreamError(f"the partitioner chose partition {chosen} of {partition_count}")
        partition = None if chosen == ANY_PARTITION else chosen
        return Message(value, key, message.headers, partition, message.timestamp)

    def partition_count(self, topic: str) -> int:
        """The number of partitions, at most a minute old. May send a request."""
        known = self.known_partition_count(topic)
        if known is not None:
            return known
        deadline = time.monotonic() + min(TOPIC_APPEARS_SECONDS, self._connection.timeout)
        while True:
            try:
                # The request creates the topic if the broker creates topics automatically; then it is repeated.
                found = self.single().list_topics(topic, timeout=self._connection.timeout).topics[topic]
            except KafkaException as error:
                raise self._connection.error(error, topic) from error
            if found.partitions and found.error is None:
                self._counts[topic] = (len(found.partitions), time.monotonic() + PARTITION_COUNT_AGE_SECONDS)
                return len(found.partitions)
            if time.monotonic() > deadline:
                raise topic_not_found(topic)
            time.sleep(0.05)

    def known_partition_count(self, topic: str) -> int | None:
        """The same without a request; None if it is not known."""
        count, until = self._counts.get(topic, (0, 0.0))
        return count if time.monotonic() < until else None

    def _all_placed(self, topic: str, items: Iterable[Any], partitioner: Partitioner) -> Iterator[Message]:
        for number, item in enumerate(items):
            if number % POLL_EVERY == 0:
                partition_count = self.partition_count(topic)
            yield self.placed(as_message(item), partitioner, partition_count)

    def single(self) -> Producer:
        """The producer that sends at once and reports every delivery."""
        with self._lock:
            if self._single is None:
                self._single = self._producer(linger_ms=0)
            return self._single

    def enqueue(self, producer: Producer, topic: str, message: Message, report: Any) -> None:
        """Passes one record to librdkafka; waits while its queue is full."""
        while True:
            try:
                return self.enqueue_at_once(producer, topic, message, report)
            except BufferError:
                self._serve(producer.poll, _CHUNK_SECONDS, topic)

    def enqueue_at_once(self, producer: Producer, topic: str, message: Message, report: Any) -> None:
        """Passes one record to librdkafka; BufferError if its queue is full."""
        options: dict[str, Any] = {"key": encode_key(message.key), "on_delivery": report}
        if message.headers:
            options["headers"] = encode_headers(message.headers)
        if message.partition is not None:
            options["partition"] = message.partition
        if message.timestamp is not None:
            options["timestamp"] = encode_timestamp(message.timestamp)
        try:
            producer.produce(topic, encode_value(message.value), **options)
        except KafkaException as error:
            raise self._connection.error(error, topic) from error

    def outcome(self, topic: str, error: Any, message: Any) -> Published:
        """The result of a delivery report; raises its error."""
        if error is not None:
            raise self._connection.error(error, topic)
        offset = message.offset()
        return Published(topic, message.partition(), -1 if offset is None else offset, message.timestamp()[1])

    def close(self) -> None:
        """Waits for records in flight, then closes the producers."""
        with self._lock:
            producers, self._single, self._bulk = [self._single, self._bulk], None, None
        for producer in producers:
            if producer is not None:
                with contextlib.suppress(KafkaException):  # it was raised to the caller before, or nothing was sent
                    producer.flush(self._connection.timeout)

    def _bulk_producer(self) -> Producer:
        with self._lock:
            if self._bulk is None:
                self._bulk = self._producer(
                    linger_ms=5,
                    batch_size=1_000_000,
                    batch_num_messages=100_000,
                    queue_buffering_max_messages=500_000,
                    queue_buffering_max_kbytes=131_072,
                    delivery_report_only_error=True,
                )
            return self._bulk

    def _producer(self, **settings: Any) -> Producer:
        idempotent = self._connection.setting("acks", "request.required.acks") in (None, "all", "-1")
        configuration = self._connection.librdkafka(
            enable_idempotence=idempotent,
            message_timeout_ms=max(1000, int(self._connection.timeout * 1000)),
            topic_metadata_propagation_max_ms=int(
                1000 * min(TOPIC_APPEARS_SECONDS, max(0.1, self._connection.timeout))
            ),
            **settings,
        )
        producer = Producer(configuration)
        if idempotent:
            time.sleep(SETTLE_IN_SECONDS)
        return producer

    def _serve(self, call: Callable[[float], int], seconds: float, topic: str) -> int:
        """Calls `poll` or `flush`. They raise errors after which a producer cannot continue, such as a missing right to
        write with idempotence."""
        try:
            return call(seconds)
        except KafkaException as error:
            raise self._connection.error(error, topic) from error

    def _drain(self, producer: Producer, topic: str) -> None:
        waited = 0.0
        while waited < self._connection.timeout + SETTLE_SECONDS:
            left = len(producer)
            if self._serve(producer.flush, _CHUNK_SECONDS, topic) == 0:
                return
            # Only time without progress counts: a slow broker with a long queue is not an error.
            waited = waited + _CHUNK_SECONDS if len(producer) >= left else 0.0
        self._connection.probe()
        raise DeadlineError(f"{self._connection.bootstrap} did not acknowledge {len(producer)} records in time")


def as_message(item: Any) -> Message:
    """The message for an item of `publish_many`: a Message, a (key, value) pair, or a value."""
    if isinstance(item, Message):
        return item
    if isinstance(item, tuple):
        if len(item) != 2:
            raise MillstreamError("a tuple must be (key, value): use millstream.client.Message for more fields")
        return Message(item[1], item[0])
    return Message(item)
