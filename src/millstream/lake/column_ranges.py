"""The least and greatest value of each column of a data file, from its footer: what files can be skipped by."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow.parquet as pq

Ranges = Mapping[str, tuple[Any, Any]]
EXACT_TEXT: Final = 16
"""Texts in table metadata may be cut off at this length (Iceberg does), so longer ones are bounds and not values."""
_LONGEST_TEXT: Final = 64


@dataclass(frozen=True)
class FileStatistics:
    """Of the columns that are not nested: ranges, and how many nulls."""

    rows: int
    ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)


def statistics(footer: pq.FileMetaData, groups: Sequence[int] | None = None) -> FileStatistics:
    """What a footer says of all row groups or some; a column without full statistics is left out."""
    numbers = range(footer.num_row_groups) if groups is None else groups
    ranges: dict[str, tuple[Any, Any]] = {}
    nulls: dict[str, int] = {}
    for position in range(footer.num_columns):
        name = footer.schema.column(position).path
        if footer.schema.column(position).max_repetition_level or "." in name:
            continue
        chunks = [footer.row_group(number).column(position).statistics for number in numbers]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        full = [chunk for chunk in chunks if chunk.has_min_max]
        if not full or any(not chunk.has_min_max and chunk.num_values for chunk in chunks):
            continue
        try:
            low, high = min(chunk.min for chunk in full), max(chunk.max for chunk in full)
        except (TypeError, NotImplementedError):  # types that pyarrow or Python cannot compare
            continue
        if not (isinstance(low, float) and (low != low or high != high)):  # NaN orders nothing
            ranges[name] = (low, high)
    return FileStatistics(sum(footer.row_group(number).num_rows for number in numbers), ranges, nulls)


def to_json_value(value: Any, *, is_upper: bool) -> Any:
    """A bound as Delta and our own log write it; None for what has no such form."""
    if isinstance(value, datetime):
        utc = value.astimezone(UTC) if value.tzinfo else value
        return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        if len(value) <= _LONGEST_TEXT:
            return value
        return None if is_upper else value[:_LONGEST_TEXT]
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, bool | int | float) else None


def delta_statistics(found: FileStatistics) -> str:
    """The JSON that Delta's log keeps for a file."""
    low = {name: to_json_value(pair[0], is_upper=False) for name, pair in found.ranges.items()}
    high = {name: to_json_value(pair[1], is_upper=True) for name, pair in found.ranges.items()}
    # A decimal as a JSON number is rounded, and a bound that is rounded the wrong way loses rows.
    inexact = {name for name, pair in found.ranges.items() if isinstance(pair[0], Decimal)}
    keep = {name for name in low if low[name] is not None and high[name] is not None} - inexact
    return json.dumps(
        {
            "numRecords": found.rows,
            "minValues": {name: low[name] for name in keep},
            "maxValues": {name: high[name] for name in keep},
            "nullCount": found.null_counts,
        }
    )
