"""The codec of Produce (API 0, versions 3 to 13), by hand.

The parser finds the position of each partition's batches in the request's buffer and copies none. Versions 0 to 2 have
record formats that Kafka 4 dropped. They are advertised, as in Kafka, for old librdkafka, and refused.

A tagged field of Millstream makes an append conditional (KIP-27, docs/conditional-append.md): the partition's end that
the writer expects. The response then has a tagged field with the partition's end, so that a client notices a broker
that ignores the condition. Clients that do not know the fields are not affected.
"""

import struct
from collections.abc import Callable
from typing import Final

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import (
    MAX_PRODUCED_PARTITIONS,
    Locate,
    MalformedMessage,
    append_endpoints,
    plausible_partitions,
    skip_tags,
)
from millstream.formats.records.varint import append_unsigned, read_unsigned

FIRST_VERSION: Final = 3
FIRST_FLEXIBLE: Final = 9
FIRST_WITH_LEADER: Final = 10
FIRST_WITH_TOPIC_ID: Final = 13
LAST_VERSION: Final = 13

CONDITION_TAG: Final = 10_027
"""The number of both tagged fields, in the request's and in the response's partitions; far from those of Kafka."""
CONDITIONAL_APPEND: Final = "millstream.conditional.append"
"""The feature in ApiVersions by which a client knows that a broker checks conditions."""

_END_OFFSET: Final = struct.Struct(">q")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INDEX_AND_LENGTH: Final = struct.Struct(">ii")
_RESULT_V3: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_LEADER_TAG: Final = struct.Struct(">bbbiib")


# These are no named tuples, because compiled code makes them in a tenth of the time: a tenth of a small request.


class PartitionData:
    """The position of one partition's batches in the request's buffer; start == end if there are none."""

    __slots__ = ("end", "partition", "start")

    def __init__(self, partition: int, start: int, end: int) -> None:
        self.partition = partition
        self.start = start
        self.end = end


class ProduceRequest:
    __slots__ = ("acks", "conditions", "timeout_ms", "topics", "transactional_id")

    def __init__(
        self,
        transactional_id: bytes | None,
        acks: int,
        timeout_ms: int,
        topics: list[tuple[bytes, list[PartitionData]]],
        conditions: dict[tuple[bytes, int], int] | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics
        """By topic name, or by the sixteen bytes of the topic id from version 13 on."""
        self.conditions = conditions
        """The end that the writer expects of a partition, by topic and index; None in requests without conditions."""

    def with_topics(self, topics: list[tuple[bytes, list[PartitionData]]]) -> "ProduceRequest":
        return ProduceRequest(self.transactional_id, self.acks, self.timeout_ms, topics, self.conditions)


class PartitionResult:
    __slots__ = (
        "base_offset",
        "current_leader",
        "end_offset",
        "error",
        "log_append_time_ms",
        "log_start_offset",
        "message",
        "partition",
        "record_errors",
    )

    def __init__(
        self,
        partition: int,
        error: int = ErrorCode.NONE,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        message: str | None = None,
        current_leader: tuple[int, int] | None = None,
        record_errors: tuple[tuple[int, str], ...] = (),
    ) -> None:
        self.partition = partition
        self.error = error
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.message = message
        self.current_leader = current_leader
        """Leader id and epoch, for a client that sent to another node."""
        self.record_errors = record_errors
        """The records because of which the batch is refused: number in the batch, and error."""
        self.end_offset: int | None = None
        """The partition's end, in the response to a conditional append."""


def parse(buffer: bytearray, position: int, end: int, version: int) -> ProduceRequest:
    """Reads a request body; remaining bytes before `end` are ignored, as in Kafka."""
    try:
        if version >= FIRST_FLEXIBLE:
            request, position = _parse_flexible(buffer, position, end, version)
        else:
            request, position = _parse_legacy(buffer, position, end)
    except (struct.error, IndexError):
        raise MalformedMessage("produce request is incomplete") from None
    if position > end:
        raise MalformedMessage("produce request is incomplete")
    return request


def _parse_flexible(buffer: bytearray, position: int, end: int, version: int) -> tuple[ProduceRequest, int]:
    # Lengths of one byte are read inline: a call for each would be a tenth of a small request's cost.
    by_id = version >= FIRST_WITH_TOPIC_ID
    transactional_id = None
    length = buffer[position]
    position += 1
    if length > 0x7F:
        length, position = read_unsigned(buffer, position - 1)
    if length:
        transactional_id = bytes(buffer[position : position + length - 1])
        position += length - 1
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    topic_count = buffer[position + 6]
    position += 7
    if topic_count > 0x7F:
        topic_count, position = read_unsigned(buffer, position - 1)
    topics: list[tuple[bytes, list[PartitionData]]] = []
    conditions: dict[tuple[bytes, int], int] | None = None
    budget = MAX_PRODUCED_PARTITIONS
    plausible_partitions(topic_count - 1, position, end, budget)
    for _ in range(topic_count - 1):
        if by_id:
            topic = bytes(buffer[position : position + 16])
            position += 16
        else:
            length = buffer[position]
            position += 1
            if length > 0x7F:
                length, position = read_unsigned(buffer, position - 1)
            topic = bytes(buffer[position : position + length - 1])
            position += length - 1
        partition_count = buffer[position]
        position += 1
        if partition_count > 0x7F:
            partition_count, position = read_unsigned(buffer, position - 1)
        partitions = []
        budget = plausible_partitions(partition_count - 1, position, end, budget)
        for _ in range(partition_count - 1):
            (index,) = _INT32.unpack_from(buffer, position)
            length, position = read_unsigned(buffer, position + 4)
            stop = position + length - 1 if length else position
            if stop > end:
                raise MalformedMessage("record set runs past the end of the request")
            partitions.append(PartitionData(index, position, stop))
            # No tagged fields is one zero byte: the usual case.
            if not buffer[stop]:
                position = stop + 1
            else:
                position = skip_tags(buffer, stop, end)
                expected = _condition(buffer, stop)
                if expected is not None:
                    conditions = conditions or {}
                    conditions[topic, index] = expected
        topics.append((topic, partitions))
        position = position + 1 if not buffer[position] else skip_tags(buffer, position, end)
    position = position + 1 if not buffer[position] else skip_tags(buffer, position, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, conditions), position


def _condition(buffer: bytes | bytearray, position: int) -> int | None:
    """The value of our tagged field in a section of tagged fields that was skipped without an error."""
    count, position = read_unsigned(buffer, position)
    for _ in range(count):
        tag, position = read_unsigned(buffer, position)
        size, position = read_unsigned(buffer, position)
        if tag == CONDITION_TAG:
            if size != _END_OFFSET.size:
                raise MalformedMessage(f"the expected offset has {size} bytes instead of {_END_OFFSET.size}")
            return int(_END_OFFSET.unpack_from(buffer, position)[0])
        position += size
    return None


def condition_field(offset: int) -> bytes:
    """A section of tagged fields with this field alone, for a request's or a response's partition."""
    out = bytearray(b"\x01")
    append_unsigned(out, CONDITION_TAG)
    append_unsigned(out, _END_OFFSET.size)
    return bytes(out) + _END_OFFSET.pack(offset)


def encode_conditional(
    topic: bytes, index: int, batch: bytes | bytearray, expected: int, timeout_ms: int, version: int
) -> bytearray:
    """A request with one conditional batch, acknowledged by all in-sync replicas. `topic` is its name, or from version
    13 on its id."""
    out = bytearray(b"\x00" + _ACKS_TIMEOUT.pack(-1, timeout_ms) + b"\x02")
    if version < FIRST_WITH_TOPIC_ID:
        append_unsigned(out, len(topic) + 1)
    out += topic + b"\x02" + _INT32.pack(index)
    append_unsigned(out, len(batch) + 1)
    out += batch
    return out + condition_field(expected) + b"\x00\x00"


def end_in_response(data: bytes | bytearray, position: int, version: int) -> int | None:
    """The end of the partition, in the response to a request with one conditional batch; None if it has none: then the
    broker has not checked the condition. Raises MalformedMessage."""
    try:
        count, position = read_unsigned(data, position)
        if count != 2:
            raise MalformedMessage(f"{count - 1} topics in the response to one")
        if version < FIRST_WITH_TOPIC_ID:
            length, position = read_unsigned(data, position)
            position += length - 1
        else:
            position += 16
        count, position = read_unsigned(data, position)
        if count != 2:
            raise MalformedMessage(f"{count - 1} partitions in the response to one")
        position += _RESULT_V5.size
        errors, position = read_unsigned(data, position)
        for _ in range(errors - 1):
            length, position = read_unsigned(data, position + 4)
            position = skip_tags(data, position + max(length - 1, 0), len(data))
        length, position = read_unsigned(data, position)
        return _condition(data, position + max(length - 1, 0))
    except (struct.error, IndexError):
        raise MalformedMessage("produce response is incomplete") from None


def _parse_legacy(buffer: bytearray, position: int, end: int) -> tuple[ProduceRequest, int]:
    transactional_id = None
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    if length >= 0:
        transactional_id = bytes(buffer[position : position + length])
        position += length
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    (topic_count,) = _INT32.unpack_from(buffer, position + 6)
    position += 10
    topics: list[tuple[bytes, list[PartitionData]]] = []
    budget = MAX_PRODUCED_PARTITIONS
    plausible_partitions(topic_count, position, end, budget)
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(buffer, position)
        if length < 0:
            raise MalformedMessage("topic name is null")
        topic = bytes(buffer[position + 2 : position + 2 + length])
        position += 2 + length
        (partition_count,) = _INT32.unpack_from(buffer, position)
        position += 4
        partitions = []
        budget = plausible_partitions(partition_count, position, end, budget)
        for _ in range(partition_count):
            index, length = _INDEX_AND_LENGTH.unpack_from(buffer, position)
            position += 8
            stop = position + length if length > 0 else position
            if stop > end:
                raise MalformedMessage("record set runs past the end of the request")
            partitions.append(PartitionData(index, position, stop))
            position = stop
        topics.append((topic, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def encode_response(
    out: bytearray,
    topics: list[tuple[bytes, list[PartitionResult]]],
    version: int,
    throttle_ms: int = 0,
    locate: Locate | None = None,
    listener: str = "",
) -> None:
    """Appends a response body; `locate` finds the endpoints of its leaders."""
    if version >= FIRST_FLEXIBLE:
        leaders = _encode_flexible(out, topics, version, throttle_ms)
        if leaders and locate is not None:
            append_endpoints(out, locate(leaders, listener))
        else:
            out.append(0)
    else:
        _encode_legacy(out, topics, version, throttle_ms)


def _encode_flexible(
    out: bytearray,
    topics: list[tuple[bytes, list[PartitionResult]]],
    version: int,
    throttle_ms: int,
) -> dict[int, None] | None:
    """Everything except the tagged fields at the end; returns the leaders in the response."""
    leaders: dict[int, None] | None = None
    by_id = version >= FIRST_WITH_TOPIC_ID
    if len(topics) < 0x7F:
        out.append(len(topics) + 1)
    else:
        append_unsigned(out, len(topics) + 1)
    for topic, results in topics:
        if not by_id:
            append_unsigned(out, len(topic) + 1)
        out += topic
        if len(results) < 0x7F:
            out.append(len(results) + 1)
        else:
            append_unsigned(out, len(results) + 1)
        for row in results:
            out += _RESULT_V5.pack(
                row.partition, row.error, row.base_offset, row.log_append_time_ms, row.log_start_offset
            )
            if not row.record_errors:
                out.append(1)
            else:
                append_unsigned(out, len(row.record_errors) + 1)
                out += _record_errors(row.record_errors, _flexible_reason)
            if row.message is None:
                out.append(0)
            else:
                text = row.message.encode()
                append_unsigned(out, len(text) + 1)
                out += text
            leader = row.current_leader
            if row.end_offset is not None:  # never with a leader: the partition is here
                out += condition_field(row.end_offset)
            elif leader is None or version < FIRST_WITH_LEADER:
                out.append(0)
            else:
                out += _LEADER_TAG.pack(1, 0, 9, *leader, 0)
                leaders = leaders or {}
                leaders[leader[0]] = None
        out.append(0)
    out += _INT32.pack(throttle_ms)
    return leaders


def _record_errors(errors: tuple[tuple[int, str], ...], encode: Callable[[str], bytes]) -> bytes:
    """There may be thousands of errors with few messages: each message is encoded once."""
    reasons = {reason: encode(reason) for _, reason in errors}
    pack = _INT32.pack
    return b"".join([pack(number) + reasons[reason] for number, reason in errors])


def _flexible_reason(reason: str) -> bytes:
    text = reason.encode()
    out = bytearray()
    append_unsigned(out, len(text) + 1)
    return bytes(out) + text + b"\x00"


def _legacy_reason(reason: str) -> bytes:
    text = reason.encode()
    return _INT16.pack(len(text)) + text


def _encode_legacy(
    out: bytearray, topics: list[tuple[bytes, list[PartitionResult]]], version: int, throttle_ms: int
) -> None:
    out += _INT32.pack(len(topics))
    for topic, results in topics:
        out += _INT16.pack(len(topic))
        out += topic
        out += _INT32.pack(len(results))
        for row in results:
            if version >= 5:
                out += _RESULT_V5.pack(
                    row.partition, row.error, row.base_offset, row.log_append_time_ms, row.log_start_offset
                )
            else:
                out += _RESULT_V3.pack(row.partition, row.error, row.base_offset, row.log_append_time_ms)
            if version >= 8:
                out += _INT32.pack(len(row.record_errors))
                out += _record_errors(row.record_errors, _legacy_reason)
                text = b"" if row.message is None else row.message.encode()
                out += _INT16.pack(-1 if row.message is None else len(text))
                out += text
    out += _INT32.pack(throttle_ms)
