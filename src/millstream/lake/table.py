"""The interface of lake tables in all formats; opening and creating the table that options name."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from millstream.lake.data_files import FileLayout, WrittenFile
from millstream.lake.errors import LakeError, LakeOptionError, NoTableError, SchemaChangeError, StaleWriteError
from millstream.lake.ledger import Bookkeeping, CommitNote, LedgerEntry, LedgerState
from millstream.lake.options import TableOptions
from millstream.lake.partitioning import Partitioning
from millstream.lake.scan import Condition, Scan, TableFile
from millstream.lake.schema_evolution import Widening, evolve, storable
from millstream.lake.storage import Storage
from millstream.spark.sink.batch_input import BatchInput, WrittenBatch, refusal, refusal_of_write

_OLD_LOG = "_millstream_log"

_log = logging.getLogger("millstream.lake")


@dataclass(frozen=True)
class AppTransaction:
    """Identifies a write: (query id, batch id). A number is committed at most once."""

    app: str
    number: int
    input: BatchInput | None = None
    """The input of the rows; None: it is not compared with that of an earlier write."""
    is_stream: bool = True


@dataclass(frozen=True)
class TableVersion:
    """One entry of a table's history."""

    version: str
    time: datetime
    operation: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class RewriteResult:
    """The result of `optimize` and `vacuum`."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    deleted: int = 0


Progress = Callable[[int, int], None]
"""Called with the finished and the total amount."""


class LakeTable(ABC):
    """A table. The object has the newest version at the time of the last refresh or change."""

    format: str
    widening: Widening
    """Which changes of a column's type the format supports."""

    def __init__(self, storage: Storage, options: TableOptions) -> None:
        self.storage = storage
        self.options = options

    @property
    def name(self) -> str:
        return self.options.name

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that readers see."""

    @property
    @abstractmethod
    def partitioning(self) -> Partitioning: ...

    @property
    @abstractmethod
    def version(self) -> str:
        """The version of this object."""

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of writers: without derived columns."""
        derived = {term.name for term in self.partitioning.derived}
        return pa.schema([each for each in self.schema if each.name not in derived])

    @abstractmethod
    def refresh(self) -> None:
        """Loads the newest version."""

    @abstractmethod
    def layout(self) -> FileLayout:
        """How tasks write files of this table."""

    @abstractmethod
    def change_schema(self, schema: pa.Schema, added: Sequence[str], widened: Sequence[str]) -> None:
        """Commits a new schema (as `row_schema`), which `evolve` has accepted."""

    @abstractmethod
    def newest_write(self, app: str) -> WrittenBatch | None:
        """The newest write of an app in the version of this object."""

    def is_committed(self, transaction: AppTransaction) -> bool:
        """Whether this write is in the table. StaleWriteError if a later write is, or one with other input."""
        newest = self.newest_write(transaction.app)
        if newest is None or newest.number < transaction.number:
            return False
        explain = refusal if transaction.is_stream else refusal_of_write
        if explain(transaction.app, transaction.number, transaction.input, newest) is not None:
            described = WrittenBatch(newest.number, None if newest.input is None else self.full_input(newest.input))
            why = explain(transaction.app, transaction.number, transaction.input, described)
            raise StaleWriteError(f"{self.name}: {why}")
        if transaction.input is not None and newest.input is None:
            _log.warning(
                "%s: batch %d was written by an earlier version; its input is not compared", self.name, newest.number
            )
        return True

    def full_input(self, kept: BatchInput) -> BatchInput:
        """The input with all details, for messages; that of `newest_write` may have only its mark."""
        return kept

    @abstractmethod
    def commit(
        self,
        files: Sequence[WrittenFile],
        transaction: AppTransaction | None,
        *,
        replace: bool,
        books: Bookkeeping | None = None,
    ) -> bool:
        """Adds files in one commit; with `replace`, instead of all others. False if it was committed before: then
        nothing changes. With StaleWriteError nothing changes either. Works beside concurrent writers. `books`: the
        offsets of the rows, which must follow those in the table."""

    @abstractmethod
    def replace_files(
        self,
        old: Sequence[TableFile],
        new: Sequence[WrittenFile],
        transaction: AppTransaction | None,
        deletes_number: int,
        note: CommitNote | None = None,
    ) -> None:
        """Replaces files in one commit on the version of this object. CommitConflictError if there is a newer one:
        then nothing changes. `deletes_number` (see `upserts`) and `note` are kept with the version."""

    @property
    @abstractmethod
    def deletes_number(self) -> int | None:
        """The number that the last `replace_files` kept."""

    @property
    @abstractmethod
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""

    @property
    @abstractmethod
    def ledger(self) -> LedgerState:
        """The sums of the ledger in the version of this object (see `ledger`)."""

    @abstractmethod
    def ledger_entries(self) -> list[LedgerEntry]:
        """The ledger's entries of all versions that have not expired, newest first."""

    @abstractmethod
    def scan(self, columns: Sequence[str] | None = None, conditions: Sequence[Condition] = ()) -> Scan:
        """Plans the reading of the version of this object."""

    @abstractmethod
    def at_version(self, version: str) -> "LakeTable":
        """The table at an older version."""

    @abstractmethod
    def history(self, limit: int | None = None) -> list[TableVersion]:
        """Versions, newest first."""

    @abstractmethod
    def optimize(self, target_size: int, sort: Sequence[str], progress: Progress) -> RewriteResult:
        """Rewrites small files into larger ones, beside running writers."""

    @abstractmethod
    def vacuum(self, older_than: timedelta) -> int:
        """Deletes files that only older versions need, and files of failed writes. Returns their number."""

    def accept(self, incoming: pa.Schema) -> None:
        """Changes the schema for these rows if necessary; raises if that is not possible."""
        wanted = self.options.partition_by
        if wanted is not None and Partitioning.parse(wanted) != self.partitioning:
            raise LakeOptionError(
                f"{self.name} is partitioned by {self.partitioning.text or 'nothing'}, not by {','.join(wanted)}:"
                " leave partitionBy out, or write to a new table"
            )
        self.partitioning.fields(storable(incoming))  # the source columns must exist
        evolution = evolve(self.row_schema, storable(incoming), self.widening, name=self.name)
        if not evolution.changes:
            return
        if not self.options.merge_schema:
            what = ", ".join([*(f"{name} is new" for name in evolution.added), *evolution.widened])
            raise SchemaChangeError(
                f"{self.name}: {what}, and mergeSchema=false refuses it; set it to true, or change the rows"
            )
        self.change_schema(evolution.schema, evolution.added, evolution.widened)

    def project(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of some columns, in their order; unknown ones are refused."""
        if columns is None:
            return self.schema
        for column in columns:
            if column not in self.schema.names:
                raise LakeOptionError(f"{self.name} has no column {column}; columns are {', '.join(self.schema.names)}")
        return pa.schema([self.schema.field(column) for column in columns])

    def check_sort(self, columns: Sequence[str]) -> None:
        """Refuses missing columns, and partition columns, which are the same in all rows of a file."""
        self.project(columns)
        if useless := [column for column in columns if column in self.partitioning.names]:
            raise LakeOptionError(
                f"{self.name} cannot be sorted by {useless[0]}: the table is partitioned by {useless[0]}"
            )

    def discard(self, paths: Iterable[str]) -> None:
        """Deletes data files that were not committed. A failed commit may have succeeded if only the response of the
        store was lost, so files in the table stay."""
        self.refresh()
        kept = self.file_paths()
        for path in paths:
            if path not in kept:
                self.storage.delete(path)

    def file_paths(self) -> set[str]:
        """The data files of the version of this object."""
        return {file.path for file in self.scan().files}


def find_format(options: TableOptions) -> str | None:
    """The format of the existing table, or None if there is none."""
    if options.table is not None or options.catalog:
        return "iceberg"
    assert options.path is not None
    storage = Storage.at(options.path, options.s3)
    if not storage.is_local and options.table_format == "iceberg":
        return "iceberg"
    found = format_at(storage)
    if found is None and storage.has_any(_OLD_LOG):
        raise LakeError(
            f"{options.name} is a Parquet table of an earlier version of Millstream, which this version cannot read or "
            "write. Copy its rows to a new table: spark.read.parquet(…).write.format('millstream-table').save(…)"
        )
    return found


def format_at(storage: Storage) -> str | None:
    """What kind of table a directory is."""
    if storage.has_any("_delta_log"):
        return "delta"
    if any(each.path.endswith(".metadata.json") for each in storage.listed("metadata")):
        return "iceberg"
    return None


def open_table(options: TableOptions) -> LakeTable:
    """Opens an existing table."""
    found = find_format(options)
    if found is not None and options.table_format not in (None, found):
        raise LakeOptionError(f"{options.name} is a table of format {found}, not {options.table_format}")
    table: LakeTable | None = None if found is None else _class_of(found).open(options)
    if table is None and found == "iceberg" and not options.catalog:
        raise NoTableError(
            f"{options.name} is an Iceberg table that the catalog in its directory does not have:"
            " set its catalog with catalog.uri=… and table=NAMESPACE.NAME"
        )
    if table is None:
        raise NoTableError(f"there is no table at {options.name}; the first write creates it")
    return table.at_version(options.version) if options.version is not None else table


def open_or_create(options: TableOptions, rows: pa.Schema) -> LakeTable:
    """Opens the table for these rows; creates it if it does not exist, and changes its schema if necessary."""
    found = find_format(options)
    if found is not None and options.table_format not in (None, found):
        raise LakeOptionError(f"{options.name} is a table of format {found}, not {options.table_format}")
    kind = _class_of(options.table_format or found or "delta")
    partitioning = Partitioning.parse(options.partition_by or ())
    table: LakeTable | None = kind.open(options)
    if table is None:
        partitioning.fields(storable(rows))  # refuse before the table is created
        made: LakeTable = kind.create(options, storable(rows), partitioning)
        table = made
    table.accept(rows)
    return table


def _class_of(name: str) -> Any:
    # Each format needs another library, which is imported on use.
    if name == "delta":
        from millstream.lake.delta_table import DeltaLakeTable

        return DeltaLakeTable
    from millstream.lake.iceberg_table import IcebergLakeTable

    return IcebergLakeTable
