"""Fetches from the leader of a partition, through leader changes and broker restarts.

The records stay in the buffer of the response. So responses from version 12 on are parsed by hand; older ones, from old
brokers, by the schema of the message.
"""

import struct
from typing import Any, NamedTuple
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import Cursor, MalformedMessage, skip_tags
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.formats.records.varint import read_unsigned
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import (
    UNREADABLE,
    ConnectionLostError,
    OffsetOutOfRangeError,
    RetriableError,
    UnreadableError,
    error_code,
    refusal,
)
from millstream.raw_client.model import TopicPartition
from millstream.raw_client.offsets import EARLIEST, LATEST, LogOffsets
from millstream.raw_client.pool import ConnectionPool
from millstream.raw_client.routing import Leader, Routing

FIRST_BY_HAND = 12
LAST_WITH_NAMES = 12
_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Fetched:
    """The response of a leader for one partition."""

    data: memoryview
    """Record batches as stored. The last one may be incomplete."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Aborted transactions in `data`: producer id and first offset."""


class ParsedFetch(NamedTuple):
    error: int
    """Of the whole response, or else of the partition."""
    fetched: Fetched


def fetch_fields(
    topic: str,
    topic_id: UUID,
    partition: int,
    offset: int,
    *,
    leader_epoch: int,
    max_bytes: int,
    max_wait_ms: int,
    min_bytes: int,
    read_committed: bool,
) -> dict[str, Any]:
    """A request for one partition, outside any session."""
    row = {
        "partition": partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": int(read_committed),
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [row]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def parse_response(frame: bytearray, position: int, version: int) -> ParsedFetch:
    """Parses the response to a fetch of one partition."""
    try:
        return (_by_hand if version >= FIRST_BY_HAND else _by_schema)(frame, position, version)
    except (struct.error, IndexError):
        raise MalformedMessage("the response is incomplete") from None


def _by_hand(frame: bytearray, position: int, version: int) -> ParsedFetch:
    _, error, _ = _HEAD.unpack_from(frame, position)
    count, position = read_unsigned(frame, position + _HEAD.size)
    if count < 2:
        return ParsedFetch(error, Fetched(_NOTHING, -1, -1, -1, ()))
    if version > LAST_WITH_NAMES:
        position += 16
    else:
        length, position = read_unsigned(frame, position)
        position += length - 1
    rows, position = read_unsigned(frame, position)
    if count != 2 or rows != 2:
        raise MalformedMessage(f"{count - 1} topics and {rows - 1} partitions in the response to a fetch of one")
    _, row_error, high_watermark, last_stable, log_start = _PARTITION.unpack_from(frame, position)
    count, position = read_unsigned(frame, position + _PARTITION.size)
    aborted = []
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(frame, position))
        position = skip_tags(frame, position + _ABORTED.size, len(frame))
    length, position = read_unsigned(frame, position + 4)  # after the preferred replica
    end = position + max(length - 1, 0)
    if end > len(frame):
        raise MalformedMessage("the records exceed the response")
    data = memoryview(frame)[position:end]
    return ParsedFetch(error or row_error, Fetched(data, high_watermark, last_stable, log_start, tuple(aborted)))


def _by_schema(frame: bytearray, position: int, version: int) -> ParsedFetch:
    response = response_schema("fetch").read(Cursor(frame, position), version)
    rows = [row for topic in response.responses for row in topic.partitions]
    if len(rows) != 1:
        return ParsedFetch(response.error_code or -1, Fetched(_NOTHING, -1, -1, -1, ()))
    (row,) = rows
    aborted = tuple((each.producer_id, each.first_offset) for each in row.aborted_transactions or ())
    data = memoryview(row.records or b"")
    fetched = Fetched(data, row.high_watermark, row.last_stable_offset, row.log_start_offset, aborted)
    return ParsedFetch(response.error_code or row.error_code, fetched)


@dataclass(frozen=True, slots=True)
class FetchTarget:
    partition: TopicPartition
    offset: int
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    read_committed: bool
    topic_id: UUID | None
    """The id that the topic must have, if given."""


class Fetcher:
    def __init__(self, routing: Routing, pool: ConnectionPool) -> None:
        self._routing = routing
        self._pool = pool

    def fetch(self, wanted: FetchTarget, deadline: Deadline) -> Fetched:
        return deadline.retry(lambda: self._once(wanted, deadline))

    def _once(self, wanted: FetchTarget, deadline: Deadline) -> Fetched:
        topic_partition = wanted.partition
        leader = self._routing.leader(topic_partition, deadline)
        if wanted.topic_id is not None and wanted.topic_id != leader.topic_id:
            raise refusal(f"topic {topic_partition.topic!r} with id {wanted.topic_id}", ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            error, fetched = self._call(wanted, leader, deadline)
        except ConnectionLostError:
            self._routing.lost(leader, topic_partition.topic)
            raise
        code = error_code(error)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._check_range(topic_partition, wanted.offset, deadline)
            raise RetriableError(
                str(topic_partition), code
            )  # it is in range after all: the log grew, or there is another leader
        if code in UNREADABLE:
            raise UnreadableError(topic_partition, wanted.offset, code)
        if code == ErrorCode.UNKNOWN_TOPIC_ID:
            self._routing.refresh([topic_partition.topic], deadline)
            raise refusal(f"topic {topic_partition.topic!r}", code)
        if error:
            raise self._routing.classify(str(topic_partition), topic_partition.topic, code, deadline)
        return fetched

    def _call(self, wanted: FetchTarget, leader: Leader, deadline: Deadline) -> ParsedFetch:
        fields = fetch_fields(
            wanted.partition.topic,
            leader.topic_id,
            wanted.partition.partition,
            wanted.offset,
            leader_epoch=leader.epoch,
            max_bytes=wanted.max_bytes,
            max_wait_ms=wanted.max_wait_ms,
            min_bytes=wanted.min_bytes,
            read_committed=wanted.read_committed,
        )
        schema = request_schema("fetch")
        wait_s = self._pool.wait_s(deadline, wanted.max_wait_ms)
        with self._pool.borrow(leader.address, wait_s) as connection:
            version = connection.version_of("fetch", None if leader.topic_id.int else LAST_WITH_NAMES)
            sent = connection.send_body(schema, version, schema.encode(fields, version), wait_s)
            frame, position = connection.receive_frame(sent, wait_s)
        try:
            return parse_response(frame, position, version)
        except MalformedMessage as error:
            raise ConnectionLostError(str(leader.address), f"its response to a fetch is malformed: {error}") from error

    def _check_range(self, topic_partition: TopicPartition, offset: int, deadline: Deadline) -> None:
        log = LogOffsets(self._routing, self._pool)
        start = log.find({topic_partition: EARLIEST}, deadline, read_committed=False)[topic_partition].offset
        end = log.find({topic_partition: LATEST}, deadline, read_committed=False)[topic_partition].offset
        if not start <= offset <= end:
            why = "it was deleted, probably by retention" if offset < start else "it is not written yet"
            raise OffsetOutOfRangeError(
                f"{topic_partition} has offsets {start} to {end}, not {offset}: {why}; start at one of them", start, end
            )
