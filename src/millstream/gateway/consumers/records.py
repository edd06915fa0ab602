"""Records as callers see them: JSON objects, with the value as `format` asks for it.

`base64` is the default and says everything about any bytes. `json` and `text` are what they say; a value that is
neither comes as base64, and `value_format` tells. `registry` reads keys and values with the schemas that they name, and
guesses otherwise. Keys are text where they can be, in every format.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any

from millstream.formats.records.record import Header, Record
from millstream.gateway.http.errors import BadRequestError
from millstream.raw_client import TopicPartition
from millstream.registry.decoding import Decoded, Decoder, in_base64, json_value

BASE64, JSON_TEXT, TEXT, REGISTRY = "base64", "json", "text", "registry"
FORMATS = (BASE64, JSON_TEXT, TEXT, REGISTRY)
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
            TEXT: _as_text,
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
        raise BadRequestError(400, f"?format={text} is not known", f"give one of {', '.join(FORMATS)}")
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
        return in_base64(data)


def _as_json(data: bytes | None) -> Decoded:
    if data is None:
        return Decoded("null", None)
    try:
        return Decoded("json", json_value(data))
    except ValueError as error:
        return Decoded(_BINARY, base64.b64encode(data).decode(), problem=f"no JSON: {error}")
