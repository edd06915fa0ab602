"""Spark's DDL (`id BIGINT, tags ARRAY<STRING>`), parsed without Spark: names and types of columns, and errors.

The only DDL parser here: the Spark source makes Arrow types of the result (`spark_types`), and pipelines check the
columns of a file with it. It imports neither pyarrow nor pyspark.
"""

import re
from dataclasses import dataclass

from millstream.common.close_match import did_you_mean

# fmt: off
_SIMPLE = frozenset((
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "char", "character", "varchar", "binary", "date", "time", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "interval", "variant", "void",
))
# fmt: on
_NESTED_FORMS = {"array": "ARRAY<STRING>", "map": "MAP<STRING, INT>", "struct": "STRUCT<a: INT, b: STRING>"}
DECIMALS = frozenset(("decimal", "dec", "numeric"))
TEXTS = frozenset(("string", "char", "character", "varchar"))
TIMESTAMPS = frozenset(("timestamp", "timestamp_ltz", "timestamp_ntz"))
_WITH_NUMBERS = DECIMALS | TEXTS - {"string"} | {"time"}
_COLUMN_NAME = re.compile(r"\s*(`(?:[^`]|``)+`|[\w.$@-]+)")
_TYPE_NAME = re.compile(r"\s*([A-Za-z_]\w*)")
_NUMBERS = re.compile(r"\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_COLLATE = re.compile(r"\s+collate\s+\w+", re.IGNORECASE)
_INTERVAL = re.compile(r"\s+(year|month|day|hour|minute|second)(\s+to\s+(month|hour|minute|second))?", re.IGNORECASE)
_TAIL = re.compile(r"""(\s+not\s+null|\s+comment\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))*\s*""", re.IGNORECASE)


class DdlError(ValueError):
    """The text is not a list of columns; `offset` is the position of the mistake."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class DdlType:
    name: str
    """In lower case: `bigint`, `decimal`, `array`."""
    numbers: tuple[int, ...] = ()
    """Precision and scale of a decimal, length of a char."""
    inner: tuple["DdlType", ...] = ()
    """The element of an array; the key and the value of a map."""
    fields: tuple["DdlColumn", ...] = ()
    """The fields of a struct."""


@dataclass(frozen=True, slots=True)
class DdlColumn:
    name: str
    type: DdlType


def parse_columns(text: str) -> tuple[DdlColumn, ...]:
    """The columns of a schema. Raises DdlError."""
    return _Parser(text).columns(end="")


def parse_type(text: str) -> DdlType:
    """A single type, such as `decimal(12, 3)`. Raises DdlError."""
    parser = _Parser(text)
    found = parser.type("that is expected")
    parser.must_end()
    return found


class _Parser:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def columns(self, end: str) -> tuple[DdlColumn, ...]:
        """Columns up to the end of the text, or up to the character `end`."""
        found: list[DdlColumn] = []
        while True:
            begin = self._at
            name = self._column_name()
            if any(column.name == name for column in found):
                raise DdlError(f"the column {name!r} is there twice", begin)
            self._take(":")
            found.append(DdlColumn(name, self.type(f"of the column {name!r}")))
            tail = _TAIL.match(self._text, self._at)
            self._at = tail.end() if tail else self._at
            if self._take(","):
                continue
            if not self._rest() or (end and self._rest().startswith(end)):
                return tuple(found)
            raise DdlError(
                f"{self._rest().split(None, 1)[0]!r} is not expected after the column {name!r}; "
                "write columns as `name TYPE`, separated by commas",
                self._at,
            )

    def type(self, of_what: str) -> DdlType:
        begin = self._at
        name = self._word(_TYPE_NAME, f"the type {of_what}").lower()
        if name in _NESTED_FORMS:
            return self._nested(name)
        if name not in _SIMPLE:
            raise DdlError(f"there is no type {name.upper()!r}; {_hint(name)}", begin)
        numbers = _NUMBERS.match(self._text, self._at) if name in _WITH_NUMBERS else None
        if numbers is not None:
            self._at = numbers.end()
        for allowed, pattern in ((name == "interval", _INTERVAL), (True, _COLLATE)):
            more = pattern.match(self._text, self._at) if allowed else None
            self._at = more.end() if more else self._at
        found = tuple(int(each) for each in numbers.groups() if each is not None) if numbers else ()
        if name in DECIMALS and found:
            _check_decimal(found, begin)
        return DdlType(name, found)

    def _nested(self, name: str) -> DdlType:
        form = _NESTED_FORMS[name]
        self._need("<", f"{name.upper()} needs the types in it: {form}")
        inner: tuple[DdlType, ...] = ()
        fields: tuple[DdlColumn, ...] = ()
        if name == "struct":
            fields = self.columns(end=">")
        elif name == "array":
            inner = (self.type("in ARRAY"),)
        else:
            key = self.type("in MAP")
            self._need(",", f"MAP has two types: {form}")
            inner = (key, self.type("of the values of MAP"))
        self._need(">", f"the `<` after {name.upper()} is not closed")
        return DdlType(name, (), inner, fields)

    def must_end(self) -> None:
        if self._rest():
            raise DdlError(f"{self._rest()!r} is not expected after a type", self._at)

    def _column_name(self) -> str:
        word = self._word(_COLUMN_NAME, "a column's name")
        return word[1:-1].replace("``", "`") if word.startswith("`") else word

    def _word(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            found = self._rest().split(None, 1)
            raise DdlError(f"{what} is missing" + (f" before {found[0]!r}" if found else " at the end"), self._at)
        self._at = match.end()
        return match[1]

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


def _check_decimal(numbers: tuple[int, ...], offset: int) -> None:
    precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if not 1 <= precision <= 38 or scale > precision:
        raise DdlError(
            f"DECIMAL({precision}, {scale}) is not possible: the precision is 1 to 38, the scale at most the precision",
            offset,
        )


def _hint(name: str) -> str:
    known = sorted(_SIMPLE | set(_NESTED_FORMS))
    return did_you_mean(name, known, otherwise=f"types are {', '.join(known)}")
