"""Columns written as Spark's DDL (`id STRING, tags ARRAY<STRING>`), read without Spark: names, types, and mistakes."""

import re
from dataclasses import dataclass

from millstream.pipeline.problems import nearest

# fmt: off
_SIMPLE = frozenset((
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "char", "character", "varchar", "binary", "date", "time", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "interval", "variant", "void",
))
# fmt: on
_NESTED = ("array", "map", "struct")
_WITH_NUMBERS = frozenset(("decimal", "dec", "numeric", "char", "character", "varchar", "time"))
TIMESTAMPS = frozenset(("timestamp", "timestamp_ltz", "timestamp_ntz"))
_WORD = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*)")
_NUMBERS = re.compile(r"\s*\(\s*\d+\s*(,\s*\d+\s*)?\)")
_COLLATE = re.compile(r"\s+collate\s+[A-Za-z0-9_]+", re.IGNORECASE)
_INTERVAL = re.compile(r"\s+(year|month|day|hour|minute|second)(\s+to\s+(month|hour|minute|second))?", re.IGNORECASE)
_TAIL = re.compile(r"""(\s+not\s+null|\s+comment\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))*\s*""", re.IGNORECASE)


class DdlError(ValueError):
    """The text is no list of columns; `offset` is where."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class DdlColumn:
    name: str
    type: str
    """In lower case and without what is nested in it: `array`, `timestamp`."""


def parse_columns(text: str) -> tuple[DdlColumn, ...]:
    """The columns at the top. Raises DdlError."""
    reader = _Reader(text)
    columns = reader.fields(end="")
    names = [column.name.lower() for column in columns]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise DdlError(f"the column {columns[index].name!r} is there twice", 0)
    return columns


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, end: str) -> tuple[DdlColumn, ...]:
        found: list[DdlColumn] = []
        while True:
            name = self._word("a column's name")
            self._take(":")
            found.append(DdlColumn(name, self._type(f"of the column {name!r}")))
            tail = _TAIL.match(self._text, self._at)
            self._at = tail.end() if tail else self._at
            if self._take(","):
                continue
            if not self._rest() or (end and self._rest().startswith(end)):
                return tuple(found)
            raise DdlError(
                f"{self._rest().split(None, 1)[0]!r} is not expected after the column {name!r}; "
                "columns are `name TYPE`, with commas in between",
                self._at,
            )

    def _type(self, of_what: str) -> str:
        begin = self._at
        name = self._word(f"the type {of_what}").lower()
        if name in _NESTED:
            self._need("<", f"{name.upper()} says what is in it: {_NESTED_FORMS[name]}")
            if name == "struct":
                self.fields(end=">")
            else:
                self._type(f"in {name.upper()}")
                if name == "map":
                    self._need(",", f"MAP has two types: {_NESTED_FORMS[name]}")
                    self._type("of the values of MAP")
            self._need(">", f"the `<` after {name.upper()} is not closed")
            return name
        if name not in _SIMPLE:
            known = sorted(_SIMPLE | set(_NESTED))
            raise DdlError(f"there is no type {name.upper()!r}; {nearest(name, known, noun='types are')}", begin)
        for allowed, pattern in ((name in _WITH_NUMBERS, _NUMBERS), (name == "interval", _INTERVAL), (True, _COLLATE)):
            more = pattern.match(self._text, self._at) if allowed else None
            self._at = more.end() if more else self._at
        return name

    def _word(self, what: str) -> str:
        match = _WORD.match(self._text, self._at)
        if match is None:
            found = self._rest().split(None, 1)
            raise DdlError(f"{what} is missing" + (f" before {found[0]!r}" if found else " at the end"), self._at)
        self._at = match.end()
        return match[1].strip("`")

    def _take(self, sign: str) -> bool:
        if self._rest().startswith(sign):
            self._at = self._text.index(sign, self._at) + len(sign)
            return True
        return False

    def _need(self, sign: str, message: str) -> None:
        if not self._take(sign):
            raise DdlError(message, self._at)

    def _rest(self) -> str:
        return self._text[self._at :].lstrip()


_NESTED_FORMS = {"array": "ARRAY<STRING>", "map": "MAP<STRING, INT>", "struct": "STRUCT<a: INT, b: STRING>"}
