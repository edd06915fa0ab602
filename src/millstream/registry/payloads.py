"""What follows a schema's id in a record, read with that schema into values that JSON can hold.

Bytes become base64, decimals text, times ISO 8601; Protobuf is as its own mapping to JSON says, with the fields' names
as the schema spells them.
"""

import base64
import datetime
import math
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any, Protocol

import fastavro
import orjson
from fastavro.schema import SchemaParseException
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError

from millstream.registry.formats.avro import AvroSchema
from millstream.registry.formats.json_schema import JsonSchema
from millstream.registry.formats.protobuf import ProtobufSchema
from millstream.registry.formats.schema import ParsedSchema
from millstream.schemas import framing

_MAX_REASON = 300
_MAX_DEPTH = 200
"""Of nested values: more could not be written as JSON."""
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class UnreadablePayloadError(ValueError):
    """The bytes are not of the schema; the text says why."""


class PayloadReader(Protocol):
    @property
    def kind(self) -> str:
        """avro, json-schema or protobuf."""

    def read(self, payload: bytes) -> Any:
        """UnreadablePayloadError if the bytes do not fit."""


def payload_reader(type_: str, parsed: ParsedSchema) -> PayloadReader:
    if isinstance(parsed, AvroSchema):
        return _Avro(_checked(parsed.for_fastavro()))
    if isinstance(parsed, JsonSchema):
        return _JsonSchema()
    if isinstance(parsed, ProtobufSchema):
        return _Protobuf(parsed.file)
    raise UnreadablePayloadError(f"records of type {type_} cannot be shown")


def _checked(document: Any) -> Any:
    """As fastavro takes it. Refused are arrays whose items take no bytes: three bytes could claim a billion of them."""
    names: dict[str, Any] = {}
    try:
        parsed = fastavro.parse_schema(document, names)
    except SchemaParseException as error:
        raise UnreadablePayloadError(f"the Avro schema breaks a rule: {error}"[:_MAX_REASON]) from None
    for schema in [parsed, *names.values()]:
        for items in _item_types(schema):
            if _takes_no_bytes(items, names, ()):
                raise UnreadablePayloadError("the schema has an array of items that take no bytes, which is not shown")
    return parsed


def _item_types(schema: Any) -> Iterator[Any]:
    if isinstance(schema, list):
        for each in schema:
            yield from _item_types(each)
    elif isinstance(schema, dict):
        if schema.get("type") == "array":
            yield schema["items"]
        for name in ("type", "items", "values"):
            yield from _item_types(schema.get(name))
        for each in schema.get("fields", ()):
            yield from _item_types(each)


def _takes_no_bytes(schema: Any, names: Mapping[str, Any], within: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        if schema in names and schema not in within:
            return _takes_no_bytes(names[schema], names, (*within, schema))
        return schema == "null"
    if not isinstance(schema, dict):
        return False
    if schema.get("type") in ("record", "error"):
        return all(_takes_no_bytes(each["type"], names, within) for each in schema["fields"])
    if schema.get("type") == "fixed":
        return bool(schema["size"] == 0)
    return _takes_no_bytes(schema.get("type"), names, within)


@dataclass(frozen=True, slots=True)
class _Avro:
    schema: Any
    kind: str = "avro"

    def read(self, payload: bytes) -> Any:
        stream = BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(stream, self.schema, None)
        except Exception as error:  # fastavro raises whatever comes of odd bytes
            reason = f"{type(error).__name__} {error}".strip()
            raise UnreadablePayloadError(f"no Avro of this schema: {reason}"[:_MAX_REASON]) from None
        rest = len(payload) - stream.tell()
        if rest:
            raise UnreadablePayloadError(f"no Avro of this schema: {rest} bytes are left over")
        return _plain(value)


class _JsonSchema:
    kind = "json-schema"

    def read(self, payload: bytes) -> Any:
        try:
            value = orjson.loads(payload)
            orjson.dumps(value)  # which takes fewer levels than it reads
        except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
            raise UnreadablePayloadError(f"no JSON: {error}"[:_MAX_REASON]) from None
        return value


class _Protobuf:
    kind = "protobuf"

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file

    def read(self, payload: bytes) -> Any:
        try:
            indexes, content = framing.split_indexes(payload)
            message = message_factory.GetMessageClass(self._message(indexes)).FromString(content)
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except (framing.UnframedError, DecodeError, json_format.Error, TypeError, ValueError) as error:
            if isinstance(error, UnreadablePayloadError):
                raise
            raise UnreadablePayloadError(f"no Protobuf of this schema: {error}"[:_MAX_REASON]) from None

    def _message(self, indexes: tuple[int, ...]) -> Descriptor:
        """Found by its place in the file, then in the message around it."""
        place = list(self._file.message_types_by_name.values())
        found: Descriptor | None = None
        for index in indexes:
            if not 0 <= index < len(place):
                raise UnreadablePayloadError(f"the schema has no message at {list(indexes)}")
            found = place[index]
            place = list(found.nested_types)
        assert found is not None, "split_indexes gives one at least"
        return found


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise UnreadablePayloadError("nested too deeply to be shown")
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
        case dict():
            return {str(key): _plain(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each, depth + 1) for each in value]
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat().removesuffix("+00:00") + ("Z" if _is_utc(value) else "")
        case Decimal() | uuid.UUID() | datetime.timedelta():
            return str(value)
    raise UnreadablePayloadError(f"a value of type {type(value).__name__} cannot be shown")


def _is_utc(value: datetime.datetime | datetime.date | datetime.time) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None and not value.utcoffset()
