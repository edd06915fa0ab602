"""Encodes JSON values with a registered schema, with the prefix that names it: the reverse of `decoding`.

Avro accepts the JSON encoding of its specification (unions name their branch), and plain values where that does not
fit; JSON Schema accepts valid values; Protobuf accepts its JSON mapping, for the first message of the file.
"""

import io
import json
import threading
from collections import OrderedDict
from typing import Any, Protocol

import fastavro
import referencing
from fastavro.schema import SchemaParseException
from google.protobuf import json_format, message_factory
from jsonschema import Draft7Validator
from jsonschema.validators import validator_for
from referencing.jsonschema import DRAFT7

from millstream.registry.avro.schema import AvroSchema
from millstream.registry.formats import ParsedSchema
from millstream.registry.json_schema.schema import JsonSchema
from millstream.registry.protobuf.schema import ProtobufSchema
from millstream.registry.records import StoredSchema, Subject
from millstream.registry.registry import Registry
from millstream.schemas import framing

_KEPT = 1_000
_MAX_REASON = 400


class InvalidValueError(ValueError):
    """The value does not fit the schema; the text says why."""


class _Writer(Protocol):
    def write(self, value: Any) -> bytes: ...


class SchemaEncoder:
    """Writes values with one schema."""

    def __init__(self, stored: StoredSchema, writer: _Writer) -> None:
        self.stored = stored
        self._prefix = framing.prefix(stored.id)
        self._writer = writer

    def encode(self, value: Any) -> bytes:
        """InvalidValueError if the value does not fit."""
        return self._prefix + self._writer.write(value)


class Encoders:
    """Thread safe. It may block on the cluster for a new schema, so it is not for an event loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept: OrderedDict[tuple[str, int], _Writer] = OrderedDict()
        self._lock = threading.Lock()

    def by_id(self, schema_id: int, subject: Subject | None = None, *, within: Registry | None = None) -> SchemaEncoder:
        """RegistryError if there is no such schema. `within`: the registry as a caller may use it."""
        registry = within or self._registry
        return self.of(registry.retry_if_missing(lambda: registry.by_id(schema_id, subject)))

    def version(self, subject: Subject, version: int | None = None, *, within: Registry | None = None) -> SchemaEncoder:
        """None is the latest; RegistryError if there is none."""
        registry = within or self._registry
        return self.of(registry.retry_if_missing(lambda: registry.version(subject, version)))

    def of(self, stored: StoredSchema) -> SchemaEncoder:
        """Encoders are shared by all subjects with this schema; `stored` is the version that was requested."""
        place = stored.subject.context, stored.id
        with self._lock:
            found = self._kept.get(place)
        if found is None:
            found = _writer(self._registry.parser.parse_stored(stored))
            with self._lock:
                self._kept[place] = found
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return SchemaEncoder(stored, found)


def _writer(parsed: ParsedSchema) -> _Writer:
    if isinstance(parsed, AvroSchema):
        try:
            return _Avro(fastavro.parse_schema(parsed.for_fastavro()))
        except SchemaParseException as error:
            raise InvalidValueError(f"the Avro schema is invalid: {error}"[:_MAX_REASON]) from None
    if isinstance(parsed, JsonSchema):
        return _JsonSchema(parsed)
    if isinstance(parsed, ProtobufSchema):
        return _Protobuf(parsed)
    raise InvalidValueError("values cannot be encoded with a schema of this type")


def record_name(parsed: ParsedSchema) -> str | None:
    """The full name of the record that a schema describes, from which Confluent's clients can form the subject: Avro's
    named type, the title of a JSON Schema, the first message of a Protobuf file."""
    if isinstance(parsed, AvroSchema):
        return parsed.root.name or None
    if isinstance(parsed, JsonSchema):
        main = parsed.documents.main
        title = main.get("title") if isinstance(main, dict) else None
        return title if isinstance(title, str) and title else None
    if isinstance(parsed, ProtobufSchema):
        return next((str(each.full_name) for each in parsed.file.message_types_by_name.values()), None)
    return None


class _Avro:
    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def write(self, value: Any) -> bytes:
        try:
            return self._written(self._specified(value))
        except Exception:  # fastavro raises many types for invalid values; plain values are tried next
            try:
                return self._written(value)
            except Exception as error:
                reason = f"{type(error).__name__} {error}".strip()[:_MAX_REASON]
                raise InvalidValueError(f"the value does not fit the Avro schema: {reason}") from None

    def _specified(self, value: Any) -> Any:
        (datum,) = fastavro.json_reader(io.StringIO(json.dumps(value)), self._schema)
        return datum

    def _written(self, datum: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, datum, strict_allow_default=True)
        return out.getvalue()


class _JsonSchema:
    def __init__(self, parsed: JsonSchema) -> None:
        main, others = parsed.documents.main, parsed.documents.others
        resources = [(name, DRAFT7.create_resource(document)) for name, document in others.items()]
        known: referencing.Registry[Any] = referencing.Registry().with_resources(resources)
        self._validator = validator_for(main, default=Draft7Validator)(main, registry=known)

    def write(self, value: Any) -> bytes:
        try:
            problem = next(self._validator.iter_errors(value), None)
        except Exception as error:  # missing references, invalid patterns, endless schemas
            reason = f"{type(error).__name__} {error}".strip()[:_MAX_REASON]
            raise InvalidValueError(f"the value cannot be checked with the JSON Schema: {reason}") from None
        if problem is not None:
            place = "/" + "/".join(str(part) for part in problem.absolute_path)
            raise InvalidValueError(
                f"the value does not fit the JSON Schema, at {place}: {problem.message[:_MAX_REASON]}"
            )
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Protobuf:
    def __init__(self, parsed: ProtobufSchema) -> None:
        messages = list(parsed.file.message_types_by_name.values())
        if not messages:
            raise InvalidValueError("the Protobuf schema has no message")
        self._message = message_factory.GetMessageClass(messages[0])

    def write(self, value: Any) -> bytes:
        try:
            message = json_format.ParseDict(value, self._message())
            return framing.indexes_prefix((0,)) + bytes(message.SerializeToString())
        except (json_format.Error, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = str(error)[:_MAX_REASON]
            raise InvalidValueError(f"the value does not fit the Protobuf schema: {reason}") from None
