"""What callers of consumers send, read and checked.

The routes of consumers, described.

Records as callers see them: JSON objects, with the value as `format` asks for it.

`base64` is the default and says everything about any bytes. `json` and `text` are what they say; a value that is
neither comes as base64, and `value_format` tells. `registry` reads keys and values with the schemas that they name, and
guesses otherwise. Keys are text where they can be, in every format.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from millstream.formats.records.record import Header, Record
from millstream.gateway.consumers.session import RESETS
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import (
    ANYTHING,
    FLAG,
    INT32,
    INT64,
    TEXT,
    Doc,
    JsonSchema,
    Parameter,
    array,
    mapping,
    nullable,
    record,
    text,
    whole,
)
from millstream.raw_client import TopicPartition
from millstream.registry.decoding import Decoded, Decoder, as_base64, json_value

MAX_TOPICS = 100
MAX_INSTANCE_LENGTH = 100
MIN_IDLE_MS, MAX_IDLE_MS = 1_000, 3_600_000
MAX_POLL_RECORDS = 10_000
MAX_POLL_MS = 60_000
MAX_POLL_BYTES = 16 << 20
MAX_PARTITION = 2**31 - 1
MAX_OFFSET = 2**63 - 1
_MAX_TOPIC_LENGTH = 249


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: list[str]
    instance: str
    reset: str | None
    idle_s: float | None


def read_subscription(document: dict[str, Any]) -> Subscription:
    topics = document.get("topics")
    if not isinstance(topics, list) or not topics or not all(_is_topic(name) for name in topics):
        raise ApiError(400, "'topics' must be a list of topic names", 'send {"topics": ["orders"]}')
    if len(topics) > MAX_TOPICS:
        raise ApiError(400, f"{len(topics)} topics are too many for one consumer", f"name at most {MAX_TOPICS}")
    instance = document.get("instance_id") or ""
    if not isinstance(instance, str) or len(instance) > MAX_INSTANCE_LENGTH:
        raise ApiError(400, f"'instance_id' must be a name of at most {MAX_INSTANCE_LENGTH} letters")
    reset = document.get("auto_offset_reset")
    if reset is not None and (not isinstance(reset, str) or reset not in RESETS):
        raise ApiError(400, f"'auto_offset_reset' must be one of {', '.join(RESETS)}", "or leave it out")
    idle_ms = document.get("expires_after_ms")
    if idle_ms is not None and not _is_number(idle_ms, MIN_IDLE_MS, MAX_IDLE_MS):
        raise ApiError(400, f"'expires_after_ms' must be a whole number from {MIN_IDLE_MS} to {MAX_IDLE_MS}")
    return Subscription(sorted(set(topics)), instance, reset, None if idle_ms is None else idle_ms / 1000)


def read_offsets(document: dict[str, Any]) -> dict[TopicPartition, int] | None:
    """None if none are named: all that was handed out."""
    given = document.get("offsets")
    if given is None:
        return None
    example = 'send {"offsets": {"orders": {"0": 17}}}: by topic and partition the next offset to be read'
    if not isinstance(given, dict):
        raise ApiError(400, "'offsets' must be an object", example)
    found: dict[TopicPartition, int] = {}
    for topic, partitions in given.items():
        if not isinstance(partitions, dict):
            raise ApiError(400, f"the offsets of {topic!r} must be an object", example)
        for partition, offset in partitions.items():
            if not partition.isdecimal() or len(partition) > 10 or int(partition) > MAX_PARTITION:
                raise ApiError(400, f"{partition!r} is no partition of {topic!r}", example)
            if not _is_number(offset, 0, MAX_OFFSET):
                raise ApiError(400, f"the offset for {topic}-{partition} must be a whole number", example)
            found[TopicPartition(topic, int(partition))] = offset
    return found


def read_seek(document: dict[str, Any]) -> tuple[TopicPartition, int | str]:
    topic: Any = document.get("topic")
    partition: Any = document.get("partition")
    offset: Any = document.get("offset")
    example = 'send {"topic": "orders", "partition": 0, "offset": 17}'
    if not _is_topic(topic):
        raise ApiError(400, "'topic' must be a topic's name", example)
    if not _is_number(partition, 0, MAX_PARTITION):
        raise ApiError(400, "'partition' must be a partition's number", example)
    if not (offset in ("earliest", "latest") if isinstance(offset, str) else _is_number(offset, 0, MAX_OFFSET)):
        raise ApiError(400, "'offset' must be a whole number, earliest or latest", example)
    return TopicPartition(topic, partition), offset


def within(asked: ApiRequest, name: str, default: int, low: int, high: int) -> int:
    """A number of the query between these."""
    number = asked.number(name, default)
    if not low <= number <= high:
        raise ApiError(400, f"?{name}={number} is out of bounds", f"give a number from {low} to {high}")
    return number


def _is_topic(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_TOPIC_LENGTH


def _is_number(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


BASE64, JSON_TEXT, TEXT_FORMAT, REGISTRY = "base64", "json", "text", "registry"
FORMATS = (BASE64, JSON_TEXT, TEXT_FORMAT, REGISTRY)
_BINARY = "binary"

Show = Callable[[bytes | None], Decoded]


class RecordView:
    """Shows records in one format. With `registry` it may ask the cluster, so it is for threads."""

    def __init__(self, format_: str, decoder: Decoder) -> None:
        self._plain = format_ == BASE64
        self._key: Show = decoder.decode if format_ == REGISTRY else _as_text
        self._value: Show = {
            BASE64: _as_base64,
            JSON_TEXT: _as_json,
            TEXT_FORMAT: _as_text,
            REGISTRY: decoder.decode,
        }[format_]

    def shown(self, place: TopicPartition, record: Record) -> dict[str, Any]:
        key, value = self._key(record.key), self._value(record.value)
        document: dict[str, Any] = {
            "topic": place.topic,
            "partition": place.partition,
            "offset": record.offset,
            "key": key.value,
            "value": value.value,
            "timestamp": record.timestamp,
        }
        if record.headers:
            document["headers"] = shown_headers(record.headers)
        if key.kind not in ("text", "null"):
            document["key_format"] = _name(key.kind)
        if not self._plain:
            document["value_format"] = _name(value.kind)
        for name, part in (("key", key), ("value", value)):
            if part.schema_id is not None:
                document[f"{name}_schema_id"] = part.schema_id
            if part.problem is not None:
                document[f"{name}_problem"] = part.problem
        return document


def read_format(text: str) -> str:
    """Of a query parameter; nothing is the default."""
    if text and text not in FORMATS:
        raise ApiError(400, f"?format={text} is not known", f"give one of {', '.join(FORMATS)}")
    return text or BASE64


def shown_headers(headers: Iterable[Header]) -> dict[str, Any]:
    """By name; a name that is there several times has a list, bytes that are no text are {"base64": …}."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        shown = _as_text(value)
        found.setdefault(name, []).append({BASE64: shown.value} if shown.kind == _BINARY else shown.value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _name(kind: str) -> str:
    return BASE64 if kind == _BINARY else kind


def _as_base64(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    return Decoded(_BINARY, binascii.b2a_base64(data, newline=False).decode())


def _as_text(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    try:
        return Decoded("text", data.decode())
    except UnicodeDecodeError:
        return as_base64(data)


def _as_json(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    try:
        return Decoded("json", json_value(data))
    except ValueError as error:
        return Decoded(_BINARY, base64.b64encode(data).decode(), problem=f"no JSON: {error}")


_TAG = "Consumers"
_TOPIC = text("A topic's name.", minLength=1, maxLength=249)
_INSTANCE = Parameter("instance_id", "Which consumer of the group; needed only where the group has several here.", TEXT)
_INSTANCE_HEADER = Parameter("Consumer-Instance-Id", "The same as a header.", TEXT, place="header")
_WHICH = (_INSTANCE, _INSTANCE_HEADER)
FORMAT = Parameter(
    "format",
    "How values are shown: base64; json or text (what is neither comes as base64); registry: with the schema that they "
    "name, keys too.",
    text("", enum=list(FORMATS), default="base64"),
)
MESSAGE: JsonSchema = record(
    {
        "topic": TEXT,
        "partition": INT32,
        "offset": INT64,
        "key": {"description": "Text, where it is; else see key_format."},
        "value": {"description": "As `format` says; see value_format."},
        "timestamp": whole("Milliseconds since 1970."),
    },
    {
        "headers": mapping(ANYTHING),
        "key_format": text("What the key is, if not text."),
        "value_format": text("What the value is: base64, json, text, avro, json-schema, protobuf or null."),
        "key_schema_id": INT32,
        "value_schema_id": INT32,
        "key_problem": text("Why the key could not be shown as asked for."),
        "value_problem": text("Why the value could not be shown as asked for."),
    },
)
_PARTITION = record(
    {
        "topic": TEXT,
        "partition": INT32,
        "position": nullable(whole("The next offset to be handed out; null while it is looked up.")),
        "committed": nullable(whole("What the group committed.")),
        "leaving": {"type": "boolean", "description": "To go to another member: commit what came of it."},
    }
)
_CONSUMER = record(
    {
        "group": TEXT,
        "instance_id": text("Names this consumer in other requests."),
        "member_id": text("Its name in the group."),
        "topics": array(TEXT),
        "auto_offset_reset": TEXT,
        "polling": FLAG,
        "expires_in_ms": whole("When it is closed, if nobody asks for it until then."),
        "partitions": array(_PARTITION),
    }
)
_OFFSETS = record({}, {"offsets": mapping(mapping(INT64))})

SUBSCRIBE = Doc(
    tag=_TAG,
    summary="Opens a consumer that reads topics as a member of a group",
    description="Without `instance_id` there is one consumer for the group: the first call opens it, later ones change "
    "what it reads. With an `instance_id` of its own, each program is a member of its own.",
    parameters=_WHICH,
    body=record(
        {"topics": array(_TOPIC, minItems=1, maxItems=MAX_TOPICS)},
        {
            "instance_id": text("A name of your choice for one of several consumers.", maxLength=MAX_INSTANCE_LENGTH),
            "auto_offset_reset": text(
                "Where to begin without a commit; earliest by default.", enum=["earliest", "latest"]
            ),
            "expires_after_ms": whole("It is closed after that time without requests.", MIN_IDLE_MS, MAX_IDLE_MS),
        },
    ),
    answer=_CONSUMER,
    errors=(403, 409, 429, 501, 502),
    example={"topics": ["orders"]},
)
POLL = Doc(
    tag=_TAG,
    summary="The next records, as soon as there are any",
    description="One poll at a time. An empty list if none came in time.",
    parameters=(
        *_WHICH,
        Parameter("max_records", "At most so many; 500 by default.", whole("", 1, MAX_POLL_RECORDS)),
        Parameter("timeout_ms", "How long to wait for the first one; 1000 by default.", whole("", 0, MAX_POLL_MS)),
        Parameter(
            "max_bytes", "At most so much of keys and values, but one record; 1 MiB by default.",
            whole("", 1, MAX_POLL_BYTES),
        ),
        FORMAT,
    ),
    answer=record({"messages": array(MESSAGE)}),
    errors=(403, 409, 410, 502),
)  # fmt: skip
COMMIT = Doc(
    tag=_TAG,
    summary="Commits offsets: what comes before them is done",
    description="By topic and partition the next offset to be read, which must not be beyond what was handed out. "
    "Without `offsets`: all that was handed out.",
    parameters=_WHICH,
    body=_OFFSETS,
    body_required=False,
    answer=_OFFSETS,
    errors=(403, 409, 410, 502),
    example={"offsets": {"orders": {"0": 17}}},
)
SEEK = Doc(
    tag=_TAG,
    summary="Reads on from another offset of a partition",
    parameters=_WHICH,
    body=record(
        {
            "topic": _TOPIC,
            "partition": whole("", 0, MAX_PARTITION),
            "offset": {"anyOf": [whole("", 0, MAX_OFFSET), {"type": "string", "enum": ["earliest", "latest"]}]},
        }
    ),
    answer=record({"topic": TEXT, "partition": INT32, "offset": INT64}),
    errors=(403, 409, 410, 416, 502),
    example={"topic": "orders", "partition": 0, "offset": 17},
)
SHOW = Doc(
    tag=_TAG,
    summary="The group's consumers in this gateway: partitions, positions, when they expire",
    parameters=_WHICH,
    answer=record({"group": TEXT, "consumers": array(_CONSUMER)}),
    errors=(410,),
)
SHOW_ALL = Doc(
    tag=_TAG,
    summary="All consumers that are open in this gateway",
    parameters=(
        Parameter("offset", "How many to leave out at the beginning.", whole("", minimum=0)),
        Parameter("limit", "How many at most; below 1 is no limit.", INT32),
    ),
    answer=record({"consumers": array(_CONSUMER)}),
)
LEAVE = Doc(
    tag=_TAG,
    summary="Leaves the group and closes the consumer",
    parameters=_WHICH,
    status=204,
    errors=(409, 410),
)
