"""What callers send to be written: JSON with records, whose keys and values are base64, text, JSON, or of a schema.

The values' JSON is never taken apart, unless a schema asks for it: it goes into the log byte for byte, so that long
numbers stay as they were.

The routes that produce, described.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.routes import (
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
from millstream.gateway.produce.publisher import OutgoingRecord

Key = TypeVar("Key")
Value = TypeVar("Value")
Encode = Callable[[Any], bytes]
_Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Time = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Form(Enum):
    """How a key or value stands in the request."""

    BASE64 = "base64"
    TEXT = "text"
    """A string is its own text in UTF-8; anything else its JSON."""
    JSON = "json"
    SCHEMA = "schema"


class Message(Struct, Generic[Key, Value], forbid_unknown_fields=True):
    value: Value
    key: Key = None  # type: ignore[assignment]  # what is left out is null in every form
    headers: dict[str, str | list[str | None] | None] | None = None
    partition: _Partition | None = None
    timestamp: _Time | None = None


class Messages(Struct, Generic[Key, Value], forbid_unknown_fields=True):
    messages: list[Message[Key, Value]]


class Records(Struct, Generic[Key, Value], forbid_unknown_fields=True):
    records: list[Message[Key, Value]]


@cache
def _decoder(kind: Any, key: Form, value: Form) -> msgspec.json.Decoder[Any]:
    types = [bytes | None if form is Form.BASE64 else Raw for form in (key, value)]
    return msgspec.json.Decoder(kind[*types])


def read_body(kind: Any, body: bytes, key: Form, value: Form) -> Any:
    """A Message, Messages or Records, with raw JSON where it is not base64."""
    try:
        if not body.isascii():
            body.decode()  # what is handed on without a look must at least be text
        return _decoder(kind, key, value).decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(422, str(error).replace("`", "'"), "look at the record; /docs describes it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", "send a JSON object") from None


def outgoing(
    messages: Sequence[Message[Any, Any]], key_form: Form, value_form: Form, key_of: Encode, value_of: Encode
) -> list[OutgoingRecord]:
    """`key_of` and `value_of` write the keys and values that are of a schema."""
    to_key, to_value = _converter(key_form, key_of), _converter(value_form, value_of)
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
            raise ApiError(422, f"record {number}: {error}", "nothing was written; correct it") from None
    return made


def _converter(form: Form, encode: Encode) -> Callable[[Any], bytes | None]:
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
            raise ValueError("a header's name must not hold the character 0")  # librdkafka would cut it there
        for value in given if isinstance(given, list) else (given,):
            pairs.append((name, None if value is None else value.encode()))  # text, too, would be cut there
    return pairs


_TAG = "Produce"
_FORMATS = ["base64", "text", "json", "schema"]
_MEANING = (
    "base64: bytes. text: a string is its own text, anything else its JSON. json: JSON, kept byte for byte. "
    "schema: JSON that is written with a schema of the registry."
)


def _parameters(key: str, value: str) -> tuple[Parameter, ...]:
    return (
        Parameter("key_format", f"How keys stand in the request. {_MEANING}", {"enum": _FORMATS, "default": key}),
        Parameter("value_format", f"How values stand in the request. {_MEANING}", {"enum": _FORMATS, "default": value}),
        Parameter(
            "key_schema_id",
            "The schema of the keys, where their format is schema; otherwise the latest of the subject TOPIC-key.",
            whole(minimum=1, maximum=2**31 - 1),
        ),
        Parameter(
            "value_schema_id",
            "The schema of the values, where their format is schema; otherwise the latest of the subject TOPIC-value.",
            whole(minimum=1, maximum=2**31 - 1),
        ),
    )


def _message(value: JsonSchema) -> JsonSchema:
    more: dict[str, JsonSchema] = {
        "key": {"description": "Records with the same key go to the same partition, in order."},
        "headers": nullable(mapping(nullable({"anyOf": [TEXT, array(nullable(TEXT))]}))),
        "partition": nullable(whole("Where to write it; null leaves it to the key.", 0, 2**31 - 1)),
        "timestamp": nullable(whole("Milliseconds since 1970; null or 0 is now.", 0, 2**63 - 1)),
    }
    return record({"value": value}, more, closed=True)


_BASE64 = nullable(text("The value's bytes in base64; null deletes the key in a compacted topic."))
_JSON: JsonSchema = {"description": "The value, any JSON; null deletes the key in a compacted topic."}
_STORED: dict[str, JsonSchema] = {"partition": INT32, "offset": INT64, "timestamp": INT64}
_FAILED: dict[str, JsonSchema] = {"error_code": whole(), "message": TEXT, "hint": TEXT}
_OUTCOME: JsonSchema = {"anyOf": [record(_STORED), record(_FAILED)]}
_PARTIAL = (
    "Records are checked before the first is sent: what is malformed is refused as a whole. 200 says that all are "
    "stored on all in-sync replicas; 207 that some are not, with an error in their place."
)
_ERRORS = (422, 429)

ONE = Doc(
    tag=_TAG,
    summary="Write one record",
    description="Answers once all in-sync replicas have it.",
    parameters=_parameters("text", "base64"),
    body=_message(_BASE64),
    answer=record({"topic": TEXT, **_STORED}),
    errors=_ERRORS,
    example={"key": "user_123", "value": "aGVsbG8=", "headers": {"trace_id": "abc"}, "partition": None},
)
BATCH = Doc(
    tag=_TAG,
    summary="Write many records at once",
    description=_PARTIAL,
    parameters=_parameters("text", "base64"),
    body=record({"messages": array(_message(_BASE64))}, closed=True),
    answer=record({"offsets": array(record(_STORED))}),
    partial=record({"offsets": array(_OUTCOME)}),
    errors=_ERRORS,
    example={"messages": [{"key": "user_123", "value": "aGVsbG8="}, {"value": "d29ybGQ="}]},
)
RECORDS = Doc(
    tag=_TAG,
    summary="Write records whose values are JSON",
    description=_PARTIAL,
    parameters=_parameters("text", "json"),
    body=record({"records": array(_message(_JSON))}, closed=True),
    answer=record({"topic": TEXT, "offsets": array(record(_STORED))}),
    partial=record({"topic": TEXT, "offsets": array(_OUTCOME)}),
    errors=_ERRORS,
    example={"records": [{"key": "user_897123", "value": {"order_id": "ord_9082348", "amount": 128.5}}]},
)
