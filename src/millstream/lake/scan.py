"""Reading a table: which files, which columns, which rows. Planned on the driver, read by tasks as Arrow batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.lake.column_ranges import Ranges, statistics
from millstream.lake.conditions import Condition, all_may_hold, keep_matching
from millstream.lake.partitioning import PartitionValue
from millstream.lake.schema_evolution import conform
from millstream.lake.storage import Storage

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
    """What the format needs besides the path to read the file."""

    @property
    def known_ranges(self) -> Ranges:
        """Ranges of all columns that are known, with those of the partition, whose value is the same in each row."""
        fixed = {name: (value, value) for name, value in self.partition.items() if value is not None}
        return {**self.ranges, **fixed}


class Scan(ABC):
    """A table at one version, and what of it is wanted. Picklable, so that tasks can read their share."""

    schema: pa.Schema
    """Columns that `read` gives, in order."""
    files: list[TableFile]

    @abstractmethod
    def read(self, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        """The wanted rows of these files, in the order of the files and of their rows."""

    @abstractmethod
    def narrowed(self, conditions: Sequence[Condition]) -> "Scan":
        """The same with more conditions, and without the files that cannot meet them."""

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
    """Of formats whose files hold columns by name, and whose partition columns are in the metadata alone."""

    storage: Storage
    table_schema: pa.Schema
    schema: pa.Schema
    files: list[TableFile]
    conditions: tuple[Condition, ...] = ()
    other_suffixes: tuple[str, ...] = ()
    """A file that is not there under its name may be there with one of these: it was moved while we looked."""

    def __post_init__(self) -> None:
        self.files = [file for file in self.files if all_may_hold(self.conditions, file.known_ranges)]

    def narrowed(self, conditions: Sequence[Condition]) -> "FileScan":
        return replace(self, conditions=(*self.conditions, *conditions))

    def read(self, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        wanted = {*self.schema.names, *(condition.column for condition in self.conditions)}
        needed = pa.schema([each for each in self.table_schema if each.name in wanted])
        for file in files:
            with self._open(file.path) as stream:
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
            if not batch.num_columns:  # none of the wanted columns was there when this file was written
                batch = pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], names=["rows"])
            yield conform(batch, needed)

    def _may_match(self, footer: pq.FileMetaData, group: int) -> bool:
        if not self.conditions:
            return True
        return all_may_hold(self.conditions, statistics(footer, [group]).ranges)

    def _open(self, path: str) -> Any:
        names = (path, *(path + suffix for suffix in self.other_suffixes), path)
        for name in names[:-1]:
            try:
                return self.storage.open_input(name)
            except FileNotFoundError:
                continue
        return self.storage.open_input(names[-1])
