"""Proves that a table has what its topic had: nothing missing, doubled or changed.

Three things are compared, range by range of offsets, by numbers and checksums (`lake.row_crc`):

- **The ledger with itself**: ranges follow each other, and their sums are those of the table.
- **The ledger with the table**: the rows of each range are as many as were written, and the same. A table with keys has
  only the newest row of a key; there the sum of all rows is compared.
- **The ledger with the topic**, as far as it still has the records: their number and checksum are those that were read.

Rows are read file by file, so a table may be larger than memory. Reads only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millstream.columnar import ArrowDecoder
from millstream.lake.errors import LakeError
from millstream.lake.ledger import TOPIC_ID_PROPERTY, TOPIC_PROPERTY, OffsetRange, listed_ranges
from millstream.lake.row_crc import MASK, RowCrc, row_sums
from millstream.lake.scan import Condition, Scan, TableFile
from millstream.lake.table import LakeTable
from millstream.raw_client import EARLIEST, LATEST, Cluster, TopicPartition
from millstream.tables.conversion import SEQUENCE, record_sums
from millstream.tables.settings import is_compacted

_FETCH_BYTES: Final = 4 << 20
_SHOWN: Final = 5
SAME, DIFFERENT, NOT_COMPARED = "same", "different", "not compared"


@dataclass(slots=True)
class RangeCheck:
    """A range of the ledger, and how the table and the topic compare with it."""

    range: OffsetRange
    in_table: RowCrc = field(default_factory=RowCrc)
    table: str = NOT_COMPARED
    topic: str = NOT_COMPARED


@dataclass(slots=True)
class Report:
    """The result. `faults` is empty if everything is there once."""

    table: str
    topic: str
    rows: int = 0
    checks: list[RangeCheck] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be compared, and why."""

    @property
    def is_proven(self) -> bool:
        return not self.faults


def verify(table: LakeTable, cluster: Cluster | None) -> Report:
    """Compares the version of this object. `cluster`: that of the topic; None leaves the topic out."""
    topic, topic_id = table.properties.get(TOPIC_PROPERTY), table.properties.get(TOPIC_ID_PROPERTY)
    if topic is None or topic_id is None:
        raise LakeError(
            f"{table.name} was not made by `millstream table serve`: it has no ledger of offsets to compare with"
        )
    state = table.ledger
    report = Report(table.name, topic)
    ranges, faults = listed_ranges(state, table.ledger_entries())
    report.faults += faults
    report.checks = [RangeCheck(each) for each in ranges]
    is_upsert = SEQUENCE in table.schema.names
    found = _compare_table(table, report, is_upsert=is_upsert)
    report.rows = found.rows
    if found != state.table:
        what = f"{found.rows} rows, and {state.table.rows} were written"
        if found.rows == state.table.rows:
            what = f"{found.rows} rows, as many as were written, but not the same"
        report.faults.append(f"the table has {what}")
    if is_upsert and found != state.table:
        report.faults += _doubled_keys(table)
    if cluster is None:
        report.notes.append("the topic was not read")
    else:
        _compare_topic(cluster, topic, topic_id, report)
    return report


# The table


def _places(table: LakeTable) -> tuple[str, str]:
    return ("_partition", "_offset") if "_offset" in table.schema.names else ("partition", "offset")


def _read(scan: Scan, files: Sequence[TableFile], report: Report) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            yield from scan.read([file])
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            report.faults.append(f"file {file.path} with {file.rows} rows cannot be read: {reason}")


def _compare_table(table: LakeTable, report: Report, *, is_upsert: bool) -> RowCrc:
    """Compares the ranges of the ledger with the rows. Returns the sum of all rows."""
    partition_column, offset_column = _places(table)
    bounds = _Bounds(report.checks)
    scan = table.scan(table.row_schema.names)
    total = RowCrc()
    for batch in _read(scan, scan.files, report):
        sums = row_sums(batch)
        total += RowCrc(batch.num_rows, int(sums.sum(dtype=np.uint64)) & MASK)
        if not is_upsert:
            bounds.add(_numbers(batch, partition_column), _numbers(batch, offset_column), sums)
    if is_upsert:
        return total
    report.faults += bounds.faults()
    for check in report.checks:
        check.in_table = bounds.found(check)
        written = RowCrc(check.range.rows, check.range.row_crc)
        check.table = SAME if check.in_table == written else DIFFERENT
        if check.table == DIFFERENT:
            report.faults.append(_explained(table, check))
    return total


def _numbers(batch: pa.RecordBatch, column: str) -> Any:
    return batch.column(column).cast(pa.int64()).to_numpy(zero_copy_only=False)


class _Bounds:
    """Adds rows to the ranges in which they are."""

    def __init__(self, checks: Sequence[RangeCheck]) -> None:
        self._of: dict[int, tuple[list[RangeCheck], Any, Any]] = {}
        for partition in {each.range.partition for each in checks}:
            mine = sorted(
                (each for each in checks if each.range.partition == partition), key=lambda each: each.range.begin
            )
            begins = np.array([each.range.begin for each in mine], np.int64)
            ends = np.array([each.range.end for each in mine], np.int64)
            self._of[partition] = (mine, begins, ends)
        self._rows = {partition: np.zeros(len(found[0]), np.int64) for partition, found in self._of.items()}
        self._sums = {partition: np.zeros(len(found[0]), np.uint64) for partition, found in self._of.items()}
        self._outside: dict[int, list[int]] = {}

    def add(self, partitions: Any, offsets: Any, sums: Any) -> None:
        for partition in np.unique(partitions).tolist():
            mine = partitions == partition
            self._add(int(partition), offsets[mine], sums[mine])

    def _add(self, partition: int, offsets: Any, sums: Any) -> None:
        if partition not in self._of:
            self._outside.setdefault(partition, []).extend(offsets.tolist()[:_SHOWN])
            return
        _, begins, ends = self._of[partition]
        at = np.searchsorted(begins, offsets, "right") - 1
        inside = (at >= 0) & (offsets < ends[np.maximum(at, 0)])
        np.add.at(self._rows[partition], at[inside], 1)
        np.add.at(self._sums[partition], at[inside], sums[inside])
        if not inside.all():
            self._outside.setdefault(partition, []).extend(offsets[~inside].tolist()[:_SHOWN])

    def found(self, check: RangeCheck) -> RowCrc:
        partition = check.range.partition
        at = self._of[partition][0].index(check)
        return RowCrc(int(self._rows[partition][at]), int(self._sums[partition][at]) & MASK)

    def faults(self) -> list[str]:
        return [
            f"partition {partition}: rows with offsets that no commit has written: {_shown(offsets)}"
            for partition, offsets in sorted(self._outside.items())
        ]


def _explained(table: LakeTable, check: RangeCheck) -> str:
    """What is wrong with the rows of a range."""
    wanted, found = check.range, check.in_table
    where = f"partition {wanted.partition}, offsets {wanted.begin} to {wanted.end - 1}"
    doubled = _doubled_offsets(table, wanted)
    if doubled:
        return f"{where}: {found.rows} rows instead of {wanted.rows}; doubled offsets: {_shown(doubled)}"
    if found.rows < wanted.rows:
        return f"{where}: {wanted.rows - found.rows} of {wanted.rows} rows are missing"
    if found.rows > wanted.rows:
        return f"{where}: {found.rows} rows instead of {wanted.rows}"
    return f"{where}: {wanted.rows} rows, but not the values that were written"


def _doubled_offsets(table: LakeTable, wanted: OffsetRange) -> list[int]:
    partition_column, offset_column = _places(table)
    conditions = (
        Condition(partition_column, "=", wanted.partition),
        Condition(offset_column, ">=", wanted.begin),
        Condition(offset_column, "<", wanted.end),
    )
    scan = table.scan([partition_column, offset_column], conditions)
    ignored = Report("", "")
    offsets = [_numbers(batch, offset_column) for batch in _read(scan, scan.files, ignored)]
    return _doubled(offsets)


def _doubled(parts: list[Any]) -> list[int]:
    if not parts:
        return []
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    return [int(each) for each in values[counts > 1]]


def _doubled_keys(table: LakeTable) -> list[str]:
    """In a table with keys two rows never come from one record."""
    partition_column, offset_column = _places(table)
    scan = table.scan([partition_column, offset_column])
    by_partition: dict[int, list[Any]] = {}
    for batch in _read(scan, scan.files, Report("", "")):
        partitions, offsets = _numbers(batch, partition_column), _numbers(batch, offset_column)
        for partition in np.unique(partitions).tolist():
            by_partition.setdefault(partition, []).append(offsets[partitions == partition])
    found = {partition: _doubled(parts) for partition, parts in sorted(by_partition.items())}
    return [
        f"partition {partition}: doubled offsets: {_shown(offsets)}" for partition, offsets in found.items() if offsets
    ]


def _shown(offsets: Sequence[int]) -> str:
    more = f" and {len(offsets) - _SHOWN} more" if len(offsets) > _SHOWN else ""
    return ", ".join(map(str, offsets[:_SHOWN])) + more


# The topic


def _compare_topic(cluster: Cluster, topic: str, topic_id: str, report: Report) -> None:
    info = cluster.topics([topic]).get(topic)
    if info is None or str(info.topic_id) != topic_id:
        report.notes.append(f"topic {topic} was deleted: the table is compared with its ledger alone")
        return
    if is_compacted(cluster, topic):
        report.notes.append(f"topic {topic} is compacted: records of the ledger may be gone, so they are not compared")
        return
    partitions = {each.range.partition for each in report.checks}
    for partition in sorted(partitions):
        place = TopicPartition(topic, partition)
        mine = [each for each in report.checks if each.range.partition == partition]
        earliest = cluster.offsets({place: EARLIEST})[place].offset
        latest = cluster.offsets({place: LATEST})[place].offset
        if earliest < mine[0].range.begin:
            report.faults.append(
                f"partition {partition}: the topic has offsets from {earliest} on, and the table from "
                f"{mine[0].range.begin} on"
            )
        if latest < mine[-1].range.end:
            report.faults.append(
                f"partition {partition}: the topic ends at offset {latest}, and the table at {mine[-1].range.end}"
            )
        for check in mine:
            _compare_range(cluster, place, earliest, check, report)


def _compare_range(cluster: Cluster, place: TopicPartition, earliest: int, check: RangeCheck, report: Report) -> None:
    wanted = check.range
    begin = wanted.begin + wanted.lost
    if wanted.lost:
        report.notes.append(f"{place}: {wanted.lost} offsets from {wanted.begin} on were gone before they were read")
    if begin < earliest:
        report.notes.append(f"{place}: the topic begins at {earliest} now, so offsets from {begin} are not compared")
        return
    found = RowCrc()
    for batch in _records(cluster, place, begin, wanted.end):
        sums = record_sums(batch)
        found += RowCrc(batch.num_rows, int(sums.sum(dtype=np.uint64)) & MASK)
    written = RowCrc(wanted.rows + wanted.dead_letters, wanted.record_crc)
    check.topic = SAME if found == written else DIFFERENT
    if check.topic == DIFFERENT:
        what = (
            f"{found.rows} records, and {written.rows} were read"
            if found.rows != written.rows
            else "not the records that were read"
        )
        report.faults.append(f"{place}, offsets {begin} to {wanted.end - 1}: the topic has {what}")


def _records(cluster: Cluster, place: TopicPartition, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    decoder = ArrowDecoder(["partition", "offset", "key", "value"])
    position = begin
    while position < end:
        fetched = cluster.fetch_existing(place, position, max_bytes=_FETCH_BYTES)
        batches, following = decoder.decode(
            fetched.data,
            topic=place.topic,
            partition=place.partition,
            start=position,
            stop=end,
            aborted=fetched.aborted,
        )
        yield from batches
        if following <= position:
            raise LakeError(f"{place}: the records from offset {position} on cannot be read")
        position = following
