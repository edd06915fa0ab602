"""Delta tables with `deltalake`: data files are written here, the log by the library.

A write has (query id, batch id) as Delta's application transaction: a repeated batch is detected, and of two drivers
with the same batch one fails.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake import Field as DeltaField
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from millstream.lake.data_files import FileLayout, WrittenFile
from millstream.lake.errors import CommitConflictError, LakeError, NoTableError
from millstream.lake.ledger import PREFIX as LEDGER_PREFIX
from millstream.lake.ledger import Bookkeeping, CommitNote, LedgerEntry, LedgerState, details_of
from millstream.lake.options import TableOptions
from millstream.lake.partitioning import Partitioning, value_text
from millstream.lake.scan import Condition, FileScan, Scan, TableFile, delta_statistics, statistics
from millstream.lake.schema_evolution import never, storable
from millstream.lake.storage import Storage, delta_storage_options
from millstream.lake.table import AppTransaction, LakeTable, Progress, RewriteResult, TableVersion
from millstream.lake.upserts import sweep
from millstream.spark.sink.batch_input import MARK_DIGITS, BatchInput, WrittenBatch

INPUT_PREFIX: Final = "millstream.input."
"""Prefix of the application id under which Delta keeps the mark of the newest write's input: in the same commit, and
as long as the number of the write itself."""
INPUT_METADATA: Final = "millstream.input"
HISTORY_SEARCHED: Final = 1000
DELETES_APP: Final = "millstream.deletes"
"""The application id under which Delta keeps the number of the file of deletions (see `upserts`)."""
_MARK_BITS: Final = MARK_DIGITS * 4
_NUMBER_BITS: Final = 0x7FFF
PARTITION_PROPERTY: Final = "millstream.partitionBy"
ATTEMPTS: Final = 20
UNREADABLE_FEATURES: Final = frozenset({"deletionVectors", "columnMapping", "v2Checkpoint", "variantType"})
"""Features of Delta that this reader does not support."""


class DeltaLakeTable(LakeTable):
    """A Delta table."""

    format = "delta"
    widening = staticmethod(never)

    def __init__(self, storage: Storage, options: TableOptions, delta: DeltaTable) -> None:
        super().__init__(storage, options)
        self._delta = delta

    @staticmethod
    def open(options: TableOptions) -> "DeltaLakeTable | None":
        assert options.path is not None
        storage = Storage.at(options.path, options.s3)
        try:
            delta = DeltaTable(storage.uri, storage_options=delta_storage_options(storage))
        except TableNotFoundError:
            return None
        return DeltaLakeTable(storage, options, delta)

    @staticmethod
    def create(options: TableOptions, rows: pa.Schema, partitioning: Partitioning) -> "DeltaLakeTable":
        assert options.path is not None
        storage = Storage.at(options.path, options.s3)
        derived = [term.field(rows) for term in partitioning.derived]
        DeltaTable.create(
            storage.uri,
            schema=Schema.from_arrow(pa.schema([*rows, *derived])),
            mode="ignore",  # another process may create it at the same time; `accept` checks the schema
            partition_by=list(partitioning.names),
            configuration={PARTITION_PROPERTY: partitioning.text, **dict(options.properties)},
            raise_if_key_not_exists=False,
            storage_options=delta_storage_options(storage),
        )
        table = DeltaLakeTable.open(options)
        assert table is not None
        return table

    @property
    def schema(self) -> pa.Schema:
        return storable(pa.schema(self._delta.schema().to_arrow()))

    @property
    def partitioning(self) -> Partitioning:
        metadata = self._delta.metadata()
        ours = metadata.configuration.get(PARTITION_PROPERTY)
        if ours:
            return Partitioning.parse(tuple(ours.split(",")))
        return Partitioning.parse(tuple(metadata.partition_columns))

    @property
    def version(self) -> str:
        return str(self._delta.version())

    def refresh(self) -> None:
        self._delta.update_incremental()

    def layout(self) -> FileLayout:
        partition_columns = set(self.partitioning.names)
        return FileLayout(
            storage=self.storage,
            schema=self.row_schema,
            file_schema=pa.schema([each for each in self.schema if each.name not in partition_columns]),
            partitioning=self.partitioning,
            compression=self.options.compression,
            target_size=self.options.target_file_size,
        )

    def change_schema(self, schema: pa.Schema, added: Sequence[str], widened: Sequence[str]) -> None:
        top_level = {path.split(".")[0] for path in added}
        fields = [DeltaField.from_arrow(schema.field(name)) for name in schema.names if name in top_level]
        for _attempt in range(ATTEMPTS):
            try:
                self._delta.alter.add_columns(fields)
                return
            except CommitFailedError as error:
                last = error
                self.refresh()
                if all(name in self.row_schema.names for name in top_level) and self.row_schema.equals(schema):
                    return
        raise CommitConflictError(
            f"{self.name}: columns could not be added because of other writers; try again: {last}"
        )

    def newest_write(self, app: str) -> WrittenBatch | None:
        number = self._delta.transaction_version(app)
        if number is None:
            return None
        kept = self._delta.transaction_version(INPUT_PREFIX + app)
        mark = None if kept is None else _mark_in(kept, number)
        return WrittenBatch(number, None if mark is None else BatchInput("input", mark))

    def full_input(self, kept: BatchInput) -> BatchInput:
        # Only for error messages: old commits may be deleted, marks are not.
        for entry in self._delta.history(HISTORY_SEARCHED):
            if kept.mark in (document := str(entry.get(INPUT_METADATA, ""))):
                found = BatchInput.from_json(json.loads(document))
                if found is not None and found.is_same(kept):
                    return found
        return kept

    def commit(
        self,
        files: Sequence[WrittenFile],
        transaction: AppTransaction | None,
        *,
        replace: bool,
        books: Bookkeeping | None = None,
    ) -> bool:
        adds: list[AddAction | RemoveAction] = [self._add_action(file) for file in files]
        for attempt in range(ATTEMPTS):
            self.refresh()
            if transaction and self.is_committed(transaction):
                return False
            note = None if books is None else books.note(self.ledger, books.added)
            # Delta's log merges commits that do not conflict. Two commits with ledgers do: they have the same ids.
            properties = _commit_properties(transaction, note=note)
            try:
                self._delta.create_write_transaction(
                    adds,
                    mode="overwrite" if replace else "append",
                    schema=self._delta.schema(),
                    partition_by=list(self.partitioning.names),
                    commit_properties=properties,
                )
                self.refresh()
                return True
            except CommitFailedError as error:
                last = error
                time.sleep(min(2.0, 0.05 * 2**attempt))
        raise CommitConflictError(f"{self.name}: other writers won {ATTEMPTS} attempts to commit; try again: {last}")

    def replace_files(
        self,
        old: Sequence[TableFile],
        new: Sequence[WrittenFile],
        transaction: AppTransaction | None,
        deletes_number: int,
        note: CommitNote | None = None,
    ) -> None:
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [self._add_action(file) for file in new]
        for file in old:
            values = {name: None if value is None else value_text(value) for name, value in file.partition.items()}
            actions.append(RemoveAction(file.handle, True, now_ms, file.size, values))
        # No retries of the library: they would put this commit after another one that it has not read.
        properties = _commit_properties(
            transaction, Transaction(DELETES_APP, deletes_number), note=note, max_commit_retries=0
        )
        try:
            self._delta.create_write_transaction(
                actions,
                mode="append",
                schema=self._delta.schema(),
                partition_by=list(self.partitioning.names),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise CommitConflictError(f"{self.name}: another writer was faster: {error}") from error
        self.refresh()

    @property
    def deletes_number(self) -> int | None:
        return self._delta.transaction_version(DELETES_APP)

    @property
    def properties(self) -> Mapping[str, str]:
        return {name: value for name, value in self._delta.metadata().configuration.items() if value is not None}

    @property
    def ledger(self) -> LedgerState:
        return LedgerState.from_numbers(self._delta.transaction_version)

    def ledger_entries(self) -> list[LedgerEntry]:
        entries = (details_of(entry.get(LEDGER_PREFIX)) for entry in self._delta.history())
        return [entry for entry in entries if entry is not None]

    def _add_action(self, file: WrittenFile) -> AddAction:
        values = {
            name: None if value is None else value_text(value)
            for name, value in zip(self.partitioning.names, file.partition, strict=True)
        }
        now_ms = int(time.time() * 1000)
        return AddAction(file.path, file.size, values, now_ms, True, delta_statistics(statistics(file.footer)))

    def scan(self, columns: Sequence[str] | None = None, conditions: Sequence[Condition] = ()) -> Scan:
        self._check_readable()
        return FileScan(self.storage, self.schema, self.project(columns), self._files(), tuple(conditions))

    def _check_readable(self) -> None:
        protocol = self._delta.protocol()
        foreign = UNREADABLE_FEATURES.intersection(protocol.reader_features or ())
        if protocol.min_reader_version == 2 or foreign:
            what = ", ".join(sorted(foreign)) or "columnMapping"
            raise LakeError(
                f"{self.name} uses {what} of Delta, which millstream-table does not support:"
                " rewrite the table without it, or use another engine"
            )

    def _files(self) -> list[TableFile]:
        rows = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        files = []
        for row in rows:
            ranges = {
                name.removeprefix("min."): (low, _upper(row[f"max.{name.removeprefix('min.')}"]))
                for name, low in row.items()
                if name.startswith("min.")
                and low is not None
                and row.get(f"max.{name.removeprefix('min.')}") is not None
            }
            partition = {
                name.removeprefix("partition."): value for name, value in row.items() if name.startswith("partition.")
            }
            path, rows_in_file = row["path"], row["num_records"] or 0
            files.append(TableFile(unquote(path), row["size_bytes"], rows_in_file, partition, ranges, path))
        return files

    def file_paths(self) -> set[str]:
        return {file.path for file in self._files()}

    def at_version(self, version: str) -> "DeltaLakeTable":
        try:
            delta = DeltaTable(
                self.storage.uri, version=int(version), storage_options=delta_storage_options(self.storage)
            )
        except (ValueError, DeltaError) as error:
            raise NoTableError(f"{self.name} has no version {version}; the newest is {self.version}") from error
        return DeltaLakeTable(self.storage, self.options, delta)

    def history(self, limit: int | None = None) -> list[TableVersion]:
        shown = ("operationParameters", "operationMetrics")
        return [
            TableVersion(
                str(entry["version"]),
                datetime.fromtimestamp(entry["timestamp"] / 1000, UTC),
                entry.get("operation", "?"),
                {name: entry[name] for name in shown if entry.get(name)},
            )
            for entry in self._delta.history(limit)
        ]

    def optimize(self, target_size: int, sort: Sequence[str], progress: Progress) -> RewriteResult:
        self.check_sort(sort)
        before = self._files()
        partitions = self._delta.partitions() if self.partitioning.terms else [{}]
        for number, partition in enumerate(partitions):
            progress(number, len(partitions))
            # One partition at a time; there is no filter for null, so a last pass covers all partitions.
            filters = [(name, "=", value_text(value)) for name, value in partition.items() if value is not None]
            if len(filters) == len(partition):
                self._rewrite(filters, target_size, sort)
        if any(None in partition.values() for partition in partitions):
            self._rewrite([], target_size, ())
        progress(len(partitions), len(partitions))
        after = self._files()
        return RewriteResult(
            len(before), len(after), sum(file.size for file in before), sum(file.size for file in after)
        )

    def _rewrite(self, filters: list[Any], target_size: int, sort: Sequence[str]) -> None:
        for attempt in range(ATTEMPTS):
            try:
                optimizer = self._delta.optimize
                if sort:
                    optimizer.z_order(list(sort), partition_filters=filters or None, target_size=target_size)
                else:
                    optimizer.compact(partition_filters=filters or None, target_size=target_size)
                return
            except CommitFailedError as error:
                last = error
                time.sleep(min(2.0, 0.05 * 2**attempt))
                self.refresh()
            except DeltaError as error:
                raise LakeError(f"{self.name} cannot be optimized: {error}") from error
        raise CommitConflictError(f"{self.name}: other writers won {ATTEMPTS} attempts of optimize; try again: {last}")

    def vacuum(self, older_than: timedelta) -> int:
        # `full`: also files that were never committed, left by killed tasks.
        hours = max(0, math.ceil(older_than.total_seconds() / 3600))  # the library takes whole hours: round up
        swept = sweep(self, older_than)
        return swept + len(self._delta.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True))


def _commit_properties(
    transaction: AppTransaction | None,
    *more: Transaction,
    note: CommitNote | None = None,
    max_commit_retries: int | None = None,
) -> CommitProperties:
    metadata = {"engine": "millstream"}
    ids = list(more)
    if note is not None:
        metadata[LEDGER_PREFIX] = note.entry
        ids += [Transaction(name, value) for name, value in note.numbers.items()]
    if transaction is not None:
        ids.append(Transaction(transaction.app, transaction.number))
    if transaction is not None and transaction.input is not None:
        metadata[INPUT_METADATA] = json.dumps(transaction.input.to_json())
        ids.append(Transaction(INPUT_PREFIX + transaction.app, _kept_mark(transaction.input.mark, transaction.number)))
    return CommitProperties(
        custom_metadata=metadata, app_transactions=ids or None, max_commit_retries=max_commit_retries
    )


def _kept_mark(mark: str, number: int) -> int:
    """The mark as a number of 63 bits, as Delta keeps it, with the last bits of the number of its write."""
    return (number & _NUMBER_BITS) << _MARK_BITS | int(mark, 16)


def _mark_in(kept: int, number: int) -> str | None:
    """None if it belongs to another write: an earlier version of Millstream, without marks, wrote since."""
    if kept >> _MARK_BITS != number & _NUMBER_BITS:
        return None
    return f"{kept & ((1 << _MARK_BITS) - 1):0{MARK_DIGITS}x}"


def _upper(bound: Any) -> Any:
    """Other writers, and the library's `optimize`, truncate times to milliseconds: rows may be later than the bound."""
    if isinstance(bound, datetime) and bound.microsecond % 1000 == 0:
        return bound + timedelta(microseconds=999)
    return bound
