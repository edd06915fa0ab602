"""Protobuf records as typed columns: dynamic messages of the reader's schema, matched by tag.

Records are read all at once (`columns.py`), if that is possible; those that it cannot read, one at a time by Protobuf's
own library, which also finds what is wrong with them.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError

from millstream.schemas import framing, protobuf_columns
from millstream.schemas import protobuf_schema as proto
from millstream.schemas.assembly import Row, assemble, binary_values, rows_of, with_times
from millstream.schemas.columns import Columns, Form, is_compiled, merged
from millstream.schemas.errors import EncodingError, SchemaError, SchemaNotFoundError
from millstream.schemas.formats import ResolvedSchema, SchemaChoice

Read = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSIGNED = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)


class ProtobufFormat:
    """With a registry, records have its prefix and message index; without one they are plain messages."""

    def __init__(self, choice: SchemaChoice, message: str | None) -> None:
        self._choice = choice
        self._message = message
        self._schema: ResolvedSchema | None = None
        self._kept: frozenset[str] | None = None
        self._begin()

    def keep_only(self, names: frozenset[str]) -> None:
        """Leaves other columns out."""
        self._kept = names
        self._begin()

    def _begin(self) -> None:
        self._descriptor: Descriptor | None = None
        self._type: pa.StructType | None = None
        self._class: Any = None
        self._read: Read | None = None
        self._known: dict[tuple[int, tuple[int, ...]], str | None] = {}
        self._prefix: bytes | None = None
        self._together: Columns | None = None
        """Reads many records at once."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_choice": self._choice, "_message": self._message, "_schema": self._schema, "_kept": self._kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def arrow_type(self) -> pa.StructType:
        if self._type is None:
            if self._schema is None:
                self._schema = self._choice.reader()
            self._descriptor = proto.message_type(proto.load_file(self._schema), self._message)
            kind = proto.struct_type(self._descriptor)
            if self._kept is not None:
                kind = pa.struct([field for field in kind if field.name in self._kept])
            self._type = kind
            self._class = message_factory.GetMessageClass(self._descriptor)
            self._read = _message_reader(self._descriptor, self._kept)
            tree = protobuf_columns.tree_of(self._descriptor, self._kept) if is_compiled() else None
            if tree is not None:
                self._together = Columns(*tree, kind, Form.PROTOBUF)
        return self._type

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        kind = self.arrow_type()
        found = None
        if self._together is not None and not isinstance(values, pa.ChunkedArray) and values.type == pa.binary():
            found = self._together.decode(values, self._own_prefixes(values))
        if found is None or len(found[1]) == len(values) > 0:
            return self._decode_singly(values, kind)
        return merged(values, *found, lambda rest: self._decode_singly(rest, kind))

    def _own_prefixes(self, values: pa.Array) -> list[bytes] | None:
        """The prefixes that are known to be of the reader's message; None if records have no prefix."""
        if self._choice.client is None:
            return None
        if not self._known:
            try:
                for data in values.drop_null()[:1].to_pylist():
                    self._payload(data)
            except (framing.UnframedError, _BadRecordError):
                pass  # it is read by itself, which finds the reason
        return [
            framing.prefix(number) + framing.indexes_prefix(indexes)
            for (number, indexes), objection in self._known.items()
            if objection is None
        ]

    def _decode_singly(self, values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, pa.Array]:
        assert self._read is not None
        rows: list[Row] = []
        errors: list[str | None] = []
        registered = self._choice.client is not None
        for data in binary_values(values):
            row, error = None, None
            if data is not None:
                try:
                    payload = self._payload(data) if registered else data
                    message = self._class.FromString(payload)
                    if not message.IsInitialized():  # with fields that are required, in proto2
                        raise _BadRecordError(
                            f"{', '.join(message.FindInitializationErrors())} is missing, and required"
                        )
                    row = self._read(message)
                except DecodeError as bad:
                    error = f"no Protobuf of its schema: {bad}"
                except (framing.UnframedError, _BadRecordError, json_format.Error, ValueError, OverflowError) as bad:
                    if isinstance(bad, SchemaError):
                        raise
                    error = str(bad)
            rows.append(row)
            errors.append(error)
        return assemble(rows, errors, kind, lambda array: array)

    def _payload(self, data: bytes) -> bytes:
        schema_id, rest = framing.split(data)
        indexes, payload = framing.split_indexes(rest)
        place = (schema_id, indexes)
        if place not in self._known:
            self._known[place] = self._objection(schema_id, indexes)
        objection = self._known[place]
        if objection is not None:
            raise _BadRecordError(objection)
        return payload

    def _objection(self, schema_id: int, indexes: tuple[int, ...]) -> str | None:
        """Why a record of this schema and message cannot be read; None if it can."""
        assert self._descriptor is not None
        try:
            written = proto.message_at(proto.load_file(self._choice.by_id(schema_id)), indexes)
        except SchemaNotFoundError as error:
            return str(error)
        except SchemaError as error:
            if type(error) is not SchemaError:
                raise  # the registry cannot be reached: the record is not bad
            return f"schema {schema_id}: {error}"
        if written.full_name != self._descriptor.full_name:
            return f"a message {written.full_name}, where {self._descriptor.full_name} is read"
        return None

    def encode(self, rows: pa.Array) -> pa.Array:
        self.arrow_type()
        assert self._descriptor is not None
        if self._prefix is None:
            _, schema_id = self._choice.writer(None)
            indexes = framing.indexes_prefix(proto.indexes_of(self._descriptor))
            self._prefix = b"" if schema_id is None else framing.prefix(schema_id) + indexes
        known = self._descriptor.fields_by_name
        for field in rows.type:
            if field.name not in known:
                raise EncodingError(
                    f"The message {self._descriptor.full_name} has no field {field.name!r}; it has {', '.join(known)}."
                )
        out: list[bytes | None] = []
        for place, row in enumerate(rows_of(with_times(rows, _in_microseconds))):
            if row is None:
                out.append(None)
                continue
            message = self._class()
            try:
                _fill(message, row)
                out.append(self._prefix + message.SerializeToString(deterministic=True))
            except (
                json_format.Error,
                EncodeError,
                TypeError,
                ValueError,
                KeyError,
                AttributeError,
                OverflowError,
            ) as error:
                raise EncodingError(f"Row {place} does not fit {self._descriptor.full_name}: {error}.") from None
        return pa.array(out, pa.binary())


class _BadRecordError(ValueError):
    """This record is bad; others may be good."""


def _message_reader(message: Descriptor, kept: frozenset[str] | None = None) -> Read:
    """A function from a message to a value for `pa.array`, with all of its fields or those that are kept."""
    name = message.full_name
    if name == proto.TIMESTAMP_NAME:
        return _timestamp
    if name == proto.DURATION_NAME:
        return lambda value: timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if name in proto.JSON_NAMES:
        return lambda value: json_format.MessageToJson(value, indent=None)
    if name in proto.WRAPPERS:
        inner = _scalar_reader(message.fields_by_name["value"])
        return lambda value: inner(value.value)
    fields = [
        (field.name, _field_reader(field), _may_be_unset(field))
        for field in message.fields
        if kept is None or field.name in kept
    ]

    def read(value: Any) -> Any:
        return {
            name: None if unset and not value.HasField(name) else convert(getattr(value, name))
            for name, convert, unset in fields
        }

    return read


def _may_be_unset(field: FieldDescriptor) -> bool:
    return bool(field.has_presence) and not field.is_repeated


def _field_reader(field: FieldDescriptor) -> Read:
    if proto.is_map(field):
        key = _scalar_reader(field.message_type.fields_by_name["key"])
        value = _single_reader(field.message_type.fields_by_name["value"])
        return lambda entries: [(key(each), value(entries[each])) for each in entries]
    single = _single_reader(field)
    if field.is_repeated:
        return lambda values: [single(each) for each in values]
    return single


def _single_reader(field: FieldDescriptor) -> Read:
    return _message_reader(field.message_type) if field.message_type is not None else _scalar_reader(field)


def _scalar_reader(field: FieldDescriptor) -> Read:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))  # a newer writer may know more of them
    if field.type in _UNSIGNED:
        return Decimal
    return lambda value: value


def _timestamp(value: Any) -> datetime:
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def _in_microseconds(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())


def _fill(message: Any, row: dict[str, Any]) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in row.items():
        if value is None:
            continue
        field = fields.get(name)
        if field is None:
            raise ValueError(f"{message.DESCRIPTOR.full_name} has no field {name!r}")
        if proto.is_map(field):
            _fill_map(getattr(message, name), field.message_type.fields_by_name["value"], value)
        elif field.is_repeated:
            _fill_list(getattr(message, name), field, value)
        elif field.message_type is not None:
            inner = getattr(message, name)
            inner.SetInParent()
            _fill_message(inner, value)
        else:
            setattr(message, name, _scalar(field, value))


def _fill_message(message: Any, value: Any) -> None:
    name = message.DESCRIPTOR.full_name
    if name == proto.TIMESTAMP_NAME:
        if isinstance(value, datetime):  # out of a map
            since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
            value = since // timedelta(microseconds=1)
        message.seconds, fraction = divmod(value, 1_000_000)
        message.nanos = 1000 * fraction
    elif name == proto.DURATION_NAME:
        message.FromTimedelta(value)
    elif name in proto.JSON_NAMES:
        json_format.Parse(value, message)
    elif name in proto.WRAPPERS:
        message.value = _scalar(message.DESCRIPTOR.fields_by_name["value"], value)
    else:
        _fill(message, value)


def _fill_list(target: Any, field: FieldDescriptor, values: list[Any]) -> None:
    for value in values:
        if value is None:
            raise ValueError(f"{field.name} has a null, which Protobuf does not allow")
        if field.message_type is not None:
            _fill_message(target.add(), value)
        else:
            target.append(_scalar(field, value))


def _fill_map(target: Any, field: FieldDescriptor, values: dict[Any, Any]) -> None:
    for key, value in values.items():
        if value is None:
            raise ValueError(f"{key!r} has no value, which Protobuf does not allow")
        if field.message_type is not None:
            _fill_message(target[key], value)
        else:
            target[key] = _scalar(field, value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        found = field.enum_type.values_by_name.get(value)
        if found is not None:
            return found.number
        if value.lstrip("-").isdigit():
            return int(value)
        raise ValueError(f"{field.enum_type.name} has no {value!r}; it has {', '.join(field.enum_type.values_by_name)}")
    return int(value) if isinstance(value, Decimal) else value
