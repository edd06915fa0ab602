"""A row of a table as a record: which columns become key, value, headers and time."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from millstream.lake.errors import LakeOptionError

VALUE_FORMATS: Final = ("json", "raw")
_OF_RECORDS: Final = frozenset(
    {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "_day", "_hour", "_month"}
)
"""Columns about the record itself: they are not repeated in a JSON value, unless there is nothing else."""

Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]
"""Key, value, timestamp in ms (-1: now), headers."""


@dataclass(frozen=True)
class RecordMaker:
    """How rows become records."""

    columns: tuple[str, ...]
    """What must be read for that."""
    key: str | None
    value: str | None
    """The column that is the value as it is; None: a JSON object of `fields`."""
    fields: tuple[str, ...]
    has_time: bool
    has_headers: bool

    def records(self, rows: pa.Table) -> Iterator[Record]:
        count = rows.num_rows
        keys = [None] * count if self.key is None else rows.column(self.key).to_pylist()
        times = (
            rows.column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
            if (self.has_time)
            else [None] * count
        )
        headers = rows.column("headers").to_pylist() if self.has_headers else [None] * count
        if self.value is not None:
            values = [_bytes(value) for value in rows.column(self.value).to_pylist()]
        else:
            values = [_json(row) for row in rows.select(list(self.fields)).to_pylist()]
        for key, value, at, pairs in zip(keys, values, times, headers, strict=True):
            listed = None if not pairs else [(pair["key"], pair["value"]) for pair in pairs]
            yield _bytes(key), value, -1 if at is None else at, listed


def record_maker(schema: pa.Schema, key: str | None, value_format: str | None, name: str) -> RecordMaker:
    """Choose columns; without words from the user, as the table was written: `key` and `value` if it has them."""
    names = schema.names
    if value_format not in (None, *VALUE_FORMATS):
        raise LakeOptionError(f"value format {value_format}: choose json or raw")
    if key is not None and key not in names:
        raise LakeOptionError(f"{name} has no column {key} for the key; there are {', '.join(names)}")
    key = key or ("key" if "key" in names else None)
    raw = "value" in names and _is_bytes(schema.field("value").type)
    if value_format == "raw" and not raw:
        raise LakeOptionError(f"{name} has no column value of bytes or text; say json for an object of all columns")
    has_time = "timestamp" in names and pa.types.is_timestamp(schema.field("timestamp").type)
    has_headers = "headers" in names and _is_headers(schema.field("headers").type)
    value = "value" if raw and value_format != "json" else None
    fields = tuple(each for each in names if each not in _OF_RECORDS) or tuple(names)
    wanted = [key, *([value] if value else fields)]
    wanted += ["timestamp"] * has_time + ["headers"] * has_headers
    columns = tuple(dict.fromkeys(each for each in wanted if each is not None))
    return RecordMaker(columns, key, value, fields, has_time, has_headers)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return {each.name for each in kind.value_type} == {"key", "value"}


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict | list):
        return _json(value)
    return str(_plain(value)).encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """What JSON has no form for: times as ISO 8601, decimals as text, bytes as text if they are, else base64."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value
