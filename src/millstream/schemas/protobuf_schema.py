"""Protobuf schemas: from the registry's descriptors or from .proto text to messages, and from messages to Arrow types.

Enums are strings; a member of a oneof, a message and a wrapper (`google.protobuf.Int64Value`, …) is null when unset,
other scalars have their defaults; Timestamp is a time, Duration an interval; Struct, Value and ListValue are JSON text.
Unsigned numbers become wide enough ones: uint32 a long, uint64 a decimal(20, 0). Recursion is refused with its path.
"""

import base64
import binascii
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError

from millstream.schemas.errors import SchemaError
from millstream.schemas.formats import ResolvedSchema
from millstream.schemas.spark_types import TIMESTAMP, list_of, struct_of

MAIN_FILE = "millstream_main.proto"
_PROTOC_SECONDS = 60
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
    """The file that the schema is, with all that it imports, in a pool of its own."""
    files = _descriptors(schema)
    pool = descriptor_pool.DescriptorPool()
    done: set[str] = set()

    def add(name: str, needed_by: str) -> None:
        if name in done:
            return
        done.add(name)
        found = files.get(name) or _well_known(name)
        if found is None:
            raise SchemaError(f"The Protobuf schema {needed_by} imports {name!r}, which is not among its references.")
        for dependency in found.dependency:
            add(dependency, name)
        try:
            pool.Add(found)
        except TypeError as error:
            raise SchemaError(f"The Protobuf schema {name} does not hold together: {error}.") from None

    add(MAIN_FILE, MAIN_FILE)
    try:
        return pool.FindFileByName(MAIN_FILE)
    except (KeyError, TypeError) as error:
        raise SchemaError(f"The Protobuf schema does not hold together: {error}.") from None


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
    found: Descriptor | None = None
    try:
        for index in indexes:
            if index < 0:
                raise IndexError
            members = list(file.message_types_by_name.values()) if found is None else list(found.nested_types)
            found = members[index]
    except IndexError:
        raise SchemaError(f"the schema has no message at index {list(indexes)}") from None
    assert found is not None
    return found


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


def _descriptors(schema: ResolvedSchema) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    parts = {name: _serialized(text) for name, text in (*schema.references, (MAIN_FILE, schema.text))}
    if all(part is not None for part in parts.values()):
        found = {}
        for name, part in parts.items():
            assert part is not None
            part.name = name
            found[name] = part
        return found
    texts = dict([*schema.references, (MAIN_FILE, schema.text)])
    if any(part is not None for part in parts.values()):
        raise SchemaError("The registry gave some of the Protobuf files as descriptors and some as text.")
    return _compile(texts)


def _serialized(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A descriptor in base64, as registries give with `format=serialized`; None if the text is something else."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None


def _compile(texts: dict[str, str]) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    try:
        import grpc_tools
    except ImportError:
        raise SchemaError(
            "The Protobuf schema is .proto text, and compiling it needs grpcio-tools: pip install grpcio-tools."
        ) from None
    with tempfile.TemporaryDirectory(prefix="millstream-proto-") as directory:
        root = Path(directory)
        for name, text in texts.items():
            relative = PurePosixPath(name)
            if relative.is_absolute() or ".." in relative.parts:
                raise SchemaError(f"The Protobuf schema is imported as {name!r}, which is no name of a file.")
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            (root / relative).write_text(text)
        includes = [str(root), str(Path(grpc_tools.__file__).parent / "_proto"), *_common_protos()]
        out = root / "out.descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{each}" for each in includes)]
        command += ["--include_imports", f"--descriptor_set_out={out}", MAIN_FILE]
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=_PROTOC_SECONDS, check=False)
        if run.returncode or not out.exists():
            raise SchemaError(f"The Protobuf schema cannot be compiled: {run.stderr.strip() or run.returncode}")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return {file.name: file for file in files}


def _common_protos() -> list[str]:
    """Where google/type and the like are, if installed."""
    try:
        module = importlib.import_module("google.type.date_pb2")
    except ImportError:
        return []
    return [str(Path(str(module.__file__)).parent.parent.parent)]


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    path = PurePosixPath(name)
    if path.suffix != ".proto" or path.parts[0] not in ("google", "confluent"):
        return None
    module_name = ".".join(path.with_suffix("").parts) + "_pb2"
    if path.parts[0] == "confluent":
        module_name = f"confluent_kafka.schema_registry.{module_name}"
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found
