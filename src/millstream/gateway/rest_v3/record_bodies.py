"""Records as Confluent's REST v3 spells them, read, and their keys and values written in the formats they name."""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from millstream.gateway.http.errors import BadRequestError
from millstream.gateway.produce.publishing import Outgoing
from millstream.registry.encoding import Encoders, SchemaEncoder, UnfitValueError
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.subjects import parse_subject

_SCHEMA_TYPES = {"AVRO": "AVRO", "JSONSCHEMA": "JSON", "PROTOBUF": "PROTOBUF"}
_TYPE_NAMES = {registered: name for name, registered in _SCHEMA_TYPES.items()}
_PLAIN_TYPES = ("BINARY", "JSON", "STRING")
_HOW = f"give type as one of {', '.join((*_PLAIN_TYPES, *_SCHEMA_TYPES))}"
_NULL = b"null"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Part(Struct, forbid_unknown_fields=True):
    """A key or a value."""

    data: Raw = Raw(_NULL)
    type: str | None = None
    subject: str | None = None
    subject_name_strategy: str | None = None
    schema_id: _Int32 | None = None
    schema_version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    schema: str | None = None

    @property
    def choice(self) -> tuple[Any, ...]:
        """What decides how the data is written."""
        return self.type, self.subject, self.subject_name_strategy, self.schema_id, self.schema_version, self.schema


class Header(Struct, forbid_unknown_fields=True):
    name: str
    value: bytes | None = None


class Record(Struct, forbid_unknown_fields=True):
    partition_id: _Int32 | None = None
    headers: list[Header] | None = None
    key: Part | None = None
    value: Part | None = None
    timestamp: datetime | None = None


class Entry(Record, forbid_unknown_fields=True):
    """A record of a batch."""

    id: Annotated[str, Meta(min_length=1, max_length=80)] = ""


class Batch(Struct, forbid_unknown_fields=True):
    entries: list[Entry]


_RECORD = msgspec.json.Decoder(Record)
_BATCH = msgspec.json.Decoder(Batch)


@dataclass(frozen=True, slots=True)
class Written:
    """A key or value as bytes, and what the answer says of it."""

    data: bytes | None
    told: dict[str, Any] | None


def read_record(data: bytes) -> Record:
    record: Record = _read(_RECORD, data)
    return record


def read_batch(data: bytes) -> Batch:
    batch: Batch = _read(_BATCH, data)
    return batch


def _read(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    try:
        if not data.isascii():
            data.decode()  # what is handed on without a look must at least be text
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(400, str(error).replace("`", "'"), code=400) from None


def to_outgoing(record: Record, key: Written, value: Written) -> Outgoing:
    headers: list[tuple[str, str | bytes | None]] | None = None
    if record.headers:
        if any("\0" in header.name for header in record.headers):
            raise BadRequestError(400, "a header's name must not hold the character 0")  # librdkafka would cut it there
        headers = [(header.name, header.value) for header in record.headers]
    partition = -1 if record.partition_id is None else record.partition_id
    return Outgoing(value.data, key.data, headers, partition, _milliseconds(record.timestamp))


def _milliseconds(at: datetime | None) -> int:
    """Since 1970; 0 is now. A time without a zone is of UTC."""
    if at is None:
        return 0
    since = ((at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    if not 0 < since <= _LAST:  # librdkafka would write the time of now for 0
        raise BadRequestError(400, "a record's timestamp must be after 1970-01-01T00:00:00Z and before the year 10000")
    return since


class PartWriter:
    """Of one request. `find` may ask the cluster and blocks; `write` does not."""

    def __init__(self, registry: Registry, encoders: Encoders, topic: str) -> None:
        self._registry = registry
        self._encoders = encoders
        self._topic = topic
        self._found: dict[tuple[Any, ...], SchemaEncoder] = {}

    def needs_schema(self, part: Part | None, which: str) -> bool:
        """Whether `find` must be called before `write`."""
        return part is not None and part.type not in _PLAIN_TYPES and (which, *part.choice) not in self._found

    def find(self, part: Part, which: str) -> None:
        """`which`: key or value."""
        type_, subject, strategy, schema_id, version, schema = part.choice
        if type_ is not None and type_ not in _SCHEMA_TYPES:
            raise BadRequestError(400, f"the type {type_!r} is not known: {_HOW}")
        if strategy not in (None, "TOPIC_NAME"):
            raise BadRequestError(400, f"subject_name_strategy {strategy} is not offered: give the subject instead")
        place = parse_subject(subject or f"{self._topic}-{which}")
        try:
            if schema is not None:
                if type_ is None:
                    raise BadRequestError(400, f"a schema needs its type: {_HOW}")
                stored = self._registry.register(place, SchemaRequest(schema, _SCHEMA_TYPES[type_], (), None, None))
                encoder = self._encoders.of(stored)
            elif schema_id is not None:
                encoder = self._encoders.by_id(schema_id)
            else:
                encoder = self._encoders.version(place, version)
        except UnfitValueError as error:
            raise BadRequestError(400, str(error)) from None
        if type_ is not None and encoder.stored.type != _SCHEMA_TYPES[type_]:
            raise BadRequestError(400, f"schema {encoder.stored.id} is {encoder.stored.type}, not {type_}")
        self._found[which, *part.choice] = encoder

    def write(self, part: Part | None, which: str) -> Written:
        if part is None:
            return Written(None, None)
        raw = bytes(part.data)
        if part.type in _PLAIN_TYPES:
            data = None if raw == _NULL else _plain(part.type, raw)
            return Written(data, {"type": part.type, "size": len(data or b"")})
        encoder = self._found[which, *part.choice]
        try:
            data = None if raw == _NULL else encoder.encode(msgspec.json.decode(raw))
        except UnfitValueError as error:
            raise BadRequestError(422, f"{which}: {error}", code=42206) from None
        stored = encoder.stored
        told = {
            "type": _TYPE_NAMES[stored.type],
            "subject": str(stored.subject),
            "schema_id": stored.id,
            "schema_version": stored.version,
            "size": len(data or b""),
        }
        return Written(data, told)


def _plain(type_: str | None, raw: bytes) -> bytes:
    if type_ == "JSON":
        return raw
    if not raw.startswith(b'"'):
        raise BadRequestError(400, f"data of the type {type_} must be a string")
    text: str = msgspec.json.decode(raw, type=str)
    if type_ == "STRING":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError(400, "data of the type BINARY must be base64") from None
