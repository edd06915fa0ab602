"""Rows of a table in order, in windows, and as records: by offset within each partition of the topic, or by time.

Each window is a range of the ordering column, so a reader needs memory for one window only. It can stop after any
window and continue there later, even if `optimize` changed the files.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millstream.lake.errors import LakeError, LakeOptionError
from millstream.lake.scan import Condition, Scan
from millstream.lake.seam import OFFSET, PARTITION, TIMESTAMP, TOPIC, positions_of
from millstream.lake.table import LakeTable

WINDOW_ROWS: Final = 20_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ReadPosition:
    """Where reading continues: the name of the lane, and the first unread value of the ordering column."""

    lane: str
    next: int


@dataclass(frozen=True)
class Window:
    """Rows in order, and the position of the next window."""

    rows: pa.Table
    then: ReadPosition


@dataclass(frozen=True)
class _Lane:
    name: str
    column: str
    conditions: tuple[Condition, ...]
    is_time: bool

    def bound(self, value: int) -> Any:
        return _EPOCH + timedelta(microseconds=value) if self.is_time else value

    def number(self, value: Any) -> int:
        if not self.is_time:
            return int(value)
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int((aware - _EPOCH) // timedelta(microseconds=1))


def has_positions(table: LakeTable) -> bool:
    """Whether rows have topic, partition and offset."""
    return all(name in table.schema.names for name in (TOPIC, PARTITION, OFFSET))


def read_in_order(
    table: LakeTable,
    *,
    by_time: bool,
    columns: Sequence[str],
    conditions: Sequence[Condition] = (),
    start: ReadPosition | None = None,
) -> Iterator[Window]:
    """Windows of rows. By time, records of the same microsecond stay in the order of files and rows."""
    lanes = _time_lane(table) if by_time else _partition_lanes(table)
    column = TIMESTAMP if by_time else OFFSET
    lacking = table.scan([column], [*conditions, Condition(column, "null")])
    if missing := sum(batch.num_rows for batch in lacking.read(lacking.files)):
        raise LakeError(
            f"{missing} rows of {table.name} have no {column}, so they cannot be ordered; filter them out of the table"
        )
    needed = list(dict.fromkeys([*columns, column]))
    for lane in lanes:
        if start is not None and lane.name < start.lane:
            continue
        begin = start.next if start is not None and lane.name == start.lane else None
        yield from _windows(table.scan(needed, [*conditions, *lane.conditions]), lane, begin)


def _time_lane(table: LakeTable) -> list[_Lane]:
    if TIMESTAMP not in table.schema.names:
        raise LakeError(f"{table.name} has no columns topic, partition and offset, and no timestamp, to order rows by")
    if not pa.types.is_timestamp(table.schema.field(TIMESTAMP).type):
        raise LakeError(f"column timestamp of {table.name} is {table.schema.field(TIMESTAMP).type}, not a time")
    return [_Lane("time", TIMESTAMP, (), True)]


def _partition_lanes(table: LakeTable) -> list[_Lane]:
    lanes = [
        _Lane(
            f"{topic}/{partition:010d}",
            OFFSET,
            (Condition(TOPIC, "=", topic), Condition(PARTITION, "=", partition)),
            False,
        )
        for topic, partition in positions_of(table)
    ]
    # By name, because a later run continues by name: `orders-eu/…` is before `orders/…`.
    return sorted(lanes, key=lambda lane: lane.name)


def _windows(scan: Scan, lane: _Lane, begin: int | None) -> Iterator[Window]:
    extents = [file.known_ranges.get(lane.column) for file in scan.files]
    known = [(lane.number(low), lane.number(high)) for low, high in (each for each in extents if each is not None)]
    if len(known) < len(extents):  # files of other writers may have no statistics: read them
        known = [_measured(scan, lane)]
    if not known or known[0][0] > known[0][1]:
        return
    low, high = min(pair[0] for pair in known), max(pair[1] for pair in known)
    total = max(1, sum(file.rows for file in scan.files))
    width = max(1, (high - low + 1) * WINDOW_ROWS // total)
    at = low if begin is None else max(low, begin)
    while at <= high:
        # Skip gaps: continue at the start of the next file.
        at = max(at, min((start for start, end in known if end >= at), default=at))
        end = at + width
        bounds = (Condition(lane.column, ">=", lane.bound(at)), Condition(lane.column, "<", lane.bound(end)))
        part = scan.narrowed(bounds)
        rows = pa.Table.from_batches(list(part.read(part.files)), schema=scan.schema)
        order = pc.sort_indices(rows, sort_keys=[(lane.column, "ascending")])
        yield Window(rows.take(order), ReadPosition(lane.name, min(end, high + 1)))
        if rows.num_rows > 4 * WINDOW_ROWS:
            width = max(1, width // 2)
        elif rows.num_rows < WINDOW_ROWS // 4:
            width *= 2
        at = end


def _measured(scan: Scan, lane: _Lane) -> tuple[int, int]:
    low, high = 1, 0
    for batch in scan.read(scan.files):
        found = pc.min_max(batch.column(lane.column)).as_py()
        if found["min"] is not None:
            first, last = lane.number(found["min"]), lane.number(found["max"])
            low, high = (first, last) if low > high else (min(low, first), max(high, last))
    return low, high


VALUE_FORMATS: Final = ("json", "raw")
_OF_RECORDS: Final = frozenset(
    {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "_day", "_hour", "_month"}
)
"""Columns of the record itself: not in a JSON value, unless there are no others."""

Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]
"""Key, value, timestamp in ms (-1: now), headers."""


@dataclass(frozen=True)
class RecordMaker:
    """How rows become records."""

    columns: tuple[str, ...]
    """The columns to read."""
    key: str | None
    value: str | None
    """The column with the value; None: the value is a JSON object of `fields`."""
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
    """Chooses the columns of key and value; by default `key` and `value` if the table has them."""
    names = schema.names
    if value_format not in (None, *VALUE_FORMATS):
        raise LakeOptionError(f"value format {value_format}: choose json or raw")
    if key is not None and key not in names:
        raise LakeOptionError(f"{name} has no column {key} for the key; columns are {', '.join(names)}")
    key = key or ("key" if "key" in names else None)
    raw = "value" in names and _is_bytes(schema.field("value").type)
    if value_format == "raw" and not raw:
        raise LakeOptionError(f"{name} has no column value of bytes or text; use json for an object of all columns")
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
    """Values without a JSON type: times as ISO 8601, decimals as text, bytes as UTF-8 text or base64."""
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
