"""Arrow types of Avro schemas, and Avro schemas of Arrow types.

A union with null is nullable. A union of int and long is long, one of float and double is double. Other unions and
recursion are refused with their path, because a column has one type. Timestamps, dates and local timestamps become
times; time of day, duration and nanoseconds stay numbers or bytes.
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from millstream.schemas import avro_decimal
from millstream.schemas.errors import SchemaError
from millstream.schemas.formats import ResolvedSchema
from millstream.schemas.spark_types import TIMESTAMP, TIMESTAMP_NTZ, list_of, struct_of

_PRIMITIVES = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_TIMES = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
}
_RAW = {
    pa.date32(): pa.int32(),
    **dict.fromkeys([kind for (base, _), kind in _TIMES.items() if base == "long"], pa.int64()),
}


def parse(schema: ResolvedSchema) -> Any:
    """The schema for fastavro, with times as numbers; Arrow converts them by column."""
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            parse_schema(_without_times(json.loads(text)), named_schemas=named)
        return parse_schema(_without_times(json.loads(schema.text)), named_schemas=named)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> SchemaError:
    return SchemaError(f"The Avro schema cannot be read: {error!r}. Check its JSON, names and references.")


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    keeps = "logicalType" not in schema or (schema["logicalType"] == "decimal" and avro_decimal.is_valid(schema))
    return {key: _without_times(each) if key in ("type", "items", "values", "fields") else each
            for key, each in schema.items() if keeps or key != "logicalType"}  # fmt: skip


def column_type(schema: ResolvedSchema) -> pa.DataType:
    """A struct for a record, else the type of the value; times have the unit of the schema."""
    reader = _Reader()
    try:
        for _, text in schema.references:
            reader.learn(json.loads(text), "")
        return reader.type_of(json.loads(schema.text), "", "$", ())
    except SchemaError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(error) from None


def raw(kind: pa.DataType) -> pa.DataType:
    """The type with times as Avro's numbers."""
    return _mapped(kind, lambda each: _RAW.get(each, each))


def in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with times in microseconds, as in Spark."""
    return _mapped(kind, lambda each: pa.timestamp("us", each.tz) if pa.types.is_timestamp(each) else each)


def _mapped(kind: pa.DataType, change: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        return struct_of([(field.name, _mapped(field.type, change)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _mapped(kind.item_type, change))
    if pa.types.is_list(kind):
        return list_of(_mapped(kind.value_type, change))
    return change(kind)


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}

    def learn(self, schema: Any, namespace: str) -> None:
        """All names in a schema, before they are used."""
        if isinstance(schema, list):
            for each in schema:
                self.learn(each, namespace)
        elif isinstance(schema, dict):
            if schema.get("type") in ("record", "error", "enum", "fixed"):
                full, namespace = _full_name(schema, namespace)
                self._named[full] = (schema, namespace)
                for field in schema.get("fields", ()):
                    self.learn(field["type"], namespace)
            else:
                for key in ("type", "items", "values"):
                    self.learn(schema.get(key), namespace)

    def type_of(self, schema: Any, namespace: str, path: str, open_names: tuple[str, ...]) -> pa.DataType:
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
            full = full if full in self._named else schema
            if full not in self._named:
                raise SchemaError(f"The Avro schema has no type {schema!r} (at {path}).")
            return self.type_of(*self._named[full], path, open_names)
        if isinstance(schema, list):
            return self._union(schema, namespace, path, open_names)
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.type_of(kind, namespace, path, open_names)
        if kind == "array":
            return list_of(self.type_of(schema["items"], namespace, f"{path}[]", open_names))
        if kind == "map":
            return pa.map_(pa.string(), self.type_of(schema["values"], namespace, f"{path}.*", open_names))
        logical = schema.get("logicalType")
        if kind in ("bytes", "fixed") and logical == "decimal" and avro_decimal.is_valid(schema):
            self.learn(schema, namespace)
            return _decimal(schema, path)
        if kind in ("record", "error"):
            full, inner = _full_name(schema, namespace)
            if full in open_names:
                raise SchemaError(f"The Avro schema contains itself at {path} ({full}); columns cannot.")
            self._named[full] = (schema, inner)
            return struct_of(
                [
                    (field["name"], self.type_of(field["type"], inner, f"{path}.{field['name']}", (*open_names, full)))
                    for field in schema["fields"]
                ]
            )
        if kind in ("enum", "fixed"):
            self.learn(schema, namespace)
            return pa.string() if kind == "enum" else pa.binary()
        if (kind, logical) in _TIMES:
            return _TIMES[kind, logical]
        return self.type_of(kind, namespace, path, open_names)

    def _union(self, branches: list[Any], namespace: str, path: str, open_names: tuple[str, ...]) -> pa.DataType:
        kinds = {self.type_of(each, namespace, path, open_names) for each in branches if each != "null"}
        if not kinds:
            return pa.null()
        if len(kinds) == 1:
            return kinds.pop()
        if kinds == {pa.int32(), pa.int64()}:
            return pa.int64()
        if kinds == {pa.float32(), pa.float64()}:
            return pa.float64()
        raise SchemaError(
            f"The Avro schema has a union of {', '.join(sorted(map(str, kinds)))} at {path}; a column has one type. "
            "Only unions with null, and of int and long or float and double, become columns."
        )


def _full_name(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    name = str(schema.get("name", ""))
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace = str(schema.get("namespace", namespace))
    return (f"{namespace}.{name}" if namespace else name), namespace


def _decimal(schema: Mapping[str, Any], path: str) -> pa.DataType:
    precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise SchemaError(
            f"The Avro schema has a decimal({precision}, {scale}) at {path}; at most 38 digits are possible."
        )
    return pa.decimal128(precision, scale)


def schema_text(kind: pa.DataType, name: str) -> str:
    """An Avro schema for these columns, of which each may be null, or for a single value."""
    return json.dumps(_Writer().type_of(kind, _identifier(name)))


class _Writer:
    def __init__(self) -> None:
        self._names: set[str] = set()

    def record(self, kind: pa.StructType, name: str) -> dict[str, Any]:
        while name in self._names:
            name += "_"
        self._names.add(name)
        fields = []
        for field in kind:
            if _identifier(field.name) != field.name:
                raise SchemaError(
                    f"Avro does not allow the name {field.name!r}; rename the column with letters, digits and _."
                )
            fields.append(
                {
                    "name": field.name,
                    "type": ["null", self.type_of(field.type, f"{name}_{field.name}")],
                    "default": None,
                }
            )
        return {"type": "record", "name": name, "fields": fields}

    def type_of(self, kind: pa.DataType, name: str) -> Any:
        types = pa.types
        if types.is_struct(kind):
            return self.record(kind, name)
        if types.is_map(kind) and types.is_string(kind.key_type):
            return {"type": "map", "values": ["null", self.type_of(kind.item_type, name)]}
        if types.is_list(kind) or types.is_large_list(kind):
            return {"type": "array", "items": ["null", self.type_of(kind.value_type, name)]}
        if types.is_decimal(kind):
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        if types.is_timestamp(kind):
            logical = "timestamp-micros" if kind.tz else "local-timestamp-micros"
            return {"type": "long", "logicalType": logical}
        for fits, avro in (
            (types.is_boolean, "boolean"),
            (types.is_int64, "long"),
            (types.is_uint32, "long"),
            (types.is_integer, "int"),
            (types.is_float64, "double"),
            (types.is_floating, "float"),
            (types.is_string, "string"),
            (types.is_large_string, "string"),
            (types.is_binary, "bytes"),
            (types.is_large_binary, "bytes"),
            (types.is_date32, {"type": "int", "logicalType": "date"}),
        ):
            if fits(kind) and not types.is_uint64(kind):
                return avro
        raise SchemaError(f"A column of type {kind} cannot be written as Avro; cast it first.")


def _identifier(name: str) -> str:
    cleaned = "".join(each if each.isascii() and (each.isalnum() or each == "_") else "_" for each in name)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned
