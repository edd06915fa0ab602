"""Reading records as an iterator, with partitions assigned by hand: no consumer group, nothing stored on the broker."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.client.connection import Connection
from millstream.client.errors import DeadlineError
from millstream.client.position import Span
from millstream.client.record import Record

V = TypeVar("V")
BATCH = 1000
_CHUNK_S = 0.25
"""Waits are cut into chunks of this length so that Ctrl-C, and the closing of an async stream, are heard."""


class RecordStream(Generic[V]):
    """Records of one topic: iterate, or take lists with `next_batch`. Close it, use `with`, or read it to its end."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        spans: dict[int, Span],
        *,
        follow: bool,
        timeout: float | None,
        limit: int | None,
        decode: Callable[[bytes | None], Any] | None,
        reset: str,
    ) -> None:
        self.topic = topic
        self.spans = spans
        self._connection = connection
        self._follow = follow
        self._timeout = timeout if follow else (timeout or connection.timeout)
        self._left = limit
        self._decode = decode
        self._reset = reset
        self._open = {number for number, span in spans.items() if follow or span.start < span.end}
        self._consumer: Consumer | None = None
        self._quiet_since = time.monotonic()
        self._buffer: Iterator[Record[V]] = iter(())
        self._closed = not self._open or limit == 0

    def __iter__(self) -> "RecordStream[V]":
        return self

    def __next__(self) -> Record[V]:
        while True:
            for record in self._buffer:
                return record
            if self._closed:
                raise StopIteration
            try:
                self._buffer = iter(self.next_batch())
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "RecordStream[V]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def finished(self) -> bool:
        """True when no further record will come from this stream."""
        return self._closed

    def next_batch(self, wait: float = _CHUNK_S) -> list[Record[V]]:
        """The records that are there, or that come within `wait` seconds; empty if none did. Closes at the end."""
        if self._closed:
            return []
        consumer = self._started()
        try:
            first = consumer.poll(wait)
            # consume() alone would wait for a full batch; poll() wakes at the first record and the rest is at hand.
            messages = [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]
        except KafkaException as error:
            raise self._connection.error(error, self.topic) from error
        records = self._take(messages)
        now = time.monotonic()
        if records:
            self._quiet_since = now
        elif self._timeout is not None and now - self._quiet_since >= self._timeout and self._open:
            if not self._follow:
                self._connection.probe()
                raise DeadlineError(f"no record of {self.topic!r} came from {self._connection.bootstrap} in time")
            self.close()
        if not self._open or self._left == 0:
            self.close()
        return records

    def close(self) -> None:
        """Stop reading. Nothing is committed anywhere; a new stream starts where it is told to."""
        self._closed = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _started(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._connection.librdkafka(
                    # librdkafka insists on a name, but a consumer that only assigns never joins a group.
                    group_id="millstream-client",
                    enable_auto_commit=False,
                    enable_auto_offset_store=False,
                    enable_partition_eof=not self._follow,
                    auto_offset_reset=self._reset,
                    fetch_wait_max_ms=500,
                    fetch_error_backoff_ms=50,
                    queued_max_messages_kbytes=32_768,
                )
            )
            self._consumer.assign(
                [TopicPartition(self.topic, number, self.spans[number].start) for number in sorted(self._open)]
            )
            self._quiet_since = time.monotonic()
        return self._consumer

    def _take(self, messages: list[Any]) -> list[Record[V]]:
        records: list[Record[V]] = []
        decode = self._decode
        follow = self._follow
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._reached(message.partition(), message.offset())
                    continue
                raise self._connection.reading_error(message, self.topic)
            partition, offset = message.partition(), message.offset()
            if not follow:
                if offset + 1 >= self.spans[partition].end:
                    self._reached(partition, offset + 1)
                if offset >= self.spans[partition].end:
                    continue
            raw = message.value()
            records.append(
                Record(
                    self.topic,
                    partition,
                    offset,
                    message.key(),
                    raw if decode is None else decode(raw),
                    raw,
                    message.timestamp()[1],
                    message.headers() or [],
                )
            )
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    break
        return records

    def _reached(self, partition: int, offset: int) -> None:
        if partition in self._open and offset >= self.spans[partition].end:
            self._open.discard(partition)
            if self._open and self._consumer is not None:
                # What was appended since is not ours to read: do not let it fill the queue.
                self._consumer.pause([TopicPartition(self.topic, partition)])
