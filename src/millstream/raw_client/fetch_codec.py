"""Fetch of one partition as a consumer sends it and reads the answer; the records stay in the buffer they came in.

Versions from 12 on are read by hand, since the records must not be copied; older ones, which only old brokers want, go
through the message's schema.
"""

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from millstream.formats.protocol.compact import read_varint, skip_tags
from millstream.formats.protocol.messages import response_schema
from millstream.formats.protocol.primitives import Cursor, MalformedMessage

FIRST_BY_HAND = 12
LAST_WITH_NAMES = 12
_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a leader gave of one partition."""

    data: memoryview
    """Record batches as they are stored; the last may be cut off."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Aborted transactions in `data`: producer id and first offset."""


class FetchAnswer(NamedTuple):
    error: int
    """Of the whole answer, or else of the partition."""
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


def parse_answer(frame: bytearray, position: int, version: int) -> FetchAnswer:
    """Reads the answer to a fetch of one partition."""
    try:
        return (_by_hand if version >= FIRST_BY_HAND else _by_schema)(frame, position, version)
    except (struct.error, IndexError):
        raise MalformedMessage("the answer ends in the middle") from None


def _by_hand(frame: bytearray, position: int, version: int) -> FetchAnswer:
    _, error, _ = _HEAD.unpack_from(frame, position)
    count, position = read_varint(frame, position + _HEAD.size)
    if count < 2:
        return FetchAnswer(error, Fetched(_NOTHING, -1, -1, -1, ()))
    if version > LAST_WITH_NAMES:
        position += 16
    else:
        length, position = read_varint(frame, position)
        position += length - 1
    rows, position = read_varint(frame, position)
    if count != 2 or rows != 2:
        raise MalformedMessage(f"{count - 1} topics and {rows - 1} partitions in the answer to a fetch of one")
    _, row_error, high_watermark, last_stable, log_start = _PARTITION.unpack_from(frame, position)
    count, position = read_varint(frame, position + _PARTITION.size)
    aborted = []
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(frame, position))
        position = skip_tags(frame, position + _ABORTED.size, len(frame))
    length, position = read_varint(frame, position + 4)  # behind the preferred replica, which needs a rack
    end = position + max(length - 1, 0)
    if end > len(frame):
        raise MalformedMessage("records run past the end of the answer")
    data = memoryview(frame)[position:end]
    return FetchAnswer(error or row_error, Fetched(data, high_watermark, last_stable, log_start, tuple(aborted)))


def _by_schema(frame: bytearray, position: int, version: int) -> FetchAnswer:
    answer = response_schema("fetch").read(Cursor(frame, position), version)
    rows = [row for topic in answer.responses for row in topic.partitions]
    if len(rows) != 1:
        return FetchAnswer(answer.error_code or -1, Fetched(_NOTHING, -1, -1, -1, ()))
    (row,) = rows
    aborted = tuple((each.producer_id, each.first_offset) for each in row.aborted_transactions or ())
    data = memoryview(row.records or b"")
    fetched = Fetched(data, row.high_watermark, row.last_stable_offset, row.log_start_offset, aborted)
    return FetchAnswer(answer.error_code or row.error_code, fetched)
