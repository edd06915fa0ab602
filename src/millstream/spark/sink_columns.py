"""The columns a query writes: checked before anything runs, and made into those of records."""

from collections.abc import Callable
from dataclasses import dataclass

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

from millstream.spark.errors import SinkError, nearest
from millstream.spark.sink_options import WriteOptions

COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")
_BYTES = (StringType, BinaryType)


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows become records; can be pickled, and made into a function in the task."""

    options: WriteOptions

    def transform(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return lambda rows: rows


def shape_of(schema: StructType, options: WriteOptions) -> Shape:
    """Checks the columns; SinkError names the one that is missing or has a wrong type, and what would be right."""
    fields = {field.name: field.dataType for field in schema.fields}
    if "value" not in fields:
        near = nearest("value", fields)
        hint = f"rename {near!r}" if near else "select one column as value, or set valueFormat to encode all columns"
        raise SinkError(f"there is no column `value` in {', '.join(fields) or 'the rows'}: {hint}")
    if options.topic is None and "topic" not in fields:
        raise SinkError("where to? Set the option topic, or give each row a column `topic`")
    _check(fields, "topic", (StringType,), "string")
    _check(fields, "value", _BYTES, "string or binary; or set valueFormat")
    _check(fields, "key", _BYTES, "string or binary; or set keyFormat")
    _check(fields, "partition", (IntegerType, ShortType, ByteType), "int")
    _check(fields, "timestamp", (TimestampType, TimestampNTZType, LongType), "timestamp (or a long of milliseconds)")
    if "headers" in fields and not _is_headers(fields["headers"]):
        raise SinkError(
            f"column `headers` is {fields['headers'].simpleString()}; it must be array<struct<key:string,value:binary>>"
        )
    return Shape(options)


def _check(fields: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], text: str) -> None:
    given = fields.get(name)
    if given is not None and not isinstance(given, allowed):
        raise SinkError(f"column `{name}` is {given.simpleString()}; it must be {text}")


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    types = [(field.name, type(field.dataType)) for field in given.elementType.fields]
    return types == [("key", StringType), ("value", BinaryType)]
