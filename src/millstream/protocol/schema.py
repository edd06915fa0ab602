"""Message schemas in a notation of our own, and the codecs made from them.

One entry describes all versions of one message, as Kafka's own definitions do:

    request 3 metadata 0-13 flexible:9+
      topics []{} 0+ null:1+
        topic_id uuid 10+
        name string 0+ null:10+
      allow_auto_topic_creation bool 4+ = true

A field has a name, a type, and the versions it is sent in; `null:` says in which versions it may be null, `tag:N:` that
it is a tagged field, `=` its default. `[]` is an array, `{}` a structure whose fields are indented below it. From the
first flexible version on, lengths are compact varints and every structure ends in its tagged fields.

Decoding gives an object that has the fields of *all* versions, those that were not sent at their defaults; encoding
takes a dictionary and sends the fields that the version has. So a handler is written once, for every version.
Codecs are compiled from the text when a version is first used.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.protocol import primitives
from millstream.protocol.primitives import Cursor, MalformedMessage, Reader, Writer

_LONGEST_MESSAGE = 2000
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
_ZERO: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": UUID(int=0),
}


class Message:
    """A decoded structure; the fields are those of its schema, over all versions."""

    __slots__: tuple[str, ...] = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self.__slots__)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class VersionRange:
    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "VersionRange":
        low, dash, high = text.partition("-")
        if dash:
            return cls(int(low), int(high))
        return cls(int(text[:-1]), 1 << 15) if text.endswith("+") else cls(int(text), int(text))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


_NEVER = VersionRange(1, 0)


@dataclass(slots=True)
class Field:
    """One line of the notation."""

    name: str
    type: str
    versions: VersionRange
    nullable: VersionRange = _NEVER
    tag: int = -1
    tagged: VersionRange = _NEVER
    default_text: str | None = None
    children: "Structure | None" = None

    def default(self) -> Any:
        """A fresh default value: what the field is in a version that does not send it."""
        if self.default_text == "null":
            return _ZERO["uuid"] if self.type == "uuid" else None
        if self.type.startswith("[]"):
            return []
        if self.type == "{}":
            assert self.children is not None
            return None if self.nullable is not _NEVER else self.children.new()
        if self.default_text is None:
            return _ZERO.get(self.type, 0)
        if self.type == "string":
            return self.default_text.strip("'")
        return True if self.default_text == "true" else int(self.default_text)

    def unset(self, version: int) -> Any:
        """What is sent for a field that the sender does not mention: null where that can be said."""
        return None if self.default_text is None and version in self.nullable else self.default()

    def is_default(self, value: Any) -> bool:
        if self.type == "{}" and value is not None:
            assert self.children is not None
            return all(f.is_default(value[f.name]) for f in self.children.fields if f.name in value)
        return bool(value == self.default())


@dataclass(slots=True)
class Structure:
    """The fields of a message or of a structure inside one."""

    name: str
    fields: list[Field] = field(default_factory=list)
    message_type: type[Message] = Message

    def finish(self) -> None:
        """Makes the class of decoded objects, once all fields are known."""
        names = tuple(dict.fromkeys(f.name for f in self.fields))
        self.message_type = type(self.name, (Message,), {"__slots__": names})

    def new(self) -> Message:
        message = self.message_type()
        for each in self.fields:
            setattr(message, each.name, each.default())
        return message

    def reader(self, version: int, flexible: bool) -> Reader:
        plain = [
            (f.name, field_reader(f, version, flexible))
            for f in self.fields
            if version in f.versions and version not in f.tagged
        ]
        tagged = {f.tag: (f.name, field_reader(f, version, flexible)) for f in self.fields if version in f.tagged}
        sent = {name for name, _ in plain}
        constant: list[Field] = []
        fresh: list[Field] = []
        for each in self.fields:
            if each.name not in sent:
                mutable = each.type.startswith("[]") or each.type == "{}"
                (fresh if mutable else constant).append(each)
        constants = [(f.name, f.default()) for f in constant]
        message_type = self.message_type

        def read(cursor: Cursor) -> Message:
            message = message_type()
            for name, value in constants:
                setattr(message, name, value)
            for each in fresh:
                setattr(message, each.name, each.default())
            for name, read_field in plain:
                setattr(message, name, read_field(cursor))
            if flexible:
                for _ in range(primitives.read_tag_count(cursor)):
                    tag, inner = primitives.read_tag(cursor)
                    known = tagged.get(tag)
                    if known is not None:
                        setattr(message, known[0], known[1](inner))
                        cursor.budget = inner.budget
            return message

        return read

    def writer(self, version: int, flexible: bool) -> Writer:
        plain = [
            (f.name, field_writer(f, version, flexible), f)
            for f in self.fields
            if version in f.versions and version not in f.tagged
        ]
        tagged = sorted(
            ((f.tag, f.name, field_writer(f, version, flexible), f) for f in self.fields if version in f.tagged),
            key=lambda row: row[0],
        )
        known = frozenset(f.name for f in self.fields)
        where = self.name

        def write(out: bytearray, values: Mapping[str, Any]) -> None:
            if not known.issuperset(values):
                raise KeyError(f"{where} has no field {sorted(set(values) - known)}")
            for name, write_field, each in plain:
                write_field(out, values[name] if name in values else each.unset(version))
            if flexible:
                present = [
                    (tag, write_field, values[name])
                    for tag, name, write_field, each in tagged
                    if name in values and not each.is_default(values[name])
                ]
                primitives.write_unsigned_varint(out, len(present))
                for tag, write_field, value in present:
                    content = bytearray()
                    write_field(content, value)
                    primitives.write_unsigned_varint(out, tag)
                    primitives.write_unsigned_varint(out, len(content))
                    out += content

        return write


def field_reader(each: Field, version: int, flexible: bool) -> Reader:
    nullable = version in each.nullable
    if each.type.startswith("[]"):
        item = value_reader(each, each.type[2:], version, flexible, nullable=False)
        length = primitives.read_length_compact if flexible else primitives.read_length_int32
        return primitives.array_reader(length, item, nullable)
    return value_reader(each, each.type, version, flexible, nullable)


def value_reader(each: Field, kind: str, version: int, flexible: bool, nullable: bool) -> Reader:
    if kind == "{}":
        assert each.children is not None
        read = each.children.reader(version, flexible)
        return _nullable_reader(read) if nullable else read
    if kind in _FIXED:
        return primitives.fixed_reader(_FIXED[kind])
    if kind == "uuid":
        return primitives.read_uuid
    if kind == "string":
        length = primitives.read_length_compact if flexible else primitives.read_length_int16
        return primitives.text_reader(length, nullable)
    length = primitives.read_length_compact if flexible else primitives.read_length_int32
    return primitives.bytes_reader(length, nullable)


def _nullable_reader(read: Reader) -> Reader:
    def read_nullable(cursor: Cursor) -> Any:
        marker = cursor.buffer[cursor.take(1)]
        return read(cursor) if marker == 1 else None

    return read_nullable


def field_writer(each: Field, version: int, flexible: bool) -> Writer:
    nullable = version in each.nullable
    if each.type.startswith("[]"):
        item = value_writer(each, each.type[2:], version, flexible, nullable=False)
        length = primitives.write_length_compact if flexible else primitives.write_length_int32
        return primitives.array_writer(length, item, nullable)
    return value_writer(each, each.type, version, flexible, nullable)


def value_writer(each: Field, kind: str, version: int, flexible: bool, nullable: bool) -> Writer:
    if kind == "{}":
        assert each.children is not None
        write = each.children.writer(version, flexible)
        return _nullable_writer(write) if nullable else write
    if kind in _FIXED:
        return primitives.fixed_writer(_FIXED[kind])
    if kind == "uuid":
        return primitives.write_uuid
    if kind == "string":
        length = primitives.write_length_compact if flexible else primitives.write_length_int16
        write_text = primitives.text_writer(length, nullable)
        return _cut_message(write_text) if each.name.endswith("error_message") else write_text
    length = primitives.write_length_compact if flexible else primitives.write_length_int32
    return primitives.bytes_writer(length, nullable)


def _cut_message(write: Writer) -> Writer:
    """Messages repeat what a client sent, and old versions have no room for all that a client can send."""

    def write_message(out: bytearray, value: str | None) -> None:
        write(out, value if value is None else value[:_LONGEST_MESSAGE])

    return write_message


def _nullable_writer(write: Writer) -> Writer:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable


class Schema:
    """One message in all its versions."""

    def __init__(self, entry: str) -> None:
        head, *lines = entry.splitlines()
        words = head.split()
        self.kind, self.api_key, self.name = words[0], int(words[1]), words[2]
        self.versions = VersionRange.parse(words[3])
        flexible = next((w.partition(":")[2] for w in words[4:] if w.startswith("flexible:")), None)
        self.flexible = VersionRange.parse(flexible) if flexible else _NEVER
        self.root = _parse_structure(self.name, lines)
        self._readers: dict[int, Reader] = {}
        self._writers: dict[int, Writer] = {}

    def is_flexible(self, version: int) -> bool:
        return version in self.flexible

    def read(self, cursor: Cursor, version: int) -> Message:
        """Decodes one message at the cursor; raises MalformedMessage for bytes that are not one."""
        reader = self._readers.get(version)
        if reader is None:
            reader = self._readers[version] = self.root.reader(version, self.is_flexible(version))
        message: Message = reader(cursor)
        return message

    def decode(self, data: bytes | bytearray | memoryview, version: int) -> Message:
        """Decodes bytes that hold this message and nothing else."""
        cursor = Cursor(data)
        message = self.read(cursor, version)
        if cursor.position != cursor.end:
            raise MalformedMessage(f"{cursor.end - cursor.position} bytes left over after {self.name} v{version}")
        return message

    def write(self, out: bytearray, values: Mapping[str, Any], version: int) -> None:
        writer = self._writers.get(version)
        if writer is None:
            writer = self._writers[version] = self.root.writer(version, self.is_flexible(version))
        try:
            writer(out, values)
        except struct.error as error:
            raise ValueError(f"{self.name} v{version}: a value does not fit its field: {error}") from error

    def encode(self, values: Mapping[str, Any], version: int) -> bytes:
        out = bytearray()
        self.write(out, values, version)
        return bytes(out)


def _parse_structure(name: str, lines: list[str]) -> Structure:
    root = Structure(name)
    open_structures = [root]
    for line in lines:
        text = line.lstrip(" ")
        depth = (len(line) - len(text)) // 2
        del open_structures[depth:]
        each = _parse_field(text)
        open_structures[-1].fields.append(each)
        if each.type.endswith("{}"):
            each.children = Structure(f"{name}.{each.name}")
            open_structures.append(each.children)
    _finish(root)
    return root


def _finish(structure: Structure) -> None:
    structure.finish()
    for each in structure.fields:
        if each.children is not None:
            _finish(each.children)


def _parse_field(text: str) -> Field:
    declaration, equals, default = text.partition(" = ")
    name, kind, versions, *options = declaration.split()
    each = Field(name, kind, VersionRange.parse(versions), default_text=default if equals else None)
    for option in options:
        word, _, value = option.partition(":")
        if word == "null":
            each.nullable = VersionRange.parse(value)
        else:
            assert word == "tag", f"unknown option in schema line: {text}"
            tag, _, tagged = value.partition(":")
            each.tag, each.tagged = int(tag), VersionRange.parse(tagged)
    return each


def split_entries(text: str) -> dict[tuple[str, str], str]:
    """The entries of a schema file, by kind and name; each is parsed only when it is asked for."""
    entries = {}
    for block in text.split("\n\n"):
        entry = "\n".join(line for line in block.splitlines() if not line.startswith("#"))
        if entry:
            kind, _, name, _ = entry.split(None, 3)
            entries[kind, name] = entry
    return entries
