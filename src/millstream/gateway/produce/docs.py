"""The routes that produce, described."""

from millstream.gateway.http.described import (
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
