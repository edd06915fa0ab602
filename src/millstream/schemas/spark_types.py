"""Column types as Spark has them, DDL (`id BIGINT, tags ARRAY<STRING>`) or the JSON of a StructType, as Arrow types.

No JVM is needed, so it works on executors and before a session exists. All columns are nullable: a bad record is null
in all columns.
"""

import json
from typing import Any

import pyarrow as pa

from millstream.schemas.ddl import DECIMALS, TEXTS, DdlColumn, DdlError, DdlType, parse_columns, parse_type
from millstream.schemas.errors import SchemaError

TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_SIMPLE = {
    "boolean": pa.bool_(), "byte": pa.int8(), "tinyint": pa.int8(), "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "long": pa.int64(), "bigint": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": TIMESTAMP, "timestamp_ltz": TIMESTAMP, "timestamp_ntz": TIMESTAMP_NTZ,
    **dict.fromkeys(TEXTS, pa.string()),
}  # fmt: skip


def list_of(element: pa.DataType) -> pa.ListType:
    return pa.list_(pa.field("element", element))


def struct_of(fields: list[tuple[str, pa.DataType]]) -> pa.StructType:
    return pa.struct([pa.field(name, kind) for name, kind in fields])


def parse_struct(text: str) -> pa.StructType:
    """The struct type of a schema; SchemaError says what is wrong with the text."""
    if text.lstrip().startswith("{"):
        try:
            parsed = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"The schema is not JSON: {error}.") from None
        kind = _from_json(parsed)
    else:
        try:
            kind = _struct(parse_columns(text))
        except DdlError as error:
            raise SchemaError(f"The schema {text!r} cannot be read: {error}.") from None
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise SchemaError("The schema has no columns; write them as in `id BIGINT, name STRING`.")
    return kind


def _from_json(parsed: Any) -> pa.DataType:
    if isinstance(parsed, str):
        try:
            return _arrow(parse_type(parsed))
        except DdlError as error:
            raise SchemaError(f"The type {parsed!r} in the schema cannot be read: {error}.") from None
    match parsed:
        case {"type": "struct", "fields": list(fields)}:
            return struct_of([(str(field["name"]), _from_json(field["type"])) for field in fields])
        case {"type": "array", "elementType": element}:
            return list_of(_from_json(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_from_json(key), _from_json(value))
        case {"type": "udt", "sqlType": inner}:
            return _from_json(inner)
    raise SchemaError(f"{json.dumps(parsed)[:100]} is not a Spark type; give the text of StructType.json().")


def _struct(columns: tuple[DdlColumn, ...]) -> pa.StructType:
    return struct_of([(column.name, _arrow(column.type)) for column in columns])


def _arrow(kind: DdlType) -> pa.DataType:
    match kind.name:
        case "array":
            return list_of(_arrow(kind.inner[0]))
        case "map":
            return pa.map_(_arrow(kind.inner[0]), _arrow(kind.inner[1]))
        case "struct":
            return _struct(kind.fields)
    if kind.name in DECIMALS:
        precision, scale = (*(kind.numbers or (10,)), 0)[:2]
        return pa.decimal128(precision, scale)
    if kind.name not in _SIMPLE:
        known = ", ".join(sorted({*_SIMPLE, "array", "map", "struct", "decimal"}))
        raise SchemaError(f"A column cannot be of type {kind.name.upper()} here; use one of {known}.")
    return _SIMPLE[kind.name]
