"""The history of a topic in a table, and the offset of each partition at which the topic continues (the seam).

A table that a topic was copied to has the columns `topic`, `partition` and `offset`. Batches are in the table as a
whole and in order, so it has all offsets of a partition up to the greatest one, and the topic continues after that.
Statistics have it for files of one partition; only files with rows of several partitions are read, and only these three
columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from millstream.lake.errors import LakeError
from millstream.lake.options import parse_options
from millstream.lake.scan import EXACT_TEXT, Condition, Scan, TableFile
from millstream.lake.schema_evolution import can_hold, conform, storable
from millstream.lake.table import LakeTable, open_table

TOPIC, PARTITION, OFFSET, TIMESTAMP = "topic", "partition", "offset", "timestamp"
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)

Seam = dict[tuple[str, int], int]
"""(topic, partition) → the offset at which the topic continues."""


@dataclass(frozen=True)
class HistoryUnit:
    """A data file of the table, which one task reads."""

    file: TableFile

    @property
    def rows(self) -> int:
        return self.file.rows

    @property
    def bytes(self) -> int:
        return self.file.size


@dataclass
class History:
    """A table at one version, as the first part of a stream. Picklable."""

    location: str
    version: str
    """With this version, `open_history` gives the same units after a restart."""
    columns: pa.Schema
    units: list[HistoryUnit]
    scan: Scan
    positions: Scan
    """The same rows with only topic, partition and offset."""
    _seam: Seam | None = field(default=None, repr=False)

    @property
    def seam(self) -> Seam:
        """The offsets at which the topic continues, for the partitions in the table."""
        if self._seam is None:
            self._seam = _seam_of(self.positions, [unit.file for unit in self.units])
        return self._seam

    def check(self, schema: pa.Schema) -> None:
        """Raises LakeError if columns of the stream are missing, or have another type."""
        for each in storable(schema):
            if each.name not in self.columns.names:
                raise LakeError(
                    f"the table at {self.location} has no column {each.name}, which the stream has:"
                    f" its columns are {', '.join(self.columns.names)}. Select common columns with the option `columns`"
                )
            kind = self.columns.field(each.name).type
            if kind != each.type and not can_hold(kind, each.type) and not pa.types.is_nested(kind):
                raise LakeError(
                    f"column {each.name} is {kind} in the table at {self.location}, {each.type} in the stream; select "
                    f"other columns with the option `columns`"
                )

    def read(self, unit: HistoryUnit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of one unit, in exactly this schema."""
        self.check(schema)
        for batch in self.scan.read([unit.file]):
            yield conform(batch, schema)


def open_history(
    location: str,
    options: Mapping[str, str] | None = None,
    *,
    version: str | None = None,
    topics: frozenset[str] | None = None,
) -> History:
    """The table at a location as history; `options` as for millstream-table (stores, catalogs), `topics` those wanted.

    Units are ordered by their earliest record, so that watermarks advance as in the topic.
    """
    given = dict(options or {}) | {"path": location} | ({} if version is None else {"version": version})
    table = open_table(parse_options(given))
    _check_columns(table)
    conditions = [] if topics is None else [Condition(TOPIC, "in", tuple(sorted(topics)))]
    scan, positions = table.scan(None, conditions), table.scan([TOPIC, PARTITION, OFFSET], conditions)
    units = [HistoryUnit(file) for file in sorted(scan.files, key=_order)]
    scan.files, positions.files = [], []  # the units have the files
    return History(location, table.version, table.schema, units, scan, positions)


def seam_offsets(location: str, options: Mapping[str, str] | None = None) -> Seam:
    """For each partition in the table, the offset at which the topic continues."""
    return open_history(location, options).seam


def positions_of(table: LakeTable) -> Seam:
    """The partitions in a table, and the offset after the last row of each."""
    scan = table.scan([TOPIC, PARTITION, OFFSET])
    return _seam_of(scan, scan.files)


def _check_columns(table: LakeTable) -> None:
    missing = [name for name in (TOPIC, PARTITION, OFFSET) if name not in table.schema.names]
    if missing:
        raise LakeError(
            f"{table.name} cannot be used as the history of a topic: it has no column {', '.join(missing)}."
            " Keep topic, partition and offset when you write the table"
        )


def _order(file: TableFile) -> tuple[Any, ...]:
    ranges = file.known_ranges
    earliest = ranges.get(TIMESTAMP, (_FIRST,))[0]
    if isinstance(earliest, datetime) and earliest.tzinfo is None:
        earliest = earliest.replace(tzinfo=UTC)
    return (earliest, ranges.get(OFFSET, (-1,))[0], file.path)


def _seam_of(scan: Scan, files: list[TableFile]) -> Seam:
    seam: Seam = {}

    def reached(topic: str, partition: int, offset: int) -> None:
        place = (topic, int(partition))
        seam[place] = max(seam.get(place, 0), int(offset) + 1)

    for file in files:
        ranges = file.known_ranges
        if all(name in ranges for name in (TOPIC, PARTITION, OFFSET)) and _is_one(ranges[TOPIC], ranges[PARTITION]):
            reached(ranges[TOPIC][0], ranges[PARTITION][0], ranges[OFFSET][1])
            continue
        for batch in scan.read([file]):
            for row in (
                pa.Table.from_batches([batch]).group_by([TOPIC, PARTITION]).aggregate([(OFFSET, "max")]).to_pylist()
            ):
                if None not in row.values():
                    reached(row[TOPIC], row[PARTITION], row[f"{OFFSET}_max"])
    return seam


def _is_one(topics: tuple[Any, Any], partitions: tuple[Any, Any]) -> bool:
    """Whether all rows are of one partition, by the bounds; a text that may be truncated is not enough."""
    return topics[0] == topics[1] and len(topics[0]) < EXACT_TEXT and bool(partitions[0] == partitions[1])
