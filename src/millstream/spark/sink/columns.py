"""The columns a query writes: checked before anything runs, and made into those of records."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.schemas import Format, SchemaError
from millstream.spark.errors import SinkError, nearest
from millstream.spark.sink.options import WriteOptions

COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")
_BYTES = (StringType, BinaryType)


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows become records; can be pickled, and made into a function in the task."""

    options: WriteOptions
    value_columns: tuple[str, ...] = ()
    """What makes up a value that is encoded: columns, or `value` alone if that is a struct."""
    value_struct: str = ""
    key_struct: str = ""
    """Their types as Spark's JSON: what a schema is made of where there is no registry to ask."""

    def transform(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Rows as Spark gives them to rows with the record's columns."""
        options = self.options
        if not options.typed:
            return lambda rows: rows
        key = _format(options, "key", self.key_struct) if options.key.format != "raw" else None
        value = _format(options, "value", self.value_struct) if options.value.format != "raw" else None

        def encode(rows: pa.RecordBatch) -> pa.RecordBatch:
            columns = {name: rows.column(name) for name in COLUMNS if name in rows.schema.names}
            if key is not None:
                columns["key"] = _encoded(key, "key", rows.column("key"))
            if value is not None:
                columns["value"] = _encoded(value, "value", self._struct(rows))
            return pa.RecordBatch.from_pydict(columns)

        return encode

    def _struct(self, rows: pa.RecordBatch) -> pa.Array:
        if self.value_columns == ("value",):
            return rows.column("value")
        fields = [rows.schema.field(name) for name in self.value_columns]
        return pa.StructArray.from_arrays([rows.column(name) for name in self.value_columns], fields=fields)


@lru_cache(maxsize=64)
def _format(options: WriteOptions, side: str, struct: str) -> Format:
    """Made once per process: it asks the registry for its schema, or registers one."""
    from millstream.schemas import make_format  # brings libraries that raw bytes need not

    typing = options.value if side == "value" else options.key
    settings = typing.settings() | options.registry.settings()
    if options.registry.url is None and typing.schema is None:
        settings["schema"] = struct
    return make_format(typing.format, role=side, topic=options.topic, options=settings)


def _encoded(made: Format, side: str, rows: pa.Array) -> pa.Array:
    try:
        return made.encode(rows)
    except (SchemaError, ValueError) as error:
        raise SinkError(f"column `{side}` does not fit its schema: {error}") from error


def shape_of(schema: StructType, options: WriteOptions) -> Shape:
    """Checks the columns; SinkError names the one that is missing or has a wrong type, and what would be right."""
    fields = {field.name: field.dataType for field in schema.fields}
    if options.topic is None and "topic" not in fields:
        raise SinkError("where to? Set the option topic, or give each row a column `topic`")
    _check(fields, "topic", (StringType,), "string")
    _check(fields, "partition", (IntegerType, ShortType, ByteType), "int")
    _check(fields, "timestamp", (TimestampType, TimestampNTZType, LongType), "timestamp (or a long of milliseconds)")
    if "headers" in fields and not _is_headers(fields["headers"]):
        raise SinkError(
            f"column `headers` is {fields['headers'].simpleString()}; it must be array<struct<key:string,value:binary>>"
        )
    key_struct = ""
    if options.key.format == "raw":
        _check(fields, "key", _BYTES, "string or binary; or set keyFormat")
    elif "key" not in fields:
        raise SinkError("keyFormat is set, but there is no column `key`")
    else:
        key_struct = fields["key"].json()
    if options.value.format == "raw":
        _check_raw_value(fields)
        return Shape(options, (), "", key_struct)
    given = fields.get("value")
    if isinstance(given, StructType):
        return Shape(options, ("value",), given.json(), key_struct)
    names = tuple(name for name in fields if name not in COLUMNS or name == "value")
    if not names:
        raise SinkError("valueFormat is set, but there are no columns to make a value of")
    struct = StructType([field for field in schema.fields if field.name in names])
    return Shape(options, names, struct.json(), key_struct)


def _check_raw_value(fields: dict[str, DataType]) -> None:
    if "value" not in fields:
        near = nearest("value", fields)
        hint = f"rename {near!r}" if near else "select one column as value, or set valueFormat to encode all columns"
        raise SinkError(f"there is no column `value` in {', '.join(fields) or 'the rows'}: {hint}")
    _check(fields, "value", _BYTES, "string or binary; or set valueFormat")


def _check(fields: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], text: str) -> None:
    given = fields.get(name)
    if given is not None and not isinstance(given, allowed):
        raise SinkError(f"column `{name}` is {given.simpleString()}; it must be {text}")


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    types = [(field.name, type(field.dataType)) for field in given.elementType.fields]
    return types == [("key", StringType), ("value", BinaryType)]
