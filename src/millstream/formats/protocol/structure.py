"""The notation of message schemas, parsed: fields, structures, and the classes of decoded objects.

    request 3 metadata 0-13 flexible:9+
      topics []{} 0+ null:1+
        topic_id uuid 10+
        name string 0+ null:10+
      allow_auto_topic_creation bool 4+ = true

A field has a name, a type, and the versions that send it; `null:` are the versions in which it may be null, `tag:N:`
makes it a tagged field, `=` is its default. `[]` is an array, `{}` a structure whose fields are indented below it.
"""

from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass

_ZERO: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": UUID(int=0),
}


@lru_cache(maxsize=10_000)
def cached_uuid(data: bytes) -> UUID:
    """An id from its bytes. Cached: the same ids come many times."""
    return UUID(bytes=data)


class Message:
    """A decoded structure, with the fields of all versions of its schema. `wire_types` has a type for each message."""

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


NEVER = VersionRange(1, 0)


@dataclass(slots=True)
class Field:
    """One line of the notation."""

    name: str
    type: str
    versions: VersionRange
    nullable: VersionRange = NEVER
    tag: int = -1
    tagged: VersionRange = NEVER
    default_text: str | None = None
    children: "Structure | None" = None

    @property
    def is_mutable(self) -> bool:
        """Whether the default is a mutable value, made for each message."""
        return self.type.startswith("[]") or self.type == "{}"

    def default(self) -> Any:
        """A new default value: the field in a version that does not send it."""
        if self.default_text == "null":
            return _ZERO["uuid"] if self.type == "uuid" else None
        if self.type.startswith("[]"):
            return []
        if self.type == "{}":
            assert self.children is not None
            return None if self.nullable is not NEVER else self.children.new()
        if self.default_text is None:
            return _ZERO.get(self.type, 0)
        if self.type == "string":
            return self.default_text.strip("'")
        return True if self.default_text == "true" else int(self.default_text)

    def unset(self, version: int) -> Any:
        """The value that is sent for a field that is not given: null if that is possible."""
        return None if self.default_text is None and version in self.nullable else self.default()

    def is_default(self, value: Any) -> bool:
        if self.type == "{}" and value is not None:
            assert self.children is not None
            return all(f.is_default(value[f.name]) for f in self.children.fields if f.name in value)
        return bool((list(value) if isinstance(value, tuple) else value) == self.default())


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
        for each in self.fields:
            if each.children is not None:
                each.children.finish()

    def new(self) -> Message:
        message = self.message_type()
        for each in self.fields:
            setattr(message, each.name, each.default())
        return message

    def plain(self, version: int) -> list[Field]:
        """The fields that a version sends, in order."""
        return [f for f in self.fields if version in f.versions and version not in f.tagged]

    def tagged(self, version: int) -> list[Field]:
        """The fields that a version sends with a tag, by tag."""
        return sorted((f for f in self.fields if version in f.tagged), key=lambda f: f.tag)


def parse_structure(name: str, lines: list[str]) -> Structure:
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
    root.finish()
    return root


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
