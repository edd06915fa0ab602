"""The codec of Fetch for a follower, by hand: encodes its requests and reads the leader's responses.

Versions 15 and later, with topic ids. A mirror, which is a consumer of another cluster, uses versions 13 and 14 too.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from millstream.formats.protocol.primitives import MAX_PARTITIONS, MalformedMessage, plausible_partitions, skip_tags
from millstream.formats.records.varint import append_unsigned, read_unsigned

FIRST_VERSION = 15
FIRST_CONSUMER_VERSION = 13
_CONSUMER = -1

_HEAD = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqi")
_INT32 = struct.Struct(">i")
_REPLICA_STATE = struct.Struct(">iq")
_RESPONSE_HEAD = struct.Struct(">ihi")
_RESULT = struct.Struct(">ihqqq")
_EPOCH_AND_OFFSET = struct.Struct(">iq")
_ABORTED_BYTES = 17


class FetchHead(NamedTuple):
    cluster_id: str | None
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int


FetchRow = tuple[int, int, int, int, int, int]
"""Partition, current leader epoch, fetch offset, last fetched epoch, log start offset, most bytes."""


class Fetched(NamedTuple):
    """The leader's response for one partition."""

    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    records: "memoryview"


class ReplicaFetchResponse(NamedTuple):
    error: int
    session_id: int
    topics: list[tuple[bytes, list[Fetched]]]


def encode_consumer_request(
    version: int,
    topics: Mapping[bytes, Iterable[FetchRow]],
    *,
    max_wait_ms: int,
    max_bytes: int,
) -> bytearray:
    """A request body of a consumer that reads uncommitted records, without a session."""
    head = FetchHead(None, _CONSUMER, -1, max_wait_ms, 1, max_bytes, 0, -1)
    body = encode_request(head, topics, {})
    if version >= FIRST_VERSION:
        return body
    del body[-len(_tail(None, _CONSUMER, -1)) :]
    body += b"\x01\x00"  # no rack, no tagged fields; the replica id is at the start
    return bytearray(_INT32.pack(_CONSUMER)) + body


def encode_request(
    head: FetchHead, topics: Mapping[bytes, Iterable[FetchRow]], forgotten: Mapping[bytes, list[int]]
) -> bytearray:
    """A request body."""
    out = bytearray(
        _HEAD.pack(head.max_wait_ms, head.min_bytes, head.max_bytes, 0, head.session_id, head.session_epoch)
    )
    append_unsigned(out, len(topics) + 1)
    for topic_id, rows in topics.items():
        out += topic_id
        packed = [_PARTITION.pack(*row) for row in rows]
        append_unsigned(out, len(packed) + 1)
        for row in packed:
            out += row
            out.append(0)
        out.append(0)
    append_unsigned(out, len(forgotten) + 1)
    for topic_id, indexes in forgotten.items():
        out += topic_id
        append_unsigned(out, len(indexes) + 1)
        out += struct.pack(f">{len(indexes)}i", *indexes)
        out.append(0)
    out += _tail(head.cluster_id, head.replica_id, head.replica_epoch)
    return out


@lru_cache(maxsize=16)
def _tail(cluster_id: str | None, replica_id: int, replica_epoch: int) -> bytes:
    """The end of a request, after the partitions: the same in all requests of a broker."""
    out = bytearray(b"\x01")  # no rack: replicas read from the leader
    out.append(1 if cluster_id is None else 2)
    if cluster_id is not None:
        text = cluster_id.encode()
        content = bytearray()
        append_unsigned(content, len(text) + 1)
        content += text
        out.append(0)
        append_unsigned(out, len(content))
        out += content
    out += b"\x01\x0d"
    out += _REPLICA_STATE.pack(replica_id, replica_epoch)
    out.append(0)
    return bytes(out)


def parse_response(frame: bytearray, position: int) -> ReplicaFetchResponse:
    """Reads a response body; the records are views of the frame."""
    try:
        return _parse(frame, position)
    except (struct.error, IndexError):
        raise MalformedMessage("fetch response is incomplete") from None


def _parse(frame: bytearray, position: int) -> ReplicaFetchResponse:
    end = len(frame)
    whole = memoryview(frame)
    _, error, session_id = _RESPONSE_HEAD.unpack_from(frame, position)
    count, position = read_unsigned(frame, position + _RESPONSE_HEAD.size)
    budget = MAX_PARTITIONS
    plausible_partitions(count - 1, position, end, budget)
    topics: list[tuple[bytes, list[Fetched]]] = []
    for _ in range(count - 1):
        topic_id = bytes(frame[position : position + 16])
        row_count, position = read_unsigned(frame, position + 16)
        budget = plausible_partitions(row_count - 1, position, end, budget)
        rows: list[Fetched] = []
        for _ in range(row_count - 1):
            partition, row_error, high_watermark, _, log_start = _RESULT.unpack_from(frame, position)
            aborted, position = read_unsigned(frame, position + _RESULT.size)
            for _ in range(aborted - 1):
                position = skip_tags(frame, position + _ABORTED_BYTES - 1, end)
            length, position = read_unsigned(frame, position + 4)
            stop = position + length - 1 if length else position
            if stop > end:
                raise MalformedMessage("records run past the end of the response")
            records = whole[position:stop]
            diverging = None
            if frame[stop]:
                diverging, position = _diverging(frame, stop, end)
            else:
                position = stop + 1
            rows.append(Fetched(partition, row_error, high_watermark, log_start, diverging, records))
        topics.append((topic_id, rows))
        position = position + 1 if not frame[position] else skip_tags(frame, position, end)
    skip_tags(frame, position, end)
    return ReplicaFetchResponse(error, session_id, topics)


def _diverging(frame: bytearray, position: int, end: int) -> tuple[tuple[int, int] | None, int]:
    found: tuple[int, int] | None = None
    count, position = read_unsigned(frame, position)
    for _ in range(count):
        tag, position = read_unsigned(frame, position)
        size, position = read_unsigned(frame, position)
        if position + size > end:
            raise MalformedMessage("tagged field runs past the end")
        if tag == 0:
            epoch, offset = _EPOCH_AND_OFFSET.unpack_from(frame, position)
            found = epoch, offset
        position += size
    return found, position
