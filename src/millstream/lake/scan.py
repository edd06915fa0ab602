"""Reading a table: files, columns, conditions, and the statistics by which files and row groups are skipped.

A scan is planned on the driver and read by tasks as Arrow batches. All conditions must hold: they skip files and row
groups by the minimum and maximum of columns, and are then applied row by row.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.lake.partitioning import PartitionValue
from millstream.lake.schema_evolution import conform
from millstream.lake.storage import Storage

Ranges = Mapping[str, tuple[Any, Any]]
EXACT_TEXT: Final = 16
"""Longer texts in metadata may be truncated (Iceberg does that), so they are bounds, not values."""
_LONGEST_TEXT: Final = 64


@dataclass(frozen=True)
class FileStatistics:
    """Ranges and null counts of columns that are not nested."""

    rows: int
    ranges: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)


def statistics(footer: pq.FileMetaData, groups: Sequence[int] | None = None) -> FileStatistics:
    """Statistics of all or some row groups, from a footer; columns without full statistics are left out."""
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
    """A bound as Delta's log has it; None for other types."""
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


Operator = Literal["=", "<", "<=", ">", ">=", "in", "null", "not null"]


@dataclass(frozen=True)
class Condition:
    """One comparison of a column with a value; as in SQL, null passes only `null`."""

    column: str
    operator: Operator
    value: Any = None

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether rows with these ranges can pass; unknown columns can."""
        if self.column not in ranges or self.operator in ("null", "not null"):
            return True
        low, high = (_plain(bound) for bound in ranges[self.column])
        try:
            match self.operator:
                case "=":
                    return bool(low <= _plain(self.value) <= high)
                case "<":
                    return bool(low < _plain(self.value))
                case "<=":
                    return bool(low <= _plain(self.value))
                case ">":
                    return bool(high > _plain(self.value))
                case ">=":
                    return bool(high >= _plain(self.value))
                case _:
                    return any(low <= _plain(value) <= high for value in self.value)
        except TypeError:  # a bound of another type than the value: not known
            return True

    def expression(self, schema: pa.Schema) -> pc.Expression:
        """The same for pyarrow."""
        field = pc.field(self.column)
        if self.operator == "null":
            return field.is_null()
        if self.operator == "not null":
            return ~field.is_null()
        kind = schema.field(self.column).type
        if self.operator == "in":
            return field.isin(pa.array(list(self.value), kind))
        scalar = pa.scalar(self.value, kind)
        return _compare(field, self.operator, scalar)


def _compare(field: pc.Expression, operator: Operator, scalar: pa.Scalar) -> pc.Expression:
    match operator:
        case "=":
            return field == scalar
        case "<":
            return field < scalar
        case "<=":
            return field <= scalar
        case ">":
            return field > scalar
        case _:
            return field >= scalar


def all_may_hold(conditions: Iterable[Condition], ranges: Ranges) -> bool:
    return all(condition.may_hold(ranges) for condition in conditions)


def keep_matching(rows: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """The rows that pass all conditions."""
    if not conditions:
        return rows
    expression = reduce(and_, (condition.expression(rows.schema) for condition in conditions))
    return rows.filter(expression)


def iceberg_expression(conditions: Sequence[Condition]) -> Any:
    """The same for pyiceberg."""
    from pyiceberg import expressions as ice

    by_operator = {
        "=": ice.EqualTo,
        "<": ice.LessThan,
        "<=": ice.LessThanOrEqual,
        ">": ice.GreaterThan,
        ">=": ice.GreaterThanOrEqual,
        "in": ice.In,
    }
    is_null: Any = ice.IsNull
    is_not_null: Any = ice.NotNull
    result: Any = ice.AlwaysTrue()
    for condition in conditions:
        if condition.operator == "null":
            result = ice.And(result, is_null(condition.column))
        elif condition.operator == "not null":
            result = ice.And(result, is_not_null(condition.column))
        else:
            value = condition.value
            literal = [_literal(each) for each in value] if condition.operator == "in" else _literal(value)
            result = ice.And(result, by_operator[condition.operator](condition.column, literal))
    return result


def from_spark(filters: Iterable[Any], schema: pa.Schema) -> tuple[Condition, ...]:
    """The filters of Spark that can skip files; Spark applies all filters itself too."""
    from pyspark.sql import datasource as spark

    operators: Mapping[type, Operator] = {
        spark.EqualTo: "=",
        spark.LessThan: "<",
        spark.LessThanOrEqual: "<=",
        spark.GreaterThan: ">",
        spark.GreaterThanOrEqual: ">=",
        spark.In: "in",
        spark.IsNull: "null",
        spark.IsNotNull: "not null",
    }
    found = []
    for each in filters:
        operator = operators.get(type(each))
        if operator is None or len(each.attribute) != 1 or each.attribute[0] not in schema.names:
            continue
        kind = schema.field(each.attribute[0]).type
        if not (pa.types.is_primitive(kind) or pa.types.is_string(kind)) or pa.types.is_floating(kind):
            continue  # NaN is ordered differently in Spark
        value: Any = getattr(each, "value", None)
        if operator == "in":
            value = tuple(item for item in value if item is not None)
        elif value is None and operator not in ("null", "not null"):
            continue
        found.append(Condition(each.attribute[0], operator, value))
    return tuple(found)


def _plain(value: Any) -> Any:
    """Times without a zone are taken as UTC, so that bounds and values can be compared."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _literal(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


BATCH_ROWS: Final = 16_384
"""Spark takes batches of 1k to 30k rows equally well; much larger ones cost it."""


@dataclass(frozen=True)
class TableFile:
    """A data file of a table, as the table's metadata knows it."""

    path: str
    size: int
    rows: int
    partition: dict[str, PartitionValue] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    handle: Any = None
    """Further data of the format for reading the file."""

    @property
    def known_ranges(self) -> Ranges:
        """Ranges of columns, with those of partition columns, which are the same in each row."""
        fixed = {name: (value, value) for name, value in self.partition.items() if value is not None}
        return {**self.ranges, **fixed}


class Scan(ABC):
    """The reading of one version of a table. Picklable, for tasks."""

    schema: pa.Schema
    """The columns of `read`, in order."""
    files: list[TableFile]

    @abstractmethod
    def read(self, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        """The wanted rows of these files, in the order of the files and of their rows."""

    @abstractmethod
    def narrowed(self, conditions: Sequence[Condition]) -> "Scan":
        """The same scan with more conditions, without the files that cannot match."""

    def splits(self, size: int) -> list[list[TableFile]]:
        """The files in shares of about this many bytes, for tasks."""
        shares: list[list[TableFile]] = []
        room = 0
        for file in self.files:
            if not shares or file.size > room:
                shares.append([])
                room = size
            shares[-1].append(file)
            room -= file.size
        return shares


@dataclass
class FileScan(Scan):
    """A scan of a format with columns by name, and partition columns only in the metadata."""

    storage: Storage
    table_schema: pa.Schema
    schema: pa.Schema
    files: list[TableFile]
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        self.files = [file for file in self.files if all_may_hold(self.conditions, file.known_ranges)]

    def narrowed(self, conditions: Sequence[Condition]) -> "FileScan":
        return replace(self, conditions=(*self.conditions, *conditions))

    def read(self, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        wanted = {*self.schema.names, *(condition.column for condition in self.conditions)}
        needed = pa.schema([each for each in self.table_schema if each.name in wanted])
        for file in files:
            with self.storage.open_input(file.path) as stream:
                for batch in self._batches(pq.ParquetFile(stream, pre_buffer=True), file, needed):
                    rows = keep_matching(batch, self.conditions)
                    if rows.num_rows:
                        yield rows.select(self.schema.names)

    def _batches(self, parquet: Any, file: TableFile, needed: pa.Schema) -> Iterator[pa.RecordBatch]:
        footer = parquet.metadata
        in_file = [name for name in needed.names if name in parquet.schema_arrow.names and name not in file.partition]
        groups = [number for number in range(footer.num_row_groups) if self._may_match(footer, number)]
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups, columns=in_file):
            for name, value in file.partition.items():
                if name in needed.names:
                    constant = pa.repeat(pa.scalar(value, needed.field(name).type), batch.num_rows)
                    batch = batch.append_column(name, constant)
            if not batch.num_columns:  # the file has none of the wanted columns
                batch = pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=["rows"])
            yield conform(batch, needed)

    def _may_match(self, footer: pq.FileMetaData, group: int) -> bool:
        if not self.conditions:
            return True
        return all_may_hold(self.conditions, statistics(footer, [group]).ranges)
