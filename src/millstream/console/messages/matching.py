"""Which records to show: those that hold a text, and those of which a field has a value.

A text is looked for in key, value and headers, whatever their case. A field is a path into the decoded value (or key)
compared with something: `order.lines[0].sku = A-17`, `amount >= 100`, `customer ~ smith`, `error != null`.
"""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from millstream.console.messages.reading import FoundRecord
from millstream.registry.decoding import Decoded

Decode = Callable[[bytes | None], Decoded]
Step = str | int | None
"""A name, an index, or every one of a list."""

ANYWHERE, IN_KEY, IN_VALUE, IN_HEADERS = "anywhere", "key", "value", "headers"
PLACES = (ANYWHERE, IN_KEY, IN_VALUE, IN_HEADERS)
_SCHEMA_MAGIC = b"\x00"
_COMPARISON = re.compile(r"(?P<path>.+?)\s*(?P<sign>!=|>=|<=|=|>|<|~)\s*(?P<wanted>.*)", re.DOTALL)
_PATH_PART = re.compile(
    r"\.?(?:(?P<name>[^.\[\]\"'\s]+)|\[(?P<index>\d+|\*)\]|\[(?P<quote>[\"'])(?P<quoted>.*?)(?P=quote)\])"
)
_LONGEST = 500
_HELP = "write a path and what it must be: order.id = 17, amount >= 100, name ~ smith, items[0].sku = 'A'"
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class FilterError(ValueError):
    """The text is no comparison; it says how one is written."""


@dataclass(frozen=True, slots=True)
class FieldIs:
    """A comparison with what is found at a path; true if any of what the path leads to fulfils it."""

    path: tuple[Step, ...]
    sign: str
    wanted: Any
    """A JSON value, where the text was one; else the text."""
    wanted_text: str

    def holds(self, document: Any) -> bool:
        found = list(_at(document, self.path))
        if self.sign == "!=":
            return all(not self._equal(each) for each in found)
        return any(self._compare(each) for each in found)

    def _compare(self, found: Any) -> bool:
        if self.sign == "=":
            return self._equal(found)
        if self.sign == "~":
            return self.wanted_text.casefold() in _text(found).casefold()
        numbers = _is_number(found) and _is_number(self.wanted)
        if numbers or (isinstance(found, str) and isinstance(self.wanted, str)):
            return _ORDERINGS[self.sign](found, self.wanted)
        return False

    def _equal(self, found: Any) -> bool:
        # 17 finds the number and the text "17": who looks for an id seldom knows how it is written.
        return bool(found == self.wanted and isinstance(found, bool) == isinstance(self.wanted, bool)) or (
            isinstance(found, str) and found == self.wanted_text
        )


def parse_field(text: str) -> FieldIs | None:
    """None for an empty text."""
    if not text.strip():
        return None
    if len(text) > _LONGEST:
        raise FilterError(f"a comparison has at most {_LONGEST} characters")
    found = _COMPARISON.fullmatch(text.strip())
    if found is None:
        raise FilterError(f"{text.strip()[:60]!r} compares nothing: {_HELP}")
    wanted_text = found["wanted"].strip()
    if len(wanted_text) >= 2 and wanted_text[0] == wanted_text[-1] == "'":
        wanted_text = wanted_text[1:-1]
        wanted: Any = wanted_text
    else:
        try:
            wanted = orjson.loads(wanted_text)
        except ValueError:
            wanted = wanted_text
        if isinstance(wanted, str):
            wanted_text = wanted
    return FieldIs(_parse_path(found["path"]), found["sign"], wanted, wanted_text)


def _parse_path(text: str) -> tuple[Step, ...]:
    path = text.strip()
    path = path.removeprefix("$") if path.startswith(("$.", "$[")) or path == "$" else path
    steps: list[Step] = []
    at = 0
    while at < len(path):
        part = _PATH_PART.match(path, at)
        if part is None:
            raise FilterError(f"{text.strip()[:60]!r} is no path: {_HELP}")
        if part["index"] is not None:
            steps.append(None if part["index"] == "*" else int(part["index"]))
        else:
            steps.append(part["name"] if part["name"] is not None else part["quoted"])
        at = part.end()
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Called with a record, says whether it is to be shown. Decodes only where the bytes alone cannot tell."""

    decode: Decode
    text: str = ""
    place: str = ANYWHERE
    field: FieldIs | None = None
    field_of_key: bool = False

    def __bool__(self) -> bool:
        return bool(self.text or self.field)

    def __call__(self, record: FoundRecord) -> bool:
        if self.text and not any(self._holds_text(part) for part in self._parts(record)):
            return False
        if self.field is None:
            return True
        decoded = self.decode(record.key if self.field_of_key else record.value)
        return decoded.kind != "binary" and self.field.holds(decoded.value)

    def _parts(self, record: FoundRecord) -> Iterator[bytes | None]:
        if self.place in (ANYWHERE, IN_KEY):
            yield record.key
        if self.place in (ANYWHERE, IN_VALUE):
            yield record.value
        if self.place in (ANYWHERE, IN_HEADERS):
            for name, value in record.headers:
                yield name.encode("utf-8", "surrogateescape")
                yield value

    def _holds_text(self, data: bytes | None) -> bool:
        if not data:
            return False
        wanted = self.text
        if wanted.isascii():
            if wanted.lower().encode() in data.lower():
                return True
        elif wanted.casefold() in data.decode("utf-8", "replace").casefold():
            return True
        if data.startswith(_SCHEMA_MAGIC):
            decoded = self.decode(data)
            return decoded.kind != "binary" and wanted.casefold() in _text(decoded.value).casefold()
        return False


def _at(document: Any, path: tuple[Step, ...]) -> Iterator[Any]:
    if not path:
        yield document
        return
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        if isinstance(document, dict) and step in document:
            yield from _at(document[step], rest)
    elif isinstance(document, list):
        if step is None:
            for each in document:
                yield from _at(each, rest)
        elif step < len(document):
            yield from _at(document[step], rest)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
