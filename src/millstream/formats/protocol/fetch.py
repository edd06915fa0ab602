"""The codecs of Fetch (API 1, versions 4 to 18) and of the ShareFetch response, by hand.

A response is a list of parts: bytes, and between them file ranges, which the server sends with `sendfile`. All versions
of ShareFetch have the same response.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import (
    MAX_FETCHED_PARTITIONS,
    Locate,
    MalformedMessage,
    NodeEndpoint,
    append_endpoints,
    plausible_partitions,
    skip_tags,
)
from millstream.formats.records.varint import append_unsigned, read_unsigned

FIRST_VERSION: Final = 4
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_ID: Final = 13
FIRST_WITH_ENDPOINTS: Final = 16
LAST_VERSION: Final = 18

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_HEAD_WITH_REPLICA: Final = struct.Struct(">iiiib")
_HEAD: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_REPLICA_STATE: Final = struct.Struct(">iq")
_RESPONSE_HEAD_V4: Final = struct.Struct(">i")
_RESPONSE_HEAD_V7: Final = struct.Struct(">ihi")
_PARTITION_V4: Final = struct.Struct(">ihqq")
_PARTITION_V5: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_AND_OFFSET: Final = struct.Struct(">iq")
_OFFSET_AND_EPOCH: Final = struct.Struct(">qi")
_INT64: Final = struct.Struct(">q")

# Fields of one partition in a request, by version: index, [leader epoch], offset, [last fetched epoch],
# [log start offset], max bytes.
_FIELDS_V4: Final = struct.Struct(">iqi")
_FIELDS_V5: Final = struct.Struct(">iqqi")
_FIELDS_V9: Final = struct.Struct(">iiqqi")
_FIELDS_V12: Final = struct.Struct(">iiqiqi")


UNKNOWN_HIGH_WATERMARK: Final = (1 << 63) - 1
"""For a follower that does not send its high watermark: it gets no early response with a new one."""


# These are no named tuples: see `produce.py`.


class FetchPartition:
    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "replica_directory_id",
    )

    def __init__(
        self,
        partition: int,
        current_leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        log_start_offset: int,
        max_bytes: int,
        replica_directory_id: bytes | None = None,
        high_watermark: int = UNKNOWN_HIGH_WATERMARK,
    ) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.max_bytes = max_bytes
        self.replica_directory_id = replica_directory_id
        self.high_watermark = high_watermark


class FetchRequest:
    """`replica_id` is -1 for a consumer; a follower sends its broker id and broker epoch."""

    __slots__ = (
        "cluster_id",
        "forgotten",
        "isolation_level",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "rack_id",
        "replica_epoch",
        "replica_id",
        "session_epoch",
        "session_id",
        "topics",
    )

    def __init__(
        self,
        replica_id: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation_level: int,
        session_id: int,
        session_epoch: int,
        topics: list[tuple[bytes, list[FetchPartition]]],
        forgotten: list[tuple[bytes, list[int]]],
        rack_id: bytes,
        replica_epoch: int = -1,
        cluster_id: bytes | None = None,
    ) -> None:
        self.replica_id = replica_id
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.topics = topics
        self.forgotten = forgotten
        self.rack_id = rack_id
        self.replica_epoch = replica_epoch
        self.cluster_id = cluster_id


class FileRange(Protocol):
    """A range of a file, for the server to send."""

    @property
    def length(self) -> int: ...


class PartitionResult:
    __slots__ = (
        "aborted",
        "current_leader",
        "diverging_epoch",
        "error",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "preferred_read_replica",
        "records",
        "snapshot_id",
    )

    def __init__(
        self,
        partition: int,
        error: int = ErrorCode.NONE,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        aborted: Sequence[tuple[int, int]] | None = None,
        preferred_read_replica: int = -1,
        records: FileRange | None = None,
        diverging_epoch: tuple[int, int] | None = None,
        current_leader: tuple[int, int] | None = None,
        snapshot_id: tuple[int, int] | None = None,
    ) -> None:
        self.partition = partition
        self.error = error
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.aborted = aborted
        self.preferred_read_replica = preferred_read_replica
        self.records = records
        self.diverging_epoch = diverging_epoch
        self.current_leader = current_leader
        """Leader id and epoch."""
        self.snapshot_id = snapshot_id
        """End offset and epoch of the snapshot that an observer of the metadata log must fetch first."""


def parse(buffer: bytearray, position: int, end: int, version: int) -> FetchRequest:
    """Reads a request body; remaining bytes before `end` are ignored, as in Kafka."""
    try:
        request, position = (_parse_flexible if version >= FIRST_FLEXIBLE else _parse_legacy)(
            buffer, position, end, version
        )
    except (struct.error, IndexError):
        raise MalformedMessage("fetch request is incomplete") from None
    if position > end:
        raise MalformedMessage("fetch request is incomplete")
    return request


def _parse_flexible(buffer: bytearray, position: int, end: int, version: int) -> tuple[FetchRequest, int]:
    by_id = version >= FIRST_WITH_TOPIC_ID
    replica_id = -1
    if version < 15:
        replica_id, max_wait, min_bytes, max_bytes, isolation = _HEAD_WITH_REPLICA.unpack_from(buffer, position)
        position += _HEAD_WITH_REPLICA.size
    else:
        max_wait, min_bytes, max_bytes, isolation = _HEAD.unpack_from(buffer, position)
        position += _HEAD.size
    session_id, session_epoch = _SESSION.unpack_from(buffer, position)
    count, position = read_unsigned(buffer, position + 8)
    topics: list[tuple[bytes, list[FetchPartition]]] = []
    budget = MAX_FETCHED_PARTITIONS
    plausible_partitions(count - 1, position, end, budget)
    for _ in range(count - 1):
        topic, position = _topic(buffer, position, by_id)
        partition_count, position = read_unsigned(buffer, position)
        partitions = []
        budget = plausible_partitions(partition_count - 1, position, end, budget)
        for _ in range(partition_count - 1):
            index, leader_epoch, offset, fetched_epoch, log_start, limit = _FIELDS_V12.unpack_from(buffer, position)
            position += _FIELDS_V12.size
            if not buffer[position]:
                partitions.append(FetchPartition(index, leader_epoch, offset, fetched_epoch, log_start, limit))
                position += 1
            else:
                directory, high_watermark, position = _partition_tags(buffer, position, end, version)
                partitions.append(
                    FetchPartition(
                        index, leader_epoch, offset, fetched_epoch, log_start, limit, directory, high_watermark
                    )
                )
        topics.append((topic, partitions))
        position = position + 1 if not buffer[position] else skip_tags(buffer, position, end)
    count, position = read_unsigned(buffer, position)
    forgotten: list[tuple[bytes, list[int]]] = []
    plausible_partitions(count - 1, position, end, budget)
    for _ in range(count - 1):
        topic, position = _topic(buffer, position, by_id)
        partition_count, position = read_unsigned(buffer, position)
        number = partition_count - 1
        budget = plausible_partitions(number, position, end, budget)
        forgotten.append((topic, list(struct.unpack_from(f">{number}i", buffer, position))))
        position = skip_tags(buffer, position + 4 * number, end)
    length, position = read_unsigned(buffer, position)
    rack = bytes(buffer[position : position + length - 1]) if length else b""
    position += max(length - 1, 0)
    replica_epoch, cluster_id = -1, None
    if not buffer[position]:
        position += 1
    else:
        fields, position = _tags(buffer, position, end)
        if 0 in fields:
            cluster_id = _compact_string(fields[0])
        if 1 in fields and version >= 15:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(fields[1])
    return FetchRequest(
        replica_id,
        max_wait,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
        replica_epoch,
        cluster_id,
    ), position


def _tags(buffer: bytearray, position: int, end: int) -> tuple[dict[int, bytearray], int]:
    """The tagged fields at `position` by their tags, and the position after them."""
    fields: dict[int, bytearray] = {}
    count, position = read_unsigned(buffer, position)
    for _ in range(count):
        tag, position = read_unsigned(buffer, position)
        size, position = read_unsigned(buffer, position)
        if position + size > end:
            raise MalformedMessage("tagged field runs past the end")
        fields[tag] = buffer[position : position + size]
        position += size
    return fields, position


def _partition_tags(buffer: bytearray, position: int, end: int, version: int) -> tuple[bytes | None, int, int]:
    fields, position = _tags(buffer, position, end)
    directory, high_watermark = None, UNKNOWN_HIGH_WATERMARK
    if 0 in fields and version >= 17:
        directory = bytes(fields[0])
        if len(directory) != 16:
            raise MalformedMessage("directory id is not a uuid")
    if 1 in fields and version >= 18:
        (high_watermark,) = _INT64.unpack_from(fields[1])
    return directory, high_watermark, position


def _compact_string(field: bytearray) -> bytes | None:
    length, position = read_unsigned(field, 0)
    if position + length - 1 > len(field):
        raise MalformedMessage("string runs past the end of its field")
    return bytes(field[position : position + length - 1]) if length else None


def _topic(buffer: bytearray, position: int, by_id: bool) -> tuple[bytes, int]:
    if by_id:
        return bytes(buffer[position : position + 16]), position + 16
    length, position = read_unsigned(buffer, position)
    return bytes(buffer[position : position + length - 1]), position + length - 1


def _parse_legacy(buffer: bytearray, position: int, end: int, version: int) -> tuple[FetchRequest, int]:
    replica_id, max_wait, min_bytes, max_bytes, isolation = _HEAD_WITH_REPLICA.unpack_from(buffer, position)
    position += _HEAD_WITH_REPLICA.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(buffer, position)
        position += 8
    topics: list[tuple[bytes, list[FetchPartition]]] = []
    budget = MAX_FETCHED_PARTITIONS
    count, position = _int32(buffer, position)
    plausible_partitions(count, position, end, budget)
    for _ in range(count):
        topic, position = _legacy_string(buffer, position)
        partition_count, position = _int32(buffer, position)
        partitions = []
        budget = plausible_partitions(partition_count, position, end, budget)
        for _ in range(partition_count):
            leader_epoch = log_start = -1
            if version >= 9:
                index, leader_epoch, offset, log_start, limit = _FIELDS_V9.unpack_from(buffer, position)
                position += _FIELDS_V9.size
            elif version >= 5:
                index, offset, log_start, limit = _FIELDS_V5.unpack_from(buffer, position)
                position += _FIELDS_V5.size
            else:
                index, offset, limit = _FIELDS_V4.unpack_from(buffer, position)
                position += _FIELDS_V4.size
            partitions.append(FetchPartition(index, leader_epoch, offset, -1, log_start, limit))
        topics.append((topic, partitions))
    forgotten: list[tuple[bytes, list[int]]] = []
    if version >= 7:
        count, position = _int32(buffer, position)
        plausible_partitions(count, position, end, budget)
        for _ in range(count):
            topic, position = _legacy_string(buffer, position)
            partition_count, position = _int32(buffer, position)
            number = partition_count
            budget = plausible_partitions(number, position, end, budget)
            forgotten.append((topic, list(struct.unpack_from(f">{number}i", buffer, position))))
            position += 4 * number
    rack = b""
    if version >= 11:
        rack, position = _legacy_string(buffer, position)
    return FetchRequest(
        replica_id, max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack
    ), position


def _int32(buffer: bytearray, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(buffer, position)[0], position + 4


def _legacy_string(buffer: bytearray, position: int) -> tuple[bytes, int]:
    (length,) = _INT16.unpack_from(buffer, position)
    if length < 0:
        raise MalformedMessage("string is null")
    return bytes(buffer[position + 2 : position + 2 + length]), position + 2 + length


class ResponseParts:
    """A response under construction: bytes, and file ranges between them."""

    __slots__ = ("head", "length", "out", "parts")

    def __init__(self, head: bytearray) -> None:
        self.head = head
        self.parts: list[bytearray | FileRange] = [head]
        self.out = head
        self.length = 0

    def add_file(self, file_range: FileRange) -> None:
        self.parts.append(file_range)
        self.length += file_range.length
        self.out = bytearray()
        self.parts.append(self.out)

    def finish(self) -> int:
        """The whole length of the response in bytes."""
        return self.length + sum(len(part) for part in self.parts if isinstance(part, bytearray))


def encode_response(
    parts: ResponseParts,
    topics: list[tuple[bytes, list[PartitionResult]]],
    version: int,
    *,
    error: int = ErrorCode.NONE,
    session_id: int = 0,
    throttle_ms: int = 0,
    locate: Locate | None = None,
    listener: str = "",
) -> None:
    """Appends a response body to the parts; `locate` finds the endpoints of its leaders."""
    if version >= 7:
        parts.out += _RESPONSE_HEAD_V7.pack(throttle_ms, error, session_id)
    else:
        parts.out += _RESPONSE_HEAD_V4.pack(throttle_ms)
    flexible = version >= FIRST_FLEXIBLE
    names_leader = False
    if flexible:
        append_unsigned(parts.out, len(topics) + 1)
    else:
        parts.out += _INT32.pack(len(topics))
    for topic, results in topics:
        if flexible:
            if version < FIRST_WITH_TOPIC_ID:
                append_unsigned(parts.out, len(topic) + 1)
            parts.out += topic
            append_unsigned(parts.out, len(results) + 1)
            for result in results:
                _encode_partition_flexible(parts, result)
                names_leader = names_leader or result.current_leader is not None
            parts.out.append(0)
        else:
            parts.out += _INT16.pack(len(topic))
            parts.out += topic
            parts.out += _INT32.pack(len(results))
            for result in results:
                _encode_partition_legacy(parts, result, version)
    if flexible:
        if names_leader and locate is not None and version >= FIRST_WITH_ENDPOINTS:
            append_endpoints(parts.out, locate(_leaders(topics), listener))
        else:
            parts.out.append(0)


def _leaders(topics: list[tuple[bytes, list[PartitionResult]]]) -> list[int]:
    named = {result.current_leader[0]: None for _, results in topics for result in results if result.current_leader}
    return list(named)


def _encode_partition_flexible(parts: ResponseParts, result: PartitionResult) -> None:
    out = parts.out
    out += _PARTITION_V5.pack(
        result.partition, result.error, result.high_watermark, result.last_stable_offset, result.log_start_offset
    )
    if result.aborted is None:
        out.append(0)
    else:
        append_unsigned(out, len(result.aborted) + 1)
        for producer_id, first_offset in result.aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            out.append(0)
    out += _INT32.pack(result.preferred_read_replica)
    records = result.records
    if records is None or not records.length:
        out.append(1)
    else:
        append_unsigned(out, records.length + 1)
        parts.add_file(records)
        out = parts.out
    if result.diverging_epoch is None and result.current_leader is None and result.snapshot_id is None:
        out.append(0)
        return
    tags = [
        (0, _EPOCH_AND_OFFSET, result.diverging_epoch),
        (1, _SESSION, result.current_leader),
        (2, _OFFSET_AND_EPOCH, result.snapshot_id),
    ]
    present = [(tag, layout, value) for tag, layout, value in tags if value is not None]
    out.append(len(present))
    for tag, layout, value in present:
        out += bytes((tag, layout.size + 1))
        out += layout.pack(*value)
        out.append(0)


def _encode_partition_legacy(parts: ResponseParts, result: PartitionResult, version: int) -> None:
    out = parts.out
    if version >= 5:
        out += _PARTITION_V5.pack(
            result.partition, result.error, result.high_watermark, result.last_stable_offset, result.log_start_offset
        )
    else:
        out += _PARTITION_V4.pack(result.partition, result.error, result.high_watermark, result.last_stable_offset)
    out += _INT32.pack(-1 if result.aborted is None else len(result.aborted))
    for producer_id, first_offset in result.aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
    if version >= 11:
        out += _INT32.pack(result.preferred_read_replica)
    records = result.records
    if records is None or not records.length:
        out += b"\x00\x00\x00\x00"
    else:
        out += _INT32.pack(records.length)
        parts.add_file(records)


_SHARE_HEAD: Final = struct.Struct(">ih")
_SHARE_PARTITION: Final = struct.Struct(">ih")
_LEADER: Final = struct.Struct(">ii")
_ACQUIRED: Final = struct.Struct(">qqh")
_NO_TAGS: Final = 0
_NULL: Final = 0


@dataclass(slots=True)
class SharePartitionResult:
    partition: int
    error: int = 0
    error_message: str | None = None
    acknowledge_error: int = 0
    acknowledge_message: str | None = None
    leader_id: int = 0
    leader_epoch: int = 0
    records: FileRange | None = None
    acquired: list[tuple[int, int, int]] = field(default_factory=list)
    """First offset, last offset, delivery count."""


@dataclass(slots=True)
class ShareFetchResponse:
    error: int = 0
    error_message: str | None = None
    lock_timeout_ms: int = 0
    topics: dict[UUID, list[SharePartitionResult]] = field(default_factory=dict)
    endpoints: Sequence[NodeEndpoint] = ()
    """The endpoints of leaders, for partitions that this broker does not lead."""

    def encode(self, parts: ResponseParts, version: int) -> None:
        out = parts.out
        out += _SHARE_HEAD.pack(0, self.error)
        append_text(out, self.error_message)
        out += _INT32.pack(self.lock_timeout_ms)
        append_unsigned(out, len(self.topics) + 1)
        for topic_id, rows in self.topics.items():
            parts.out += topic_id.bytes
            append_unsigned(parts.out, len(rows) + 1)
            for row in rows:
                _encode_share_partition(parts, row)
            parts.out.append(_NO_TAGS)
        append_unsigned(parts.out, len(self.endpoints) + 1)
        for endpoint in self.endpoints:
            parts.out += _INT32.pack(endpoint.node_id)
            append_text(parts.out, endpoint.host)
            parts.out += _INT32.pack(endpoint.port)
            append_text(parts.out, endpoint.rack)
            parts.out.append(_NO_TAGS)
        parts.out.append(_NO_TAGS)


def _encode_share_partition(parts: ResponseParts, row: SharePartitionResult) -> None:
    out = parts.out
    out += _SHARE_PARTITION.pack(row.partition, row.error)
    append_text(out, row.error_message)
    out += _INT16.pack(row.acknowledge_error)
    append_text(out, row.acknowledge_message)
    out += _LEADER.pack(row.leader_id, row.leader_epoch)
    out.append(_NO_TAGS)
    if row.records is None or not row.records.length:
        append_unsigned(out, 1)
    else:
        append_unsigned(out, row.records.length + 1)
        parts.add_file(row.records)
        out = parts.out
    append_unsigned(out, len(row.acquired) + 1)
    for acquired in row.acquired:
        out += _ACQUIRED.pack(*acquired)
        out.append(_NO_TAGS)
    out.append(_NO_TAGS)


def append_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(_NULL)
    else:
        encoded = text.encode()
        append_unsigned(out, len(encoded) + 1)
        out += encoded
