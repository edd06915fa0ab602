"""History from a table, the tail from the broker: where one ends and the other begins, for each partition of a topic.

The rows themselves say it: a table that a topic was copied to has the columns `topic`, `partition` and `offset`. A
batch is in the table as a whole, and batches are written in order, so all offsets of a partition up to the greatest one
are there, and the tail begins right after it. Ranges in the metadata tell that for files of one partition; only files
with rows of several are looked into, and only at these three columns.
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
"""(topic, partition) → the offset at which the broker takes over."""


@dataclass(frozen=True)
class HistoryUnit:
    """A data file of the table; what one task reads."""

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
    """Give this to `open_history` after a restart: the units are the same then."""
    columns: pa.Schema
    units: list[HistoryUnit]
    scan: Scan
    positions: Scan
    """The same rows, but only the columns that say where they are in the topic."""
    _seam: Seam | None = field(default=None, repr=False)

    @property
    def seam(self) -> Seam:
        """Where the tail begins. Partitions that are not in the table are not here: all of them is tail."""
        if self._seam is None:
            self._seam = _seam_of(self.positions, [unit.file for unit in self.units])
        return self._seam

    def check(self, schema: pa.Schema) -> None:
        """Whether the table has the columns that a stream wants; says which are missing or of another type."""
        for each in storable(schema):
            if each.name not in self.columns.names:
                raise LakeError(
                    f"the table at {self.location} has no column {each.name}, which the stream reads from the broker:"
                    f" it has {', '.join(self.columns.names)}. Choose columns that both have with the option `columns`"
                )
            kind = self.columns.field(each.name).type
            if kind != each.type and not can_hold(kind, each.type) and not pa.types.is_nested(kind):
                raise LakeError(
                    f"column {each.name} is {kind} in the table at {self.location}, {each.type} in the stream"
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

    Units come in the order of time, by the earliest record in each, so that watermarks move as they did.
    """
    given = dict(options or {}) | {"path": location} | ({} if version is None else {"version": version})
    table = open_table(parse_options(given))
    _check_columns(table)
    conditions = [] if topics is None else [Condition(TOPIC, "in", tuple(sorted(topics)))]
    scan, positions = table.scan(None, conditions), table.scan([TOPIC, PARTITION, OFFSET], conditions)
    units = [HistoryUnit(file) for file in sorted(scan.files, key=_order)]
    scan.files, positions.files = [], []  # units have them
    return History(location, table.version, table.schema, units, scan, positions)


def seam_offsets(location: str, options: Mapping[str, str] | None = None) -> Seam:
    """Where the tail of each partition begins that is in the table."""
    return open_history(location, options).seam


def positions_of(table: LakeTable) -> Seam:
    """The partitions of topics that are in a table, and the offset after the last one of each."""
    scan = table.scan([TOPIC, PARTITION, OFFSET])
    return _seam_of(scan, scan.files)


def _check_columns(table: LakeTable) -> None:
    missing = [name for name in (TOPIC, PARTITION, OFFSET) if name not in table.schema.names]
    if missing:
        raise LakeError(
            f"{table.name} cannot be the history of a topic: it has no column {', '.join(missing)}."
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
    """Whether bounds say that all rows are of one partition; a text that may be cut off says nothing."""
    return topics[0] == topics[1] and len(topics[0]) < EXACT_TEXT and bool(partitions[0] == partitions[1])
