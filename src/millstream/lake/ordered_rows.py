"""The rows of a table in order, a window at a time: by offset within each partition of the topic they came from, or by
time.

Each window is a range of the ordering column, so a reader needs the memory of one window, and can stop after any of
them and go on there later, whatever `optimize` made of the files in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millstream.lake.conditions import Condition
from millstream.lake.errors import LakeError
from millstream.lake.scan import Scan
from millstream.lake.seam import OFFSET, PARTITION, TIMESTAMP, TOPIC, positions_of
from millstream.lake.table import LakeTable

WINDOW_ROWS: Final = 20_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Place:
    """Where reading is to go on: the lane by its name, and the first value of the ordering column that is not read."""

    lane: str
    next: int


@dataclass(frozen=True)
class Window:
    """Some rows in order, and where the next ones are."""

    rows: pa.Table
    then: Place


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
    """Whether rows say where in a topic they were."""
    return all(name in table.schema.names for name in (TOPIC, PARTITION, OFFSET))


def read_in_order(
    table: LakeTable,
    *,
    by_time: bool,
    columns: Sequence[str],
    conditions: Sequence[Condition] = (),
    start: Place | None = None,
) -> Iterator[Window]:
    """Windows of rows. By time, records of the same microsecond stay in the order of files and rows."""
    lanes = _time_lane(table) if by_time else _partition_lanes(table)
    column = TIMESTAMP if by_time else OFFSET
    lacking = table.scan([column], [*conditions, Condition(column, "null")])
    if missing := sum(batch.num_rows for batch in lacking.read(lacking.files)):
        raise LakeError(f"{missing} rows of {table.name} have no {column}, so they have no place in the order")
    needed = list(dict.fromkeys([*columns, column]))
    for lane in lanes:
        if start is not None and lane.name < start.lane:
            continue
        begin = start.next if start is not None and lane.name == start.lane else None
        yield from _windows(table.scan(needed, [*conditions, *lane.conditions]), lane, begin)


def _time_lane(table: LakeTable) -> list[_Lane]:
    if TIMESTAMP not in table.schema.names:
        raise LakeError(f"{table.name} has neither topic, partition and offset nor a timestamp to order rows by")
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
    # By name, since a later run tells by it what was read: `orders-eu/…` is before `orders/…`.
    return sorted(lanes, key=lambda lane: lane.name)


def _windows(scan: Scan, lane: _Lane, begin: int | None) -> Iterator[Window]:
    extents = [file.known_ranges.get(lane.column) for file in scan.files]
    known = [(lane.number(low), lane.number(high)) for low, high in (each for each in extents if each is not None)]
    if len(known) < len(extents):  # files of others may have no statistics: look
        known = [_measured(scan, lane)]
    if not known or known[0][0] > known[0][1]:
        return
    low, high = min(pair[0] for pair in known), max(pair[1] for pair in known)
    total = max(1, sum(file.rows for file in scan.files))
    width = max(1, (high - low + 1) * WINDOW_ROWS // total)
    at = low if begin is None else max(low, begin)
    while at <= high:
        # Nothing may be in between: go to where the next file begins.
        at = max(at, min((start for start, end in known if end >= at), default=at))
        end = at + width
        bounds = (Condition(lane.column, ">=", lane.bound(at)), Condition(lane.column, "<", lane.bound(end)))
        part = scan.narrowed(bounds)
        rows = pa.Table.from_batches(list(part.read(part.files)), schema=scan.schema)
        order = pc.sort_indices(rows, sort_keys=[(lane.column, "ascending")])
        yield Window(rows.take(order), Place(lane.name, min(end, high + 1)))
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
