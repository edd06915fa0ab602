"""Masked records: fields of values, keys and headers that a caller without the right does not see.

The mask is applied where a record is read, so that tables, details, exports, streams, consumers and filters all get the
masked record and nothing else. It fails closed: a value of a masked topic that cannot be decoded to fields is hidden as
a whole. A masked value is JSON text, whatever its format was.

A path is `value`, `key` or `headers` (all of it), or has fields after it: `value.card.number`, `headers.authorization`.
`*` is any field, `**` any fields at any depth. A path goes through lists by itself: `value.items.iban` masks the field
in each item. Names are compared without case. A path that ends early, because there is a text or a number where an
object was expected, masks what it found: `value.card.number` hides a `card` that is a text. A name with dots
(`"card.number": …`) is the same path. Names of fields are not hidden, and texts that contain JSON are not looked into.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millstream.access.patterns import any_matches
from millstream.access.roles import Role
from millstream.common.lazy_dataclass import dataclass

HIDDEN = "***"
HOT_KEY_REPORTS = "__millstream_hot_keys"
"""The topic of the brokers' reports, whose values have keys of records of all topics."""
_HIDDEN_BYTES = HIDDEN.encode()
_PARTS = ("value", "key", "headers")
Fields = tuple[str, ...]
Decode = Callable[[bytes | None], Any]
"""Returns an object with `kind` and `value`, as the registry's decoder does."""
_MOST_DOTS = 50
"""A field whose name has more is hidden."""
_WITHOUT_FIELDS = frozenset({"text", "binary"})
Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class MaskRule:
    topics: tuple[str, ...]
    """Patterns of topic names."""
    paths: tuple[tuple[str, Fields], ...]
    """The part of the record, and the fields below it; no fields: all of it."""
    visible_to: Role = Role.ADMIN
    """The lowest role that sees the fields."""
    visible_to_users: frozenset[str] = frozenset()
    """These users see them in any role."""


@dataclass(frozen=True, slots=True)
class Mask:
    """What is masked in one topic for one caller. Equal masks show the same."""

    paths: tuple[tuple[str, Fields], ...]

    def hides(self, part: str) -> bool:
        return (part, ()) in self.paths

    def fields_of(self, part: str) -> list[Fields]:
        return [fields for name, fields in self.paths if name == part and fields]

    def key(self, data: bytes | None, decode: Decode) -> bytes | None:
        return self._masked("key", data, decode)

    def value(self, data: bytes | None, decode: Decode) -> bytes | None:
        return self._masked("value", data, decode)

    def headers(self, headers: Sequence[Header]) -> tuple[Header, ...]:
        if self.hides("headers"):
            return tuple((name, None if value is None else _HIDDEN_BYTES) for name, value in headers)
        wanted = self.fields_of("headers")
        if not wanted:
            return tuple(headers)
        return tuple(
            (name, _HIDDEN_BYTES if value is not None and _names(wanted, name) else value) for name, value in headers
        )

    def _masked(self, part: str, data: bytes | None, decode: Decode) -> bytes | None:
        if data is None:
            return None
        if self.hides(part):
            return _HIDDEN_BYTES
        wanted = self.fields_of(part)
        if not wanted:
            return data
        decoded = decode(data)
        if decoded.kind in _WITHOUT_FIELDS or getattr(decoded, "problem", None):
            return _HIDDEN_BYTES
        document = decoded.value
        try:
            if not _has_fields(document):
                return _HIDDEN_BYTES
            for fields in wanted:
                document = _without(document, fields)
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str)
        except RecursionError:  # objects in each other, too deep to look into
            return _HIDDEN_BYTES
        return text.encode("utf-8", "replace")


def _names(wanted: Iterable[Fields], header: str) -> bool:
    return any(fields[0].casefold() == header.casefold() or fields[0] in ("*", "**") for fields in wanted)


def _has_fields(document: Any) -> bool:
    """Whether it is an object, or a list of objects. Anything else has no fields to choose from."""
    if isinstance(document, list):
        return all(_has_fields(each) for each in document)
    return isinstance(document, dict)


def _without(document: Any, fields: Fields, *, named: bool = False) -> Any:
    """A copy with the values at the path replaced. `named`: a name led here, so it must be an object with fields."""
    if isinstance(document, list):
        return [_without(each, fields, named=named) for each in document]
    if not isinstance(document, dict):
        return _hidden(document) if named else document
    step, rest = fields[0], fields[1:]
    if step == "**":
        # Zero levels: the rest applies here. More: the same path applies below.
        here = _without(document, rest) if rest else dict.fromkeys(document, HIDDEN)
        return {name: _below(name, value, fields) if rest else value for name, value in here.items()}
    return {name: _field_without(name, value, fields) for name, value in document.items()}


def _field_without(name: Any, value: Any, fields: Fields) -> Any:
    value = _one_step(str(name), value, fields)
    first, dot, others = str(name).partition(".")
    if not dot:
        return value
    if others.count(".") >= _MOST_DOTS:
        return _hidden(value)
    # The same as objects in each other: the value is what is left at their end, or what hides an object before it.
    inner = _without({first: {others: value}}, fields)[first]
    return inner[others] if isinstance(inner, dict) else inner


def _below(name: Any, value: Any, fields: Fields) -> Any:
    """The path applies to what is below a field, at any depth."""
    _, dot, others = str(name).partition(".")
    if others.count(".") >= _MOST_DOTS:
        return _hidden(value)
    return _without({others: value}, fields)[others] if dot else _without(value, fields)


def _one_step(name: str, value: Any, fields: Fields) -> Any:
    step, rest = fields[0], fields[1:]
    if step != "*" and step.casefold() != name.casefold():
        return value
    return _without(value, rest, named=step != "*") if rest else _hidden(value)


def _hidden(value: Any) -> Any:
    return None if value is None else HIDDEN


ALL_HIDDEN = Mask(tuple((part, ()) for part in _PARTS))


@dataclass(frozen=True, slots=True)
class Masking:
    """All rules of the gateway."""

    rules: tuple[MaskRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    def mask_of(self, topic: str, role: Role, user: str) -> Mask | None:
        """None: this caller sees all of the topic."""
        rules = [rule for rule in self.rules if role < rule.visible_to and user not in rule.visible_to_users]
        paths = {path: None for rule in rules if any_matches(rule.topics, topic) for path in rule.paths}
        if topic == HOT_KEY_REPORTS and any(part == "key" for rule in rules for part, _ in rule.paths):
            paths["value", ()] = None  # the reports have the keys of masked topics
        return Mask(tuple(paths)) if paths else None


def parse_path(text: str) -> tuple[str, Fields]:
    """ValueError shows the form."""
    part, dot, rest = text.strip().partition(".")
    fields = ([rest] if part == "headers" else rest.split(".")) if dot else []
    if part not in _PARTS or not all(fields):
        raise ValueError(
            f"{text!r} is not a path: write value, key or headers, or fields below them, such as value.card.number"
        )
    return part, tuple(fields)
