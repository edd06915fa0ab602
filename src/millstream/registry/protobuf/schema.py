"""Protobuf schemas (.proto text, or a FileDescriptorProto in base64) and the compatibility of messages.

Fields are identified by number. A reader skips unknown fields, and missing fields have defaults. So most changes are
compatible; incompatible ones change how bytes are interpreted, or silently lose data.
"""

import base64
from collections.abc import Iterator, Sequence

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, OneofDescriptor

from millstream.registry.formats import Dependency, InvalidSchemaError, Problem
from millstream.registry.protobuf.text import ProtoPrinter
from millstream.schemas.protobuf_files import InvalidProtobufError, link

_F = FieldDescriptor
_GROUPS = (
    frozenset({_F.TYPE_INT32, _F.TYPE_UINT32, _F.TYPE_INT64, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM}),
    frozenset({_F.TYPE_SINT32, _F.TYPE_SINT64}),
    frozenset({_F.TYPE_FIXED32, _F.TYPE_SFIXED32}),
    frozenset({_F.TYPE_FIXED64, _F.TYPE_SFIXED64}),
    frozenset({_F.TYPE_STRING, _F.TYPE_BYTES}),
)
"""Types whose bytes are the same, as far as values fit."""
_LENGTH_PREFIXED = frozenset({_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE})
_NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in vars(_F).items() if name.startswith("TYPE_")}


def problems_reading(reader: FileDescriptor, writer: FileDescriptor) -> list[Problem]:
    if reader.package != writer.package:
        return [
            Problem(
                "PACKAGE_CHANGED",
                "/",
                f"the package is {reader.package or 'none'!r} for the reader and {writer.package or 'none'!r} for the "
                "writer, so messages have other names: keep the package",
            )
        ]
    comparison = _Comparison()
    found: list[Problem] = []
    here = dict(_messages(reader))
    for name, message in _messages(writer):
        if name not in here:
            found.append(Problem("MESSAGE_REMOVED", f"/{name}", f"the reader has no message {name}: keep it"))
        else:
            found += comparison.compare(here[name], message, f"/{name}")
    return found


def _messages(holder: FileDescriptor | Descriptor) -> Iterator[tuple[str, Descriptor]]:
    """By their names within the package, nested ones too."""
    nested = holder.message_types_by_name.values() if isinstance(holder, FileDescriptor) else holder.nested_types
    for message in nested:
        if not message.GetOptions().map_entry:
            yield message.full_name.removeprefix(f"{message.file.package}."), message
            yield from _messages(message)


class _Comparison:
    def __init__(self) -> None:
        self._done: set[tuple[str, str]] = set()

    def compare(self, reader: Descriptor, writer: Descriptor, path: str) -> list[Problem]:
        """Each pair once: messages may contain themselves, and many may contain the same."""
        pair = (reader.full_name, writer.full_name)
        if pair in self._done:
            return []
        self._done.add(pair)
        found: list[Problem] = []
        written = {field.number: field for field in writer.fields}
        for field in reader.fields:
            where = f"{path}/{field.name}"
            if field.number in written:
                found += self._field(field, written[field.number], where)
            elif field.is_required:
                found.append(
                    Problem(
                        "REQUIRED_FIELD_ADDED",
                        where,
                        f"the reader requires field {field.number}, which was not written: make it optional",
                    )
                )
        known = {field.number for field in reader.fields}
        for oneof in _oneofs(reader):
            found += _together(oneof, written, f"{path}/{oneof.name}")
        for oneof in _oneofs(writer):
            found += [
                Problem(
                    "ONEOF_FIELD_REMOVED",
                    f"{path}/{oneof.name}/{field.name}",
                    f"the reader does not know field {field.number} of oneof {oneof.name!r} and would take the choice "
                    "for empty: keep the field",
                )
                for field in oneof.fields
                if field.number not in known
            ]
        return found

    def _field(self, reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> list[Problem]:
        groups = [field.type == _F.TYPE_GROUP for field in (reader, writer)]
        if reader.message_type is not None and writer.message_type is not None and groups[0] == groups[1]:
            return self._messages(reader, writer, path)
        if (reader.message_type is None) != (writer.message_type is None) or groups[0] != groups[1]:
            return [
                Problem(
                    "FIELD_KIND_CHANGED",
                    path,
                    f"field {reader.number} is {_shown(reader)} for the reader and {_shown(writer)} for the writer: "
                    "give the new field another number",
                )
            ]
        found = []
        if reader.type != writer.type and not any({reader.type, writer.type} <= group for group in _GROUPS):
            found.append(
                Problem(
                    "FIELD_SCALAR_KIND_CHANGED",
                    path,
                    f"field {reader.number} is {_shown(reader)} for the reader and {_shown(writer)} for the writer, "
                    "whose bytes differ: give the new field another number",
                )
            )
        if reader.is_repeated != writer.is_repeated and reader.type not in _LENGTH_PREFIXED:
            found.append(
                Problem(
                    "FIELD_NUMERIC_LABEL_CHANGED",
                    path,
                    f"field {reader.number} is repeated on one side only, and lists of numbers are packed: "
                    "give the new field another number",
                )
            )
        return found

    def _messages(self, reader: FieldDescriptor, writer: FieldDescriptor, path: str) -> list[Problem]:
        maps = [bool(field.message_type.GetOptions().map_entry) for field in (reader, writer)]
        if all(maps):
            return self.compare(reader.message_type, writer.message_type, path)
        if any(maps) or reader.message_type.full_name != writer.message_type.full_name:
            return [
                Problem(
                    "FIELD_NAMED_TYPE_CHANGED",
                    path,
                    f"field {reader.number} is {_shown(reader)} for the reader and {_shown(writer)} for the writer: "
                    "give the new field another number",
                )
            ]
        return self.compare(reader.message_type, writer.message_type, path)


def _oneofs(message: Descriptor) -> list[OneofDescriptor]:
    """Without those that only stand for `optional`."""
    return [
        oneof for oneof in message.oneofs if not (len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}")
    ]


def _together(oneof: OneofDescriptor, written: dict[int, FieldDescriptor], path: str) -> list[Problem]:
    """Fields of a reader's oneof that may have been written side by side: of these only the last would be kept."""
    here = [written[field.number] for field in oneof.fields if field.number in written]
    groups = {field.containing_oneof.name if field.containing_oneof else f".{field.number}" for field in here}
    if len(groups) < 2:
        return []
    names = ", ".join(field.name for field in here)
    return [
        Problem(
            "FIELDS_MOVED_TO_ONEOF",
            path,
            f"{names} may have been written together, but exclude each other for the reader: keep them apart",
        )
    ]


def _shown(field: FieldDescriptor) -> str:
    many = "repeated " if field.is_repeated else ""
    if field.message_type is not None:
        many += "group " if field.type == _F.TYPE_GROUP else ""
        return "a map" if field.message_type.GetOptions().map_entry else f"{many}{field.message_type.full_name}"
    kind = field.enum_type.full_name if field.enum_type is not None else _NAMES[field.type]
    return f"{many}{kind}"


SERIALIZED = "serialized"


class ProtobufSchema:
    def __init__(self, file: FileDescriptor) -> None:
        """InvalidSchemaError if no text says the same."""
        self.file = file
        self.canonical = ProtoPrinter(file).text()

    def normalized(self) -> str:
        return ProtoPrinter(self.file).text(sorted_=True)

    def rendered(self, form: str) -> str:
        if form != SERIALIZED:
            return self.canonical
        content = descriptor_pb2.FileDescriptorProto()
        self.file.CopyToProto(content)
        return base64.b64encode(content.SerializeToString(deterministic=True)).decode()

    def rule_violation(self) -> str | None:
        return None  # parsing checks every rule

    def problems_reading(self, writer: "ProtobufSchema") -> list[Problem]:
        return problems_reading(self.file, writer.file)


class ProtobufFormat:
    name = "PROTOBUF"
    forms = frozenset({SERIALIZED})

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> ProtobufSchema:
        try:
            return ProtobufSchema(link(text, dependencies))
        except InvalidProtobufError as error:
            raise InvalidSchemaError(str(error)) from None
