"""Iceberg tables with `pyiceberg`: data files and manifest entries are written here, snapshots and catalog by the
library.

A write sets the table property `millstream.batch.<query id>` in the commit that adds its files, so a repeated batch is
detected, also after its snapshot has expired. The library's own retries are switched off: they do not check that
property again, and of two drivers with the same batch both would succeed.

The default catalog is a SQLite file beside the table: `path=/lake/orders` is the table `default.orders` in
`/lake/millstream-catalog.db`. `catalog.*` options name another catalog (REST, SQL, Glue, …).
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from millstream.lake.data_files import FileLayout, WrittenFile, plan_rewrites, rewrite
from millstream.lake.errors import CommitConflictError, LakeError, LakeOptionError, NoTableError
from millstream.lake.iceberg_files import add_terms, file_schema, from_spec, ranges, to_data_file
from millstream.lake.ledger import PREFIX as LEDGER_PREFIX
from millstream.lake.ledger import Bookkeeping, CommitNote, LedgerEntry, LedgerState, details_of
from millstream.lake.options import TableOptions
from millstream.lake.partitioning import Partitioning
from millstream.lake.scan import BATCH_ROWS, Condition, Scan, TableFile, all_may_hold, iceberg_expression
from millstream.lake.schema_evolution import can_hold, conform, storable
from millstream.lake.storage import Storage, iceberg_properties
from millstream.lake.table import AppTransaction, LakeTable, Progress, RewriteResult, TableVersion
from millstream.lake.upserts import sweep
from millstream.spark.sink.batch_input import BatchInput, WrittenBatch

CATALOG_FILE: Final = "millstream-catalog.db"
CATALOG_NAME: Final = "millstream"
DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True)
class CatalogLocation:
    """The catalog, and the name of the table in it."""

    properties: dict[str, str]
    identifier: tuple[str, ...]
    location: str | None
    database: str | None
    """The SQLite file of the default catalog."""

    def connect(self) -> Any:
        for is_last in (False, False, True):
            try:
                return load_catalog(CATALOG_NAME, **self.properties)
            except Exception as error:  # each kind of catalog has other exceptions
                if isinstance(error, OperationalError | ProgrammingError | IntegrityError) and not is_last:
                    continue  # another process makes the tables of a new SQL catalog at the same time
                where = self.properties.get("uri", "?")
                raise LakeError(
                    f"the Iceberg catalog at {where} cannot be opened: {error}; check the options catalog.*"
                ) from error
        raise AssertionError


def catalog_location(options: TableOptions) -> CatalogLocation:
    """The catalog and table that options name."""
    storage = None if options.path is None else Storage.at(options.path, options.s3)
    region = (storage or Storage("s3://any", options.s3)).region
    if options.table is not None:
        identifier = tuple(options.table.split("."))
        if len(identifier) < 2 or not all(identifier):
            raise LakeOptionError(f"table={options.table}: write NAMESPACE.NAME")
    else:
        assert storage is not None
        identifier = (DEFAULT_NAMESPACE, os.path.basename(storage.url))
    location = None if storage is None else storage.uri
    if options.catalog:
        properties = {**iceberg_properties(options.s3, region), **dict(options.catalog)}
        return CatalogLocation(properties, identifier, location, None)
    assert storage is not None
    if not storage.is_local:
        raise LakeOptionError(
            f"{options.path}: an Iceberg table in an object store needs a catalog that all its users can reach:"
            " catalog.type=rest with catalog.uri=https://…, or catalog.uri=postgresql://… (catalog.type=sql)"
        )
    directory = os.path.dirname(storage.url)
    database = os.path.join(directory, CATALOG_FILE)
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{directory}"}
    return CatalogLocation(properties, identifier, location, database)


def find_table(place: CatalogLocation) -> Any:
    """The table, or None if the catalog does not have it."""
    if place.database is not None and not os.path.exists(place.database):
        return None
    try:
        return place.connect().load_table(place.identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def prepare(place: CatalogLocation) -> Any:
    """The catalog, with the table's namespace in it."""
    if place.database is not None:
        os.makedirs(os.path.dirname(place.database), exist_ok=True)
    catalog = place.connect()
    catalog.create_namespace_if_not_exists(place.identifier[:-1])
    return catalog


BATCH_PROPERTY: Final = "millstream.batch."
INPUT_PROPERTY: Final = "millstream.input."
"""The input of the batch under BATCH_PROPERTY."""
DELETES_PROPERTY: Final = "millstream.deletes"
"""The number of the file of deletions (see `upserts`)."""
ATTEMPTS: Final = 50
NO_SNAPSHOT: Final = "0"
"""The version of a table without snapshots."""
_CONFLICTS: Final = (CommitFailedException, ValidationException, OperationalError)
_NEW_TABLE: Final = {
    # Each batch adds a snapshot and a metadata file: old metadata files are deleted, small manifests are merged.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}


def _widening(narrow: pa.DataType, wide: pa.DataType) -> bool:
    # Iceberg has no integers below 32 bits.
    return can_hold(narrow, wide) and narrow not in (pa.int8(), pa.int16())


@dataclass
class IcebergScan(Scan):
    """Reads files with pyiceberg, which handles field ids, renamed columns and deleted rows."""

    schema: pa.Schema
    files: list[TableFile]
    metadata: Any
    projected: Any
    conditions: tuple[Condition, ...]
    io_properties: dict[str, str]

    def narrowed(self, conditions: Sequence[Condition]) -> "IcebergScan":
        files = [file for file in self.files if all_may_hold(conditions, file.ranges)]
        return replace(self, files=files, conditions=(*self.conditions, *conditions))

    def read(self, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        io = load_file_io(self.io_properties, self.metadata.location)
        scan = ArrowScan(self.metadata, io, self.projected, iceberg_expression(self.conditions))
        for file in files:
            for batch in scan.to_record_batches([file.handle]):
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield conform(batch.slice(start, BATCH_ROWS), self.schema)


class IcebergLakeTable(LakeTable):
    """An Iceberg table."""

    format = "iceberg"
    widening = staticmethod(_widening)

    def __init__(self, options: TableOptions, iceberg: Any, snapshot: int | None = None) -> None:
        super().__init__(Storage.at(iceberg.location(), options.s3), options)
        self._iceberg = iceberg
        self._pinned = snapshot

    @staticmethod
    def open(options: TableOptions) -> "IcebergLakeTable | None":
        iceberg = find_table(catalog_location(options))
        return None if iceberg is None else IcebergLakeTable(options, iceberg)

    @staticmethod
    def create(options: TableOptions, rows: pa.Schema, partitioning: Partitioning) -> "IcebergLakeTable":
        place = catalog_location(options)
        properties = {**_NEW_TABLE, "write.parquet.compression-codec": options.compression, **dict(options.properties)}
        try:
            with prepare(place).create_table_transaction(
                place.identifier, rows, location=place.location, properties=properties
            ) as change:
                add_terms(change, partitioning)
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # created by another process at the same time; `accept` checks the schema
        return IcebergLakeTable(options, find_table(place))

    @property
    def name(self) -> str:
        return self.options.path or ".".join(self._iceberg.name())

    @property
    def _schema_now(self) -> Any:
        if self._pinned is None:
            return self._iceberg.schema()
        snapshot = self._iceberg.metadata.snapshot_by_id(self._pinned)
        return self._iceberg.schemas().get(snapshot.schema_id, self._iceberg.schema())

    @property
    def schema(self) -> pa.Schema:
        return storable(file_schema(self._schema_now))

    @property
    def row_schema(self) -> pa.Schema:
        required = {each.name for each in self._schema_now.fields if each.required}
        return pa.schema([each.with_nullable(each.name not in required) for each in self.schema])

    @property
    def partitioning(self) -> Partitioning:
        return from_spec(self._iceberg.spec(), self._iceberg.schema(), self.name)

    @property
    def _snapshot_id(self) -> int | None:
        if self._pinned is not None:
            return self._pinned
        snapshot = self._iceberg.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    @property
    def version(self) -> str:
        return NO_SNAPSHOT if self._snapshot_id is None else str(self._snapshot_id)

    def refresh(self) -> None:
        self._iceberg.refresh()

    def layout(self) -> FileLayout:
        return FileLayout(
            storage=self.storage,
            schema=self.schema,
            file_schema=file_schema(self._iceberg.schema()),
            partitioning=self.partitioning,
            directory="data",
            compression=self.options.compression,
            target_size=self.options.target_file_size,
        )

    def change_schema(self, schema: pa.Schema, added: Sequence[str], widened: Sequence[str]) -> None:
        for _attempt in range(ATTEMPTS):
            try:
                with self._iceberg.update_schema() as update:
                    update.union_by_name(schema)
                return
            except _CONFLICTS as error:
                last = error
                self.refresh()
        raise CommitConflictError(
            f"{self.name}: the schema could not be changed because of other writers; try again: {last}"
        )

    def newest_write(self, app: str) -> WrittenBatch | None:
        newest = self._iceberg.properties.get(BATCH_PROPERTY + app)
        if newest is None:
            return None
        kept = json.loads(self._iceberg.properties.get(INPUT_PROPERTY + app, "{}"))
        # It belongs to another batch if an earlier version of Millstream, without inputs, wrote since.
        document = kept["input"] if kept.get("batch") == int(newest) else None
        return WrittenBatch(int(newest), BatchInput.from_json(document))

    def commit(
        self,
        files: Sequence[WrittenFile],
        transaction: AppTransaction | None,
        *,
        replace: bool,
        books: Bookkeeping | None = None,
    ) -> bool:
        summary = (
            {"millstream.app": transaction.app, "millstream.batch": str(transaction.number)} if transaction else {}
        )

        def changes(change: Any) -> bool:
            if transaction is not None:
                if self.is_committed(transaction):
                    return False
                change.set_properties(_batch_properties(transaction))
            kept = dict(summary)
            if books is not None:
                note = books.note(self.ledger, books.added)
                change.set_properties(self._ledger_properties(note))
                kept[LEDGER_PREFIX] = note.entry
            update = change.update_snapshot(snapshot_properties=kept)
            old = self.scan().files if replace else []
            with update.overwrite() if old else update.merge_append() as producer:
                for file in old:
                    producer.delete_data_file(file.handle.file)
                for each in files:
                    producer.append_data_file(self._data_file(each))
            return True

        return self._commit(changes)

    def replace_files(
        self,
        old: Sequence[TableFile],
        new: Sequence[WrittenFile],
        transaction: AppTransaction | None,
        deletes_number: int,
        note: CommitNote | None = None,
    ) -> None:
        summary = {"millstream.operation": "upsert"}
        if transaction is not None:
            summary |= {"millstream.app": transaction.app, "millstream.batch": str(transaction.number)}
        self._iceberg.metadata.properties["commit.retry.num-retries"] = "0"  # in memory only, never committed
        try:
            change = self._iceberg.transaction()
            properties = _batch_properties(transaction) if transaction is not None else {}
            if note is not None:
                properties |= self._ledger_properties(note)
                summary[LEDGER_PREFIX] = note.entry
            change.set_properties({**properties, DELETES_PROPERTY: str(deletes_number)})
            update = change.update_snapshot(snapshot_properties=summary)
            with update.overwrite() if old else update.merge_append() as producer:
                for file in old:
                    producer.delete_data_file(file.handle.file)
                for each in new:
                    producer.append_data_file(self._data_file(each))
            change.commit_transaction()
        except _CONFLICTS as error:
            raise CommitConflictError(f"{self.name}: another writer was faster: {error}") from error

    @property
    def deletes_number(self) -> int | None:
        kept = self._iceberg.properties.get(DELETES_PROPERTY)
        return None if kept is None else int(kept)

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self._iceberg.properties)

    @property
    def ledger(self) -> LedgerState:
        return LedgerState.from_numbers(self._ledger_numbers().get)

    def ledger_entries(self) -> list[LedgerEntry]:
        newest_first = sorted(self._iceberg.snapshots(), key=lambda each: -each.sequence_number)
        entries = (
            details_of(None if each.summary is None else each.summary.get(LEDGER_PREFIX)) for each in newest_first
        )
        return [entry for entry in entries if entry is not None]

    def _ledger_numbers(self) -> dict[str, int]:
        return dict(json.loads(self._iceberg.properties.get(LEDGER_PREFIX, "{}")))

    def _ledger_properties(self, note: CommitNote) -> dict[str, str]:
        return {LEDGER_PREFIX: json.dumps({**self._ledger_numbers(), **note.numbers})}

    def _commit(self, changes: Any) -> bool:
        """Makes changes to the newest version and commits them; retries after conflicts."""
        for attempt in range(ATTEMPTS):
            try:
                self.refresh()
                self._iceberg.metadata.properties["commit.retry.num-retries"] = "0"  # in memory only, never committed
                change = self._iceberg.transaction()
                if not changes(change):
                    return False
                change.commit_transaction()
                return True
            except _CONFLICTS as error:
                last = error
                time.sleep(min(2.0, 0.02 * 2 ** min(attempt, 7)))
        raise CommitConflictError(f"{self.name}: other writers won {ATTEMPTS} attempts to commit; try again: {last}")

    def _data_file(self, file: WrittenFile) -> Any:
        return to_data_file(file, self.storage.full(file.path), self._iceberg.metadata)

    def scan(self, columns: Sequence[str] | None = None, conditions: Sequence[Condition] = ()) -> Scan:
        schema = self.project(columns)
        projected = self._schema_now.select(*schema.names)
        tasks = []
        if self._snapshot_id is not None:
            plan = self._iceberg.scan(row_filter=iceberg_expression(conditions), snapshot_id=self._snapshot_id)
            tasks = list(plan.plan_files())
        files = [
            TableFile(
                self.storage.relative(task.file.file_path) or task.file.file_path,
                task.file.file_size_in_bytes,
                task.file.record_count,
                {f"partition {number}": value for number, value in enumerate(_values(task.file.partition))},
                ranges(task.file, self._iceberg.schema()),
                task,
            )
            for task in tasks
        ]
        files.sort(key=lambda file: file.path)  # plans have no fixed order, and readers need one
        properties = dict(self._iceberg.io.properties)
        # Tasks do not need snapshots and history, which grow.
        metadata = self._iceberg.metadata.model_copy(update={"snapshots": [], "snapshot_log": [], "metadata_log": []})
        return IcebergScan(schema, files, metadata, projected, tuple(conditions), properties)

    def at_version(self, version: str) -> "IcebergLakeTable":
        snapshot = self._iceberg.metadata.snapshot_by_id(int(version)) if version.isdigit() else None
        if version == NO_SNAPSHOT and self._snapshot_id is None:
            return self
        if snapshot is None:
            raise NoTableError(f"{self.name} has no snapshot {version}; the newest is {self.version}")
        return IcebergLakeTable(self.options, self._iceberg, snapshot.snapshot_id)

    def history(self, limit: int | None = None) -> list[TableVersion]:
        shown = ("added-data-files", "deleted-data-files", "added-records", "millstream.app", "millstream.batch")
        found = []
        for snapshot in sorted(self._iceberg.snapshots(), key=lambda each: -each.timestamp_ms)[:limit]:
            summary = snapshot.summary
            details = {} if summary is None else {name: summary[name] for name in shown if summary.get(name)}
            when = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            operation = "?" if summary is None else summary.operation.value
            found.append(TableVersion(str(snapshot.snapshot_id), when, operation, details))
        return found

    def optimize(self, target_size: int, sort: Sequence[str], progress: Progress) -> RewriteResult:
        self.check_sort(sort)
        self.refresh()
        scan = self.scan()
        spec = self._iceberg.metadata.default_spec_id
        # Files with rows deleted by another engine, and with older partitionings, are left to that engine.
        ours = [file for file in scan.files if not file.handle.delete_files and file.handle.file.spec_id == spec]
        groups = plan_rewrites(ours, target_size, all_files=bool(sort))
        total, done = sum(group.size for group in groups), 0
        result = RewriteResult(len(scan.files), len(scan.files), *[sum(file.size for file in scan.files)] * 2)
        layout = self.layout()
        for group in groups:
            progress(done, total)
            written = rewrite(scan, group, layout, sort)
            if self._replace(group.files, written):
                result.files_after += len(written) - len(group.files)
                result.bytes_after += sum(file.size for file in written) - group.size
            else:
                self.discard(file.path for file in written)
            done += group.size
        progress(total, total)
        return result

    def _replace(self, old: Sequence[TableFile], new: Sequence[WrittenFile]) -> bool:
        """Replaces files in one snapshot; False if the old ones were removed, or rows in them deleted."""
        wanted = {file.path for file in old}

        def changes(change: Any) -> bool:
            present = {file.path for file in self.scan().files if not file.handle.delete_files}
            if not wanted <= present:
                return False
            update = change.update_snapshot(snapshot_properties={"millstream.operation": "optimize"})
            with update.overwrite() as producer:
                for file in old:
                    producer.delete_data_file(file.handle.file)
                for each in new:
                    producer.append_data_file(self._data_file(each))
            return True

        return self._commit(changes)

    def vacuum(self, older_than: timedelta) -> int:
        limit = datetime.now(UTC) - older_than
        self.refresh()
        self._iceberg.maintenance.expire_snapshots().older_than(limit).commit()
        self.refresh()
        needed = self._needed_files()
        deleted = sweep(self, older_than)
        for directory, suffix in (("data/", ".parquet"), ("metadata/", ".avro")):
            for each in self.storage.listed(directory):
                if each.path.endswith(suffix) and each.path not in needed and each.modified <= limit:
                    self.storage.delete(each.path)
                    deleted += 1
        return deleted

    def _needed_files(self) -> set[str | None]:
        """Manifest lists, manifests and data files of all remaining snapshots."""
        io = self._iceberg.io
        needed: set[str | None] = set()
        for snapshot in self._iceberg.snapshots():
            needed.add(self.storage.relative(snapshot.manifest_list))
            for manifest in snapshot.manifests(io):
                path = self.storage.relative(manifest.manifest_path)
                if path in needed:
                    continue
                needed.add(path)
                entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                needed.update(self.storage.relative(entry.data_file.file_path) for entry in entries)
        return needed


def _batch_properties(transaction: AppTransaction) -> dict[str, str]:
    kept = {"batch": transaction.number, "input": transaction.input.to_json() if transaction.input else None}
    return {
        BATCH_PROPERTY + transaction.app: str(transaction.number),
        INPUT_PROPERTY + transaction.app: json.dumps(kept),
    }


def _values(record: Any) -> list[Any]:
    return [record[position] for position in range(len(record))]
