"""A Protobuf descriptor as .proto text, always in the same way: equal schemas have equal texts."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from google.protobuf.message import Message

from millstream.registry.formats import InvalidSchemaError

_Field: TypeAlias = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in _Field.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_INDENT = "  "
_EDITIONS = {value: name.removeprefix("EDITION_") for name, value in descriptor_pb2.Edition.items()}
_MAX_FIELD, _MAX_ENUM = 536_870_911, 2_147_483_647


class ProtoPrinter:
    def __init__(self, file: FileDescriptor) -> None:
        self._pool = file.pool
        self._file = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(self._file)
        self._proto3 = self._file.syntax == "proto3"

    def text(self, *, sorted_: bool = False) -> str:
        """With `sorted_`, imports, options, fields and values are in an order of their own, not the author's."""
        self._sorted = sorted_
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        file = self._file
        if file.syntax == "editions":
            yield f'edition = "{_EDITIONS[file.edition]}";'
        else:
            yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        imports = [(name, index) for index, name in enumerate(file.dependency)]
        if imports:
            yield ""
        for name, index in sorted(imports) if self._sorted else imports:
            kind = "public " if index in file.public_dependency else "weak " if index in file.weak_dependency else ""
            yield f"import {kind}{_quoted(name)};"
        options = self._options(file.options)
        if options:
            yield ""
            yield from (f"option {name} = {value};" for name, value in options)
        scope = _Scope(f".{file.package}" if file.package else "", file.message_type, (), file.extension)
        yield from self._nested(scope, len(scope.messages), "")
        for enum in self._ordered(file.enum_type, "name"):
            yield ""
            yield from self._enum(enum, "")
        yield from self._extensions(scope, "")
        for service in self._ordered(file.service, "name"):
            yield ""
            yield from self._service(service)

    def _ordered(self, rows: Iterable[Any], by: str) -> list[Any]:
        # The order of top-level messages counts: it is how records say which message they are.
        if self._sorted and by != "name":
            return sorted(rows, key=lambda row: getattr(row, by))
        return list(rows)

    def _message(self, message: descriptor_pb2.DescriptorProto, scope: str, indent: str) -> Iterator[str]:
        yield f"{indent}message {message.name} {{"
        yield from self._body(message, f"{scope}.{message.name}", indent + _INDENT)
        yield f"{indent}}}"

    def _body(self, message: descriptor_pb2.DescriptorProto, path: str, inner: str) -> Iterator[str]:
        scope = _Scope(path, message.nested_type, message.field, message.extension)
        yield from (f"{inner}option {name} = {value};" for name, value in self._options(message.options))
        yield from self._reserved(message.reserved_range, message.reserved_name, inner, exclusive=True, top=_MAX_FIELD)
        for row in message.extension_range:
            yield f"{inner}extensions {_span(row.start, row.end - 1, _MAX_FIELD)}{self._bracketed(row.options)};"
        shown: set[int] = set()
        for field in self._ordered(message.field, "number"):
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._nested(scope, scope.place(field), inner)
                yield from self._field(field, scope, inner)
            elif field.oneof_index not in shown:
                shown.add(field.oneof_index)
                yield from self._oneof(message, field.oneof_index, scope, inner)
        yield from self._nested(scope, len(scope.messages), inner)
        for enum in message.enum_type:
            yield ""
            yield from self._enum(enum, inner)
        yield from self._extensions(scope, inner)

    def _nested(self, scope: "_Scope", before: int, indent: str) -> Iterator[str]:
        """The messages that come before this place and were not printed yet. Their order counts: it is how records say
        which message they are; and the message of a group stands where the group does."""
        for message in scope.next_messages(before):
            extension = scope.extension_of(message)
            yield ""
            if extension is None:
                yield from self._message(message, scope.path, indent)
            else:
                yield from self._extend([extension], scope, indent)

    def _oneof(
        self, message: descriptor_pb2.DescriptorProto, index: int, scope: "_Scope", indent: str
    ) -> Iterator[str]:
        oneof = message.oneof_decl[index]
        fields = [field for field in message.field if field.HasField("oneof_index") and field.oneof_index == index]
        yield from self._nested(scope, max(scope.place(field) for field in fields), indent)
        yield f"{indent}oneof {oneof.name} {{"
        yield from (f"{indent}{_INDENT}option {name} = {value};" for name, value in self._options(oneof.options))
        for field in self._ordered(fields, "number"):
            yield from self._field(field, scope, indent + _INDENT, label=False)
        yield f"{indent}}}"

    def _field(self, field: _Field, scope: "_Scope", indent: str, *, label: bool = True) -> Iterator[str]:
        kind, name = _type(field), field.name
        group = scope.message_of(field) if field.type == _Field.TYPE_GROUP else None
        entry = scope.map_entry(field)
        if group is not None:
            kind, name = "group", group.name
        if entry is not None:
            kind = f"map<{_type(entry.field[0])}, {_type(entry.field[1])}>"
        elif label:
            kind = self._label(field) + kind
        details = [(name, value) for name, value in self._options(field.options)]
        if field.HasField("default_value"):
            details.insert(0, ("default", _default(field)))
        if field.json_name and field.json_name != _camel_case(field.name):
            details.insert(0, ("json_name", _quoted(field.json_name)))
        shown = f" [{', '.join(f'{name} = {value}' for name, value in details)}]" if details else ""
        yield f"{indent}{kind} {name} = {field.number}{shown}{';' if group is None else ' {'}"
        if group is not None:
            yield from self._body(group, f"{scope.path}.{group.name}", indent + _INDENT)
            yield f"{indent}}}"

    def _label(self, field: _Field) -> str:
        if field.label == _Field.LABEL_REPEATED:
            return "repeated "
        if self._proto3:
            return "optional " if field.proto3_optional else ""
        if self._file.syntax == "editions":
            return ""
        return "required " if field.label == _Field.LABEL_REQUIRED else "optional "

    def _enum(self, enum: descriptor_pb2.EnumDescriptorProto, indent: str) -> Iterator[str]:
        inner = indent + _INDENT
        yield f"{indent}enum {enum.name} {{"
        yield from (f"{inner}option {name} = {value};" for name, value in self._options(enum.options))
        yield from self._reserved(enum.reserved_range, enum.reserved_name, inner, exclusive=False, top=_MAX_ENUM)
        for value in enum.value:  # the first is the default, so the order counts
            yield f"{inner}{value.name} = {value.number}{self._bracketed(value.options)};"
        yield f"{indent}}}"

    def _service(self, service: descriptor_pb2.ServiceDescriptorProto) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from (f"{_INDENT}option {name} = {value};" for name, value in self._options(service.options))
        for method in service.method:
            given = ("stream " if method.client_streaming else "") + method.input_type
            output = ("stream " if method.server_streaming else "") + method.output_type
            options = self._options(method.options)
            head = f"{_INDENT}rpc {method.name} ({given}) returns ({output})"
            if not options:
                yield f"{head};"
                continue
            yield f"{head} {{"
            yield from (f"{_INDENT * 2}option {name} = {value};" for name, value in options)
            yield f"{_INDENT}}}"
        yield "}"

    def _extensions(self, scope: "_Scope", indent: str) -> Iterator[str]:
        """Those that are no groups, which were printed among the messages."""
        extended: dict[str, list[_Field]] = {}
        for field in scope.extensions:
            if field.type != _Field.TYPE_GROUP:
                extended.setdefault(field.extendee, []).append(field)
        for members in extended.values():
            yield ""
            yield from self._extend(members, scope, indent)

    def _extend(self, members: list[_Field], scope: "_Scope", indent: str) -> Iterator[str]:
        yield f"{indent}extend {members[0].extendee} {{"
        for field in members:
            yield from self._field(field, scope, indent + _INDENT)
        yield f"{indent}}}"

    def _reserved(
        self, ranges: Iterable[Any], names: Iterable[str], indent: str, *, exclusive: bool, top: int
    ) -> Iterator[str]:
        spans = [_span(row.start, row.end - 1 if exclusive else row.end, top) for row in ranges]
        if spans:
            yield f"{indent}reserved {', '.join(spans)};"
        quoted = [name if self._file.syntax == "editions" else _quoted(name) for name in names]
        if quoted:
            yield f"{indent}reserved {', '.join(quoted)};"

    # Options

    def _bracketed(self, options: Message) -> str:
        shown = self._options(options)
        return f" [{', '.join(f'{name} = {value}' for name, value in shown)}]" if shown else ""

    def _options(self, options: Message) -> list[tuple[str, str]]:
        """Names and values as .proto text has them; also those that another file defines as extensions."""
        rows: list[tuple[str, str]] = []
        for field, value in self._with_extensions(options).ListFields():
            if field.name == "map_entry":
                continue
            name = f"({field.full_name})" if field.is_extension else field.name
            rows += [(name, _option_value(field, one)) for one in (value if field.is_repeated else [value])]
        return sorted(rows) if self._sorted else rows

    def _with_extensions(self, options: Message) -> Message:
        try:
            known = self._pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
        except KeyError:
            return options  # the file imports none
        parsed: Message = message_factory.GetMessageClass(known)()
        parsed.ParseFromString(options.SerializeToString())
        return parsed


class _Scope:
    """What a file or a message defines: which of its messages are those of map entries and of groups."""

    def __init__(
        self,
        path: str,
        messages: Iterable[descriptor_pb2.DescriptorProto],
        fields: Iterable[_Field],
        extensions: Iterable[_Field],
    ) -> None:
        self.path = path
        self.messages = list(messages)
        self.extensions = list(extensions)
        self._places = {f"{path}.{message.name}": place for place, message in enumerate(self.messages)}
        self._groups = {field.type_name for field in fields if field.type == _Field.TYPE_GROUP}
        self._extended = {field.type_name: field for field in self.extensions if field.type == _Field.TYPE_GROUP}
        self._printed = 0

    def place(self, field: _Field) -> int:
        """Where the message of a group is; 0 for other fields, which no message must come before."""
        return self._places.get(field.type_name, 0) if field.type == _Field.TYPE_GROUP else 0

    def next_messages(self, before: int) -> Iterator[descriptor_pb2.DescriptorProto]:
        while self._printed < before:
            message = self.messages[self._printed]
            self._printed += 1
            if not message.options.map_entry and f"{self.path}.{message.name}" not in self._groups:
                yield message

    def extension_of(self, message: descriptor_pb2.DescriptorProto) -> _Field | None:
        return self._extended.get(f"{self.path}.{message.name}")

    def message_of(self, group: _Field) -> descriptor_pb2.DescriptorProto:
        """Refuses descriptors that have no .proto text: a group must be named after its message, in the same scope."""
        place = self._places.get(group.type_name)
        if place is None or self.messages[place].name.lower() != group.name:
            raise InvalidSchemaError(
                f"group {group.name!r} in {self.path or 'the file'} has the type {group.type_name}: its type must be a "
                "message of the same name in the same scope"
            )
        return self.messages[place]

    def map_entry(self, field: _Field) -> descriptor_pb2.DescriptorProto | None:
        place = self._places.get(field.type_name)
        return self.messages[place] if place is not None and self.messages[place].options.map_entry else None


def _option_value(field: FieldDescriptor, value: Any) -> str:
    if isinstance(value, Message):
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bytes):
        return f'"{text_format.text_encoding.CEscape(value, as_utf8=False)}"'
    return _quoted(value) if isinstance(value, str) else str(value)


def _type(field: _Field) -> str:
    return str(field.type_name or _SCALARS[field.type])


def _default(field: _Field) -> str:
    if field.type == _Field.TYPE_STRING:
        return _quoted(field.default_value)
    if field.type == _Field.TYPE_BYTES:
        return f'"{field.default_value}"'  # escaped already
    return str(field.default_value)


def _span(start: int, end: int, top: int) -> str:
    return str(start) if start == end else f"{start} to {'max' if end == top else end}"


def _quoted(text: str | bytes) -> str:
    """Text that is no UTF-8 comes as bytes."""
    as_utf8 = isinstance(text, str)
    return f'"{text_format.text_encoding.CEscape(text.encode() if isinstance(text, str) else text, as_utf8=as_utf8)}"'


def _camel_case(name: str) -> str:
    """The default JSON name of a field."""
    out, upper = [], False
    for character in name:
        if character == "_":
            upper = True
        else:
            out.append(character.upper() if upper else character)
            upper = False
    return "".join(out)
