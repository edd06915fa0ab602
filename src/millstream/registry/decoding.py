"""Decodes keys and values of records for people: with the schema that they name, otherwise as JSON, text or base64.

Bytes that cannot be decoded are not an error: they are shown as base64, with the reason. In decoded values, bytes are
base64, decimals text, times ISO 8601; Protobuf uses its JSON mapping, with the field names of the schema.
"""

import base64
import datetime
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any, Protocol

import fastavro
import orjson
from fastavro.schema import SchemaParseException
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from millstream.registry.avro.schema import AvroSchema
from millstream.registry.errors import RegistryError
from millstream.registry.formats import ParsedSchema
from millstream.registry.json_schema.schema import JsonSchema
from millstream.registry.protobuf.schema import ProtobufSchema
from millstream.registry.registry import Registry
from millstream.schemas import framing
from millstream.schemas.protobuf_files import InvalidProtobufError, message_at

_MAX_REASON = 300
_MAX_VALUE_DEPTH = 200
"""Deeper values could not be written as JSON."""
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class UnreadablePayloadError(ValueError):
    """The bytes do not fit the schema; the text says why."""


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
    raise UnreadablePayloadError(f"records of type {type_} cannot be decoded")


def _checked(document: Any) -> Any:
    """The schema for fastavro. Arrays of items without bytes are refused: three bytes could claim a billion items."""
    names: dict[str, Any] = {}
    try:
        parsed = fastavro.parse_schema(document, names)
    except SchemaParseException as error:
        raise UnreadablePayloadError(f"the Avro schema is invalid: {error}"[:_MAX_REASON]) from None
    for schema in [parsed, *names.values()]:
        for items in _item_types(schema):
            if _takes_no_bytes(items, names, ()):
                raise UnreadablePayloadError("the schema has an array of items without bytes, which is not supported")
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
        except Exception as error:  # fastavro raises many types for invalid bytes
            reason = f"{type(error).__name__} {error}".strip()
            raise UnreadablePayloadError(f"the bytes do not fit the Avro schema: {reason}"[:_MAX_REASON]) from None
        rest = len(payload) - stream.tell()
        if rest:
            raise UnreadablePayloadError(f"the bytes do not fit the Avro schema: {rest} bytes are left over")
        return _plain(value)


class _JsonSchema:
    kind = "json-schema"

    def read(self, payload: bytes) -> Any:
        try:
            value = orjson.loads(payload)
            orjson.dumps(value)  # orjson writes fewer levels than it parses
        except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
            raise UnreadablePayloadError(f"not JSON: {error}"[:_MAX_REASON]) from None
        return value


class _Protobuf:
    kind = "protobuf"

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file

    def read(self, payload: bytes) -> Any:
        try:
            indexes, content = framing.split_indexes(payload)
            message = message_factory.GetMessageClass(message_at(self._file, indexes)).FromString(content)
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except InvalidProtobufError as error:
            raise UnreadablePayloadError(str(error)) from None
        except (framing.UnframedError, DecodeError, json_format.Error, TypeError, ValueError) as error:
            raise UnreadablePayloadError(f"the bytes do not fit the Protobuf schema: {error}"[:_MAX_REASON]) from None


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_VALUE_DEPTH:
        raise UnreadablePayloadError("nested too deeply")
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
    raise UnreadablePayloadError(f"a value of type {type(value).__name__} cannot be decoded")


def _is_utc(value: datetime.datetime | datetime.date | datetime.time) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None and not value.utcoffset()


_KEPT = 1_000
_ASK_AGAIN_SECONDS = 5.0
"""A missing id may be any five bytes: it is not looked up again for each record."""
_MAX_JSON_DEPTH = 250
"""Deeper JSON could be parsed, but not written again."""
_NO_TEXT = bytes(set(range(32)) - set(b"\t\n\r")) + b"\x7f"


@dataclass(frozen=True, slots=True)
class Decoded:
    kind: str
    """null, json, text, binary, avro, json-schema or protobuf."""
    value: Any
    """A JSON value; base64 for binary."""
    schema_id: int | None = None
    problem: str | None = None
    """Why the schema that the bytes name could not be used."""


@dataclass(frozen=True, slots=True)
class _Known:
    reader: PayloadReader | None
    problem: str = ""
    until: float = float("inf")


class Decoder:
    """Thread safe. It may block on the cluster for a new schema, so it is not for an event loop."""

    def __init__(self, registry: Registry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def decode(self, data: bytes | None) -> Decoded:
        if data is None:
            return Decoded("null", None)
        if len(data) >= framing.PREFIX.size and data[0] == framing.MAGIC:
            schema_id, payload = framing.split(data)
            # Ids begin at 1; a small number of eight bytes begins with zeros.
            return self._through_registry(data, schema_id, payload) if schema_id else as_base64(data)
        return decode_without_schema(data)

    def _through_registry(self, data: bytes, schema_id: int, payload: bytes) -> Decoded:
        known = self._schema(schema_id)
        problem = known.problem
        if known.reader is not None:
            try:
                return Decoded(known.reader.kind, known.reader.read(payload), schema_id)
            except UnreadablePayloadError as error:
                problem = f"the record names schema {schema_id}, but does not fit it: {error}"
        return Decoded("binary", base64.b64encode(data).decode(), schema_id, problem)

    def _schema(self, schema_id: int) -> _Known:
        with self._lock:
            known = self._known.get(schema_id)
            if known is not None and known.until > self._clock():
                self._known.move_to_end(schema_id)
                return known
        known = self._look_up(schema_id)
        with self._lock:
            self._known[schema_id] = known
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known

    def _look_up(self, schema_id: int) -> _Known:
        registry = self._registry
        try:
            stored = registry.retry_if_missing(lambda: registry.by_id(schema_id))
            return _Known(payload_reader(stored.type, registry.parser.parse_stored(stored)))
        except (RegistryError, UnreadablePayloadError) as error:
            reason = f"the record seems to name schema {schema_id}: {error}"
            return _Known(None, reason, self._clock() + _ASK_AGAIN_SECONDS)


def decode_without_schema(data: bytes) -> Decoded:
    """As JSON, text or base64, by the bytes alone."""
    try:
        return Decoded("json", json_value(data))
    except ValueError:
        pass
    if data.translate(None, _NO_TEXT) == data:
        try:
            return Decoded("text", data.decode())
        except UnicodeDecodeError:
            pass
    return as_base64(data)


def json_value(data: bytes) -> Any:
    """ValueError if it is not JSON, or nested too deeply to be written again."""
    value = orjson.loads(data)
    if data.count(b"[") + data.count(b"{") > _MAX_JSON_DEPTH:
        try:
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            raise ValueError("nested too deeply") from None
    return value


def as_base64(data: bytes) -> Decoded:
    return Decoded("binary", base64.b64encode(data).decode())
