"""Bodies of the produce routes: records whose keys and values are base64, text, JSON, or encoded with a schema.

JSON values are not parsed unless a schema needs it: their bytes go into the log unchanged, so long numbers keep all
their digits.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import read_json
from millstream.gateway.http.routes import Doc, Int32, Int64, Parameter, whole
from millstream.gateway.produce.conditional import IF_MATCH
from millstream.gateway.produce.publisher import OutgoingRecord

Key = TypeVar("Key")
Value = TypeVar("Value")
Encode = Callable[[Any], bytes]


class Form(Enum):
    """The form of keys or values in a request."""

    BASE64 = "base64"
    TEXT = "text"
    """A string stands for its UTF-8 bytes; any other value for its JSON."""
    JSON = "json"
    SCHEMA = "schema"


_FORMS = (
    "base64: bytes. text: a string stands for its UTF-8 bytes, any other value for its JSON. json: JSON, stored "
    "unchanged. schema: JSON that is encoded with a schema of the registry."
)
Header = str | list[str | None] | None


class Message(Struct, Generic[Key, Value], forbid_unknown_fields=True):
    """A record to be written."""

    value: Annotated[
        Value, Meta(description="In the form that value_format names. null is a tombstone in a compacted topic.")
    ]
    key: Annotated[Key, Meta(description="Records with the same key go to the same partition, in order.")] = None  # type: ignore[assignment]  # a missing key is null in every form
    headers: Annotated[
        dict[str, Header] | None, Meta(description="By name. A list is for a name that occurs several times.")
    ] = None
    partition: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None, Meta(description="null: the key determines it.")
    ] = None
    timestamp: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None, Meta(description="Milliseconds since 1970; null or 0 is now.")
    ] = None


class Messages(Struct, Generic[Key, Value], forbid_unknown_fields=True):
    """Records of a batch."""

    messages: list[Message[Key, Value]]


class Records(Struct, Generic[Key, Value], forbid_unknown_fields=True):
    """Records of a batch."""

    records: list[Message[Key, Value]]


class StoredRecord(Struct):
    """The position of a record that was written."""

    partition: Int32
    offset: Int64
    timestamp: Int64


class WrittenRecord(StoredRecord, kw_only=True):
    """The topic and the position of a record that was written."""

    topic: str


class BatchResult(Struct):
    """One entry for each record, in the order of the request."""

    offsets: list[StoredRecord]


class PartialBatchResult(Struct):
    """One entry for each record, in the order of the request: its position, or an error."""

    offsets: Annotated[list[Any], Meta(extra_json_schema={"items": {"anyOf": [
        {"$ref": "#/components/schemas/StoredRecord"}, {"$ref": "#/components/schemas/Error"}
    ]}})]  # fmt: skip


class TopicBatchResult(BatchResult, kw_only=True):
    """The topic, and one entry for each record in the order of the request."""

    topic: str


class TopicPartialBatchResult(PartialBatchResult, kw_only=True):
    """The topic, and one entry for each record in the order of the request: its position, or an error."""

    topic: str


def _parameters(key: Form, value: Form) -> tuple[Parameter, ...]:
    forms = [form.value for form in Form]
    schema_id = whole(minimum=1, maximum=2**31 - 1)
    return (
        Parameter("key_format", f"The form of keys. {_FORMS}", {"enum": forms, "default": key.value}),
        IF_MATCH,
        Parameter("value_format", f"The form of values. {_FORMS}", {"enum": forms, "default": value.value}),
        Parameter(
            "key_schema_id", "Schema for keys in form schema. Default: the latest of subject TOPIC-key.", schema_id
        ),
        Parameter(
            "value_schema_id",
            "Schema for values in form schema. Default: the latest of subject TOPIC-value.",
            schema_id,
        ),
    )


_PARTIAL = (
    "All records are checked before the first is sent: if one is malformed, none is written. 200: all records are "
    "stored on all in-sync replicas. 207: some are not, and have an error in their place."
)
_TAG = "Produce"
_ERRORS = (412, 422, 429, 501)
ONE = Doc(
    tag=_TAG,
    summary="Write one record",
    description="The response is sent when all in-sync replicas have the record.",
    parameters=_parameters(Form.TEXT, Form.BASE64),
    body=Message[Raw, bytes | None],
    response=WrittenRecord,
    errors=_ERRORS,
    example={"key": "user_123", "value": "aGVsbG8=", "headers": {"trace_id": "abc"}, "partition": None},
)
BATCH = Doc(
    tag=_TAG,
    summary="Write a batch of records",
    description=_PARTIAL,
    parameters=_parameters(Form.TEXT, Form.BASE64),
    body=Messages[Raw, bytes | None],
    response=BatchResult,
    partial=PartialBatchResult,
    errors=_ERRORS,
    example={"messages": [{"key": "user_123", "value": "aGVsbG8="}, {"value": "d29ybGQ="}]},
)
RECORDS = Doc(
    tag=_TAG,
    summary="Write records with JSON values",
    description=_PARTIAL,
    parameters=_parameters(Form.TEXT, Form.JSON),
    body=Records[Raw, Raw],
    response=TopicBatchResult,
    partial=TopicPartialBatchResult,
    errors=_ERRORS,
    example={"records": [{"key": "user_897123", "value": {"order_id": "ord_9082348", "amount": 128.5}}]},
)


@cache
def _decoder(kind: Any, key: Form, value: Form) -> msgspec.json.Decoder[Any]:
    types = [bytes | None if form is Form.BASE64 else Raw for form in (key, value)]
    return msgspec.json.Decoder(kind[*types])


def read_records(kind: Any, body: bytes, key: Form, value: Form) -> Any:
    """A Message, Messages or Records, with raw JSON where the form is not base64."""
    return read_json(body, _decoder(kind, key, value), 422)


def outgoing(
    messages: Sequence[Message[Any, Any]], key_form: Form, value_form: Form, key_of: Encode, value_of: Encode
) -> list[OutgoingRecord]:
    """`key_of` and `value_of` encode keys and values in form schema."""
    to_key, to_value = converter(key_form, key_of), converter(value_form, value_of)
    made = []
    for number, message in enumerate(messages):
        headers, partition = message.headers, message.partition
        try:
            made.append(
                OutgoingRecord(
                    to_value(message.value),
                    to_key(message.key),
                    None if headers is None else _pairs(headers),
                    -1 if partition is None else partition,
                    message.timestamp or 0,
                )
            )
        except ValueError as error:
            raise ApiError(422, f"record {number}: {error}", "correct this record; no record was written") from None
    return made


def converter(form: Form, encode: Encode) -> Callable[[Any], bytes | None]:
    match form:
        case Form.BASE64:
            return lambda value: value
        case Form.TEXT:
            return _text
        case Form.JSON:
            return _json

    def encoded(raw: Raw | None) -> bytes | None:
        data = _json(raw)
        return None if data is None else encode(msgspec.json.decode(data))

    return encoded


def _json(raw: Raw | None) -> bytes | None:
    data = b"null" if raw is None else bytes(raw)
    return None if data == b"null" else data


def _text(raw: Raw | None) -> bytes | None:
    data = _json(raw)
    return msgspec.json.decode(data, type=str).encode() if data is not None and data[0] == 34 else data


def _pairs(headers: dict[str, Any]) -> list[tuple[str, str | bytes | None]]:
    pairs: list[tuple[str, str | bytes | None]] = []
    for name, given in headers.items():
        if "\0" in name:
            raise ValueError("the name of a header must not contain the character 0")  # librdkafka would cut it off
        for value in given if isinstance(given, list) else (given,):
            pairs.append((name, None if value is None else value.encode()))  # text, too, would be cut there
    return pairs
