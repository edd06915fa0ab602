"""Rows of a result in other formats: JSON, JSON lines, CSV, Parquet."""

import base64
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from typing import IO, Any

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

FORMATS = ("table", "json", "csv", "parquet")
MEDIA_TYPES = {"json": "application/json", "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


def json_value(value: Any) -> Any:
    """A value of a row for JSON: times are ISO 8601, bytes base64, decimals and other types text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(name): json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [json_value(each) for each in value]
    return str(value)


def rows_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """The rows as lists of JSON values: two columns may have the same name."""
    columns = [[json_value(value) for value in column.to_pylist()] for column in batch.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def json_line(names: list[str], row: list[Any]) -> bytes:
    return orjson.dumps(dict(zip(names, row, strict=True)), default=str, option=orjson.OPT_APPEND_NEWLINE)


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number where one appears again: an object and a file have each name once."""
    found: list[str] = []
    for name in names:
        number, chosen = 1, name
        while chosen in found:
            number += 1
            chosen = f"{name}_{number}"
        found.append(chosen)
    return found


def write_json_lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    names, count = distinct(schema.names), 0
    for batch in batches:
        file.writelines(json_line(names, row) for row in rows_of(batch))
        count += batch.num_rows
    return count


def write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    """Nested values are JSON text."""
    names = distinct(schema.names)
    flat = pa.schema([(name, _flat_type(field.type)) for name, field in zip(names, schema, strict=True)])
    count = 0
    with pyarrow.csv.CSVWriter(file, flat) as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_arrays([_flat(column) for column in batch.columns], schema=flat))
            count += batch.num_rows
    return count


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], file: IO[bytes]) -> int:
    named = pa.schema([pa.field(name, field.type) for name, field in zip(distinct(schema.names), schema, strict=True)])
    count = 0
    with pyarrow.parquet.ParquetWriter(file, named, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=named))
            count += batch.num_rows
    return count


WRITERS = {"json": write_json_lines, "csv": write_csv, "parquet": write_parquet}


def limited(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The first rows; the last batch is cut."""
    for batch in batches:
        if most <= 0:
            return
        yield batch.slice(0, most)
        most -= batch.num_rows


def _is_flat(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date(kind)
        or types.is_decimal(kind)
    )


def _flat_type(kind: pa.DataType) -> pa.DataType:
    return kind if _is_flat(kind) else pa.string()


def _flat(column: pa.Array) -> pa.Array:
    if _is_flat(column.type):
        return column
    texts = [None if value is None else _cell(json_value(value)) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
