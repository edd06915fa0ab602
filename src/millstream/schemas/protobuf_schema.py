"""Protobuf schemas: from the registry's descriptors or from .proto text to messages, and from messages to Arrow types.

Enums are strings; a member of a oneof, a message and a wrapper (`google.protobuf.Int64Value`, …) is null when unset,
other scalars have their defaults; Timestamp is a time, Duration an interval; Struct, Value and ListValue are JSON text.
Unsigned numbers become wide enough ones: uint32 a long, uint64 a decimal(20, 0). Recursion is refused with its path.
"""

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from millstream.schemas import protobuf_files
from millstream.schemas.errors import SchemaError
from millstream.schemas.formats import ResolvedSchema
from millstream.schemas.protobuf_files import InvalidProtobufError, link
from millstream.schemas.spark_types import TIMESTAMP, list_of, struct_of

TIMESTAMP_NAME = "google.protobuf.Timestamp"
DURATION_NAME = "google.protobuf.Duration"
JSON_NAMES = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)

_F = FieldDescriptor
_SCALARS = {
    _F.TYPE_DOUBLE: pa.float64(), _F.TYPE_FLOAT: pa.float32(), _F.TYPE_INT64: pa.int64(), _F.TYPE_SINT64: pa.int64(),
    _F.TYPE_SFIXED64: pa.int64(), _F.TYPE_INT32: pa.int32(), _F.TYPE_SINT32: pa.int32(), _F.TYPE_SFIXED32: pa.int32(),
    _F.TYPE_UINT32: pa.int64(), _F.TYPE_FIXED32: pa.int64(), _F.TYPE_UINT64: pa.decimal128(20, 0),
    _F.TYPE_FIXED64: pa.decimal128(20, 0), _F.TYPE_BOOL: pa.bool_(), _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(), _F.TYPE_ENUM: pa.string(),
}  # fmt: skip


def load_file(schema: ResolvedSchema) -> FileDescriptor:
    """The schema's file in a new descriptor pool, with all its imports."""
    try:
        return link(schema.text, schema.references)
    except InvalidProtobufError as error:
        raise SchemaError(f"The Protobuf schema cannot be compiled: {error}.") from None


def message_type(file: FileDescriptor, name: str | None) -> Descriptor:
    """The message of that name, full or short; the file's first if none is named."""
    messages = list(_all_messages(file))
    if not messages:
        raise SchemaError("The Protobuf schema has no message.")
    if name is None:
        return messages[0]
    found = [each for each in messages if name in (each.full_name, each.name)]
    if not found:
        raise SchemaError(
            f"The Protobuf schema has no message {name!r}; it has {', '.join(m.full_name for m in messages)}."
        )
    return found[0]


def message_at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    try:
        return protobuf_files.message_at(file, indexes)
    except InvalidProtobufError as error:
        raise SchemaError(str(error)) from None


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    path: list[int] = []
    while message.containing_type is not None:
        siblings = [each.full_name for each in message.containing_type.nested_types]
        path.insert(0, siblings.index(message.full_name))
        message = message.containing_type
    top = [each.full_name for each in message.file.message_types_by_name.values()]
    return (top.index(message.full_name), *path)


def struct_type(message: Descriptor) -> pa.StructType:
    kind = _message_type(message, "$", ())
    if not pa.types.is_struct(kind):
        raise SchemaError(f"{message.full_name} is {kind}, not a message of columns.")
    return kind


def _message_type(message: Descriptor, path: str, open_names: tuple[str, ...]) -> pa.DataType:
    name = message.full_name
    if name == TIMESTAMP_NAME:
        return TIMESTAMP
    if name == DURATION_NAME:
        return pa.duration("us")
    if name in JSON_NAMES:
        return pa.string()
    if name in WRAPPERS:
        return _SCALARS[message.fields_by_name["value"].type]
    if name in open_names:
        raise SchemaError(f"The Protobuf schema contains itself at {path} ({name}); columns cannot.")
    if not message.fields:
        raise SchemaError(f"The Protobuf message {name} at {path} has no fields; a column needs some.")
    return struct_of(
        [(field.name, field_type(field, f"{path}.{field.name}", (*open_names, name))) for field in message.fields]
    )


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def field_type(field: FieldDescriptor, path: str, open_names: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return pa.map_(field_type(key, path, open_names), field_type(value, f"{path}.*", open_names))
    single = (
        _message_type(field.message_type, path, open_names) if field.message_type is not None else _SCALARS[field.type]
    )
    return list_of(single) if field.is_repeated else single


def _all_messages(holder: FileDescriptor | Descriptor) -> list[Descriptor]:
    own = list(holder.message_types_by_name.values() if isinstance(holder, FileDescriptor) else holder.nested_types)
    own = [each for each in own if not each.GetOptions().map_entry]
    return own + [inner for each in own for inner in _all_messages(each)]
