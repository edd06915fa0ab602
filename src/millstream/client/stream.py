"""`RecordStream`: reads records of a topic as an iterator, without a consumer group.

The start and end offsets are determined before the first record is read. A start is 'earliest', 'latest', an offset, a
negative number (the last N), a `datetime`, or a `timedelta` (an age); or a mapping from partition to one of these.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.client.connection import Connection
from millstream.client.errors import DeadlineError, MillstreamError, OffsetOutOfRangeError, TopicNotFoundError
from millstream.client.record import Record
from millstream.client.topics import EARLIEST, LATEST, Topics, at_time

Start: TypeAlias = Literal["earliest", "latest"] | int | datetime | timedelta


class Span(NamedTuple):
    """The offsets to read of one partition: from `start` to `end` (exclusive; not used when following)."""

    start: int
    end: int


def resolve(
    topics: Topics, topic: str, start: Start | Mapping[int, Start], partition: int | Iterable[int] | None
) -> dict[int, Span]:
    """The span of each partition. Raises if a partition or an offset does not exist."""
    existing = topics.partitions(topic)
    wanted = _wanted(existing, start, partition)
    for number in wanted:
        if number not in existing:
            raise TopicNotFoundError(
                f"topic {topic!r} has partitions 0 to {len(existing) - 1}, not {number}", "UNKNOWN_TOPIC_OR_PART"
            )
    earliest = topics.offsets(topic, dict.fromkeys(wanted, EARLIEST))
    latest = topics.offsets(topic, dict.fromkeys(wanted, LATEST))
    by_time = topics.offsets(
        topic,
        {
            number: at_time(_milliseconds(begin))
            for number, begin in wanted.items()
            if isinstance(begin, (datetime, timedelta))
        },
    )
    # One offset for all partitions is an error only if no partition has it.
    is_in_another = (
        partition is None
        and isinstance(start, int)
        and any(earliest[number] <= start <= latest[number] for number in wanted)
    )
    spans = {}
    for number, begin in wanted.items():
        low, high = earliest[number], latest[number]
        if begin == "earliest":
            offset = low
        elif begin == "latest":
            offset = high
        elif isinstance(begin, int) and not isinstance(begin, bool):
            offset = max(low, high + begin) if begin < 0 else begin
            if not low <= offset <= high and is_in_another:
                offset = min(max(offset, low), high)
            if not low <= offset <= high:
                raise OffsetOutOfRangeError(
                    f"{topic}-{number} has offsets {low} to {high - 1}, not {offset}: start at 'earliest' or 'latest'"
                    if high > low
                    else f"{topic}-{number} is empty (next offset {high}), it has no offset {offset}",
                    "OFFSET_OUT_OF_RANGE",
                )
        elif isinstance(begin, (datetime, timedelta)):
            offset = high if by_time[number] < 0 else by_time[number]
        else:
            raise MillstreamError(
                f"start is 'earliest', 'latest', an offset, -N, a datetime or a timedelta, not {begin!r}"
            )
        spans[number] = Span(offset, high)
    return spans


def _wanted(
    existing: list[int], start: Start | Mapping[int, Start], partition: int | Iterable[int] | None
) -> dict[int, Start]:
    if isinstance(start, Mapping):
        if partition is not None:
            raise MillstreamError("give the partitions in `start` or in `partition`, not in both")
        return dict(start)
    if partition is None:
        return dict.fromkeys(existing, start)
    return dict.fromkeys([partition] if isinstance(partition, int) else partition, start)


def _milliseconds(begin: datetime | timedelta) -> int:
    moment = datetime.now(UTC) - begin if isinstance(begin, timedelta) else begin
    return max(0, int(moment.timestamp() * 1000))


V = TypeVar("V")
BATCH = 1000
_CHUNK_SECONDS = 0.25
"""Longest single wait, so that Ctrl-C and the close of an async stream take effect soon."""


class RecordStream(Generic[V]):
    """The records of one topic: iterate over it, or call `next_batch`. Close it, use `with`, or read it to its end."""

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
        """Whether the stream has no more records."""
        return self._closed

    def next_batch(self, wait: float = _CHUNK_SECONDS) -> list[Record[V]]:
        """The next records; empty if none arrived within `wait` seconds. Closes the stream at its end."""
        if self._closed:
            return []
        consumer = self._started()
        try:
            first = consumer.poll(wait)
            # consume() would wait for a full batch; poll() returns at the first record, and the others are loaded then.
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
                raise DeadlineError(f"no record of {self.topic!r} from {self._connection.bootstrap} within the timeout")
            self.close()
        if not self._open or self._left == 0:
            self.close()
        return records

    def close(self) -> None:
        """Stops reading. No offset is committed."""
        self._closed = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _started(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                self._connection.librdkafka(
                    # librdkafka requires a group id, but a consumer that only assigns partitions never joins the group.
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
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka looks for the coordinator of a group that is not used
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
                # Records after the end are not read: they must not fill the queue.
                self._consumer.pause([TopicPartition(self.topic, partition)])
