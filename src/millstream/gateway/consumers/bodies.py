"""Bodies of the consumer routes: requests, responses, and records in the format that the caller selects.

Formats of values: `base64` (the default) holds any bytes. With `json` and `text`, a value that is neither is shown as
base64, and `value_format` says so. `registry` decodes keys and values with the schema that they name, and without one
shows them as JSON, text or base64. Keys are text where possible, in every format.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.access.masking import Mask
from millstream.formats.records.record import Header, Record
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.routes import INT32, TEXT, Doc, Int32, Int64, Parameter, text, whole
from millstream.raw_client import TopicPartition
from millstream.registry.decoding import Decoded, Decoder, as_base64, json_value

MAX_TOPICS = 100
MIN_IDLE_MS, MAX_IDLE_MS = 1_000, 3_600_000
MAX_POLL_RECORDS = 10_000
MAX_POLL_MS = 60_000
MAX_POLL_BYTES = 16 << 20

BASE64, JSON_FORMAT, TEXT_FORMAT, REGISTRY = "base64", "json", "text", "registry"
FORMATS = (BASE64, JSON_FORMAT, TEXT_FORMAT, REGISTRY)
_BINARY = "binary"

TopicName = Annotated[str, Meta(description="Name of a topic.", min_length=1, max_length=249)]
Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
OffsetReset = Literal["earliest", "latest"]


# Requests


class Subscription(Struct):
    """The topics that a consumer reads, and its settings."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=MAX_TOPICS)]
    instance_id: Annotated[
        Annotated[str, Meta(max_length=100)] | None,
        Meta(description="A name of your choice for one of several consumers of the group."),
    ] = None
    auto_offset_reset: Annotated[
        OffsetReset | None,
        Meta(description="The start position without a committed offset; earliest by default."),
    ] = None
    expires_after_ms: Annotated[
        Annotated[int, Meta(ge=MIN_IDLE_MS, le=MAX_IDLE_MS)] | None,
        Meta(description="The consumer is closed after this time without requests."),
    ] = None


class Offsets(Struct):
    """Offsets to commit, or the committed offsets: by topic and partition, the next offset to read."""

    offsets: dict[str, dict[Partition, Offset]] | None = None


class Seek(Struct):
    """The position from which a partition is read."""

    topic: TopicName
    partition: Partition
    offset: Offset | OffsetReset


# Responses


class ConsumedRecord(Struct, kw_only=True):
    """A record."""

    topic: str
    partition: Int32
    offset: Int64
    key: Annotated[Any, Meta(description="Text if possible; otherwise see key_format.")]
    value: Annotated[Any, Meta(description="In the selected format; see value_format.")]
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970.")]
    masked: Annotated[bool | UnsetType, Meta(description="True if fields of this topic are masked for the caller.")] = (
        UNSET
    )
    headers: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description='By name. A name that occurs several times has a list; bytes are {"base64": …}.'),
    ] = UNSET
    key_format: Annotated[str | UnsetType, Meta(description="The format of the key, if it is not text.")] = UNSET
    value_format: Annotated[
        str | UnsetType, Meta(description="base64, json, text, avro, json-schema, protobuf or null.")
    ] = UNSET
    key_schema_id: Int32 | UnsetType = UNSET
    value_schema_id: Int32 | UnsetType = UNSET
    key_problem: Annotated[str | UnsetType, Meta(description="Why the key is not shown in the selected format.")] = (
        UNSET
    )
    value_problem: Annotated[
        str | UnsetType, Meta(description="Why the value is not shown in the selected format.")
    ] = UNSET


class PollResult(Struct):
    """The next records."""

    messages: list[ConsumedRecord]


class AssignedPartition(Struct):
    """A partition that is assigned to a consumer."""

    topic: str
    partition: Int32
    position: Annotated[int | None, Meta(description="The next offset to hand out; null while it is looked up.")]
    committed: Annotated[int | None, Meta(description="The committed offset of the group.")]
    leaving: Annotated[
        bool, Meta(description="It will be assigned to another member: commit the records of this partition.")
    ]


class ConsumerState(Struct):
    """A consumer that is open in this gateway."""

    group: str
    instance_id: Annotated[str, Meta(description="Names this consumer in other requests.")]
    member_id: Annotated[str, Meta(description="Its member id in the group.")]
    topics: list[str]
    auto_offset_reset: str
    polling: Annotated[bool, Meta(description="Whether a poll is in progress.")]
    expires_in_ms: Annotated[int, Meta(description="The consumer is closed after this time without requests.")]
    partitions: list[AssignedPartition]


class GroupConsumers(Struct):
    """The consumers of a group in this gateway."""

    group: str
    consumers: list[ConsumerState]


class Consumers(Struct):
    """Open consumers."""

    consumers: list[ConsumerState]


class SeekResult(Struct):
    """The new position."""

    topic: str
    partition: Int32
    offset: Int64


# Routes

_TAG = "Consumers"
_WHICH = (
    Parameter("instance_id", "Selects a consumer of the group; needed if the group has several in this gateway.", TEXT),
    Parameter("Consumer-Instance-Id", "The same as a header.", TEXT, place="header"),
)
FORMAT = Parameter(
    "format",
    "The format of values: base64; json or text (other values are shown as base64); registry: decoded with the schema "
    "that the record names, keys too.",
    text("", enum=list(FORMATS), default=BASE64),
)
SUBSCRIBE = Doc(
    tag=_TAG,
    summary="Open a consumer that reads topics as a member of a group",
    description="Without `instance_id` the group has one consumer in this gateway: the first request opens it, later "
    "ones change its topics. With an `instance_id`, each program is a separate member.",
    parameters=_WHICH,
    body=Subscription,
    response=ConsumerState,
    errors=(403, 409, 429, 501, 502),
    example={"topics": ["orders"]},
)
POLL = Doc(
    tag=_TAG,
    summary="Read the next records",
    description="The response is sent as soon as there are records, or with an empty list after the timeout. Only one "
    "poll of a consumer may be in progress.",
    parameters=(
        *_WHICH,
        Parameter("max_records", "Maximum number of records; 500 by default.", whole("", 1, MAX_POLL_RECORDS)),
        Parameter("timeout_ms", "Timeout for the first record; 1000 by default.", whole("", 0, MAX_POLL_MS)),
        Parameter(
            "max_bytes",
            "Maximum size of keys and values; 1 MiB by default. A larger record is returned alone.",
            whole("", 1, MAX_POLL_BYTES),
        ),
        FORMAT,
    ),
    response=PollResult,
    errors=(403, 409, 410, 502),
)
COMMIT = Doc(
    tag=_TAG,
    summary="Commit offsets",
    description="By topic and partition, the next offset to read. It must not be beyond the records that were handed "
    "out. Without `offsets`: the positions of all partitions.",
    parameters=_WHICH,
    body=Offsets,
    body_required=False,
    response=Offsets,
    errors=(403, 409, 410, 502),
    example={"offsets": {"orders": {"0": 17}}},
)
SEEK = Doc(
    tag=_TAG,
    summary="Change the position in a partition",
    parameters=_WHICH,
    body=Seek,
    response=SeekResult,
    errors=(403, 409, 410, 416, 502),
    example={"topic": "orders", "partition": 0, "offset": 17},
)
SHOW = Doc(
    tag=_TAG,
    summary="The consumers of a group in this gateway: partitions, positions, time until they expire",
    parameters=_WHICH,
    response=GroupConsumers,
    errors=(410,),
)
SHOW_ALL = Doc(
    tag=_TAG,
    summary="All open consumers of this gateway",
    parameters=(
        Parameter("offset", "Number of entries to skip.", whole("", minimum=0)),
        Parameter("limit", "Maximum number of entries; below 1 is no limit.", INT32),
    ),
    response=Consumers,
)
LEAVE = Doc(
    tag=_TAG, summary="Leave the group and close the consumer", parameters=_WHICH, status=204, errors=(409, 410)
)


# Records

Show = Callable[[bytes | None], Decoded]


class RecordView:
    """Shows records in one format. With `registry` it may send requests to the cluster, so it is used in threads."""

    def __init__(self, format_: str, decoder: Decoder, mask_of: Callable[[str], Mask | None] | None = None) -> None:
        """`mask_of`: what is masked in a topic for the caller."""
        self._mask_of = mask_of
        self._decode = decoder.decode
        self._plain = format_ == BASE64
        self._key: Show = decoder.decode if format_ == REGISTRY else text_view
        self._value: Show = {
            BASE64: base64_view,
            JSON_FORMAT: json_view,
            TEXT_FORMAT: text_view,
            REGISTRY: decoder.decode,
        }[format_]

    def shown(self, partition: TopicPartition, record: Record) -> ConsumedRecord:
        mask = None if self._mask_of is None else self._mask_of(partition.topic)
        if mask is not None:
            record = masked(record, mask, self._decode)
        key, value = self._key(record.key), self._value(record.value)
        found = ConsumedRecord(
            topic=partition.topic,
            partition=partition.partition,
            offset=record.offset,
            key=key.value,
            value=value.value,
            timestamp=record.timestamp,
        )
        if mask is not None:
            found.masked = True
        if record.headers:
            found.headers = shown_headers(record.headers)
        if key.kind not in ("text", "null"):
            found.key_format = _name(key.kind)
        if not self._plain:
            found.value_format = _name(value.kind)
        if key.schema_id is not None:
            found.key_schema_id = key.schema_id
        if value.schema_id is not None:
            found.value_schema_id = value.schema_id
        if key.problem is not None:
            found.key_problem = key.problem
        if value.problem is not None:
            found.value_problem = value.problem
        return found


def masked(record: Record, mask: Mask, decode: Show) -> Record:
    """The record as a caller without the right sees it."""
    return record._replace(
        key=mask.key(record.key, decode), value=mask.value(record.value, decode), headers=mask.headers(record.headers)
    )


def read_format(text: str) -> str:
    """The value of a query parameter; empty is the default."""
    if text and text not in FORMATS:
        raise ApiError(400, f"?format={text} is unknown", f"give one of {', '.join(FORMATS)}")
    return text or BASE64


def shown_headers(headers: Iterable[Header]) -> dict[str, Any]:
    """By name. A name that occurs several times has a list; bytes that are not text are {"base64": …}."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        shown = text_view(value)
        found.setdefault(name, []).append({BASE64: shown.value} if shown.kind == _BINARY else shown.value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _name(kind: str) -> str:
    return BASE64 if kind == _BINARY else kind


def base64_view(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    return Decoded(_BINARY, binascii.b2a_base64(data, newline=False).decode())


def text_view(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    try:
        return Decoded("text", data.decode())
    except UnicodeDecodeError:
        return as_base64(data)


def json_view(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    try:
        return Decoded("json", json_value(data))
    except ValueError as error:
        return Decoded(_BINARY, base64.b64encode(data).decode(), problem=f"not JSON: {error}")
