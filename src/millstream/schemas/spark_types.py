"""Column types as Spark writes them, DDL (`id BIGINT, tags ARRAY<STRING>`) or JSON of a StructType, to Arrow types.

No JVM is asked, so that it works on executors and before a session exists. Everything is nullable: a bad record is null
in all columns.
"""

import json
import re
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from millstream.schemas.errors import SchemaError

TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_SIMPLE = {
    "boolean": pa.bool_(), "byte": pa.int8(), "tinyint": pa.int8(), "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "long": pa.int64(), "bigint": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": TIMESTAMP, "timestamp_ltz": TIMESTAMP, "timestamp_ntz": TIMESTAMP_NTZ,
    "decimal": pa.decimal128(10, 0), "dec": pa.decimal128(10, 0), "numeric": pa.decimal128(10, 0),
}  # fmt: skip
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|[\w.$@-]+|[<>(),:])")
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\((\d+)\s*(?:,\s*(\d+))?\)", re.IGNORECASE)


def list_of(element: pa.DataType) -> pa.ListType:
    return pa.list_(pa.field("element", element))


def struct_of(fields: list[tuple[str, pa.DataType]]) -> pa.StructType:
    return pa.struct([pa.field(name, kind) for name, kind in fields])


def parse_struct(text: str) -> pa.StructType:
    """The type that the text says; SchemaError if it says none."""
    if text.lstrip().startswith("{"):
        try:
            parsed = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"The schema is no JSON: {error}.") from None
        kind = _from_json(parsed)
    else:
        kind = _Ddl(text).columns()
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise SchemaError("The schema has no columns; write them as in `id BIGINT, name STRING`.")
    return kind


def _from_json(parsed: Any) -> pa.DataType:
    if isinstance(parsed, str):
        return _simple(parsed)
    match parsed:
        case {"type": "struct", "fields": list(fields)}:
            return struct_of([(str(field["name"]), _from_json(field["type"])) for field in fields])
        case {"type": "array", "elementType": element}:
            return list_of(_from_json(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_from_json(key), _from_json(value))
        case {"type": "udt", "sqlType": inner}:
            return _from_json(inner)
    raise SchemaError(f"{json.dumps(parsed)[:100]} is no type of Spark's; a schema is what StructType.json() gives.")


def _simple(name: str) -> pa.DataType:
    kind = _SIMPLE.get(name.lower())
    if kind is not None:
        return kind
    if found := _DECIMAL.fullmatch(name.strip()):
        return _decimal(found[1], found[2] or "0")
    if re.fullmatch(r"(var)?char\(\d+\)", name, re.IGNORECASE):
        return pa.string()
    near = get_close_matches(name.lower(), [*_SIMPLE, "array", "map", "struct"], 1, 0.5)
    hint = f"did you mean {near[0].upper()}?" if near else f"there are {', '.join(sorted(_SIMPLE)).upper()}."
    raise SchemaError(f"There is no column type {name!r}; {hint}")


def _decimal(precision: str, scale: str) -> pa.DataType:
    if not 1 <= int(precision) <= 38 or int(scale) > int(precision):
        raise SchemaError(
            f"DECIMAL({precision}, {scale}) has no meaning: 1 to 38 digits, of which no more are fractions."
        )
    return pa.decimal128(int(precision), int(scale))


class _Ddl:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while at < len(text) and text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise SchemaError(f"The schema {text!r} cannot be read at {text[at : at + 20]!r}.")
            self._tokens.append(found[1])
            at = found.end()
        self._at = 0

    def columns(self) -> pa.StructType:
        kind = self._fields(None)
        if self._at < len(self._tokens):
            raise self._unexpected("a comma between columns")
        return kind

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            raise self._unexpected(repr(wanted) if wanted else "more")
        self._at += 1
        return token

    def _unexpected(self, wanted: str) -> SchemaError:
        found = repr(self._peek()) if self._peek() else "the end"
        return SchemaError(f"The schema {self._text!r} cannot be read: {wanted} was expected where {found} stands.")

    def _fields(self, closing: str | None) -> pa.StructType:
        fields: list[tuple[str, pa.DataType]] = []
        while True:
            name = self._take()
            if name[0] in "<>(),:":
                self._at -= 1
                raise self._unexpected("a column's name")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            if self._peek() == ":":
                self._take()
            fields.append((name, self._type()))
            self._attributes()
            if self._peek() != ",":
                break
            self._take()
        if closing:
            self._take(closing)
        names = [name for name, _ in fields]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"The schema has column {name!r} twice.")
        return struct_of(fields)

    def _attributes(self) -> None:
        """NOT NULL and COMMENT say nothing about the type."""
        if self._peek().lower() == "not":
            self._take()
            if self._take().lower() != "null":
                self._at -= 1
                raise self._unexpected("NULL")
        if self._peek().lower() == "comment":
            self._take()
            self._take()

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name == "array":
            self._take("<")
            element = self._type()
            self._take(">")
            return list_of(element)
        if name == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            value = self._type()
            self._take(">")
            return pa.map_(key, value)
        if name == "struct":
            self._take("<")
            return self._fields(">")
        if name in ("decimal", "dec", "numeric") and self._peek() == "(":
            self._take()
            precision, scale = self._take(), "0"
            if self._peek() == ",":
                self._take()
                scale = self._take()
            self._take(")")
            if not (precision.isdigit() and scale.isdigit()):
                raise SchemaError(f"DECIMAL({precision}, {scale}) has no meaning: both are numbers of digits.")
            return _decimal(precision, scale)
        if name in ("varchar", "char") and self._peek() == "(":
            self._take()
            self._take()
            self._take(")")
            return pa.string()
        return _simple(name)
