"""Tables of plain Parquet files with a log of our own beside them.

A reader that knows the log sees committed files and no others. One that does not (`read_parquet("…/**/*.parquet")`)
sees a file once it is committed, because only then is it moved to its final name: `x.parquet.staged` becomes
`x.parquet`, and what `optimize` replaced becomes `x.parquet.removed`. The log decides, the moves follow; whoever comes
next finishes them after a crash.
"""

import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from millstream.lake.data_files import FileLayout, WrittenFile, plan_rewrites, rewrite
from millstream.lake.errors import CommitConflictError, NoTableError
from millstream.lake.options import TableOptions
from millstream.lake.parquet_log import LOG_DIRECTORY, LogEntry, LoggedFile, LogState, ParquetLog, now
from millstream.lake.partitioning import Partitioning, value_from_text, value_text
from millstream.lake.scan import Condition, FileScan, Scan, TableFile, statistics, to_json_value
from millstream.lake.schema_evolution import can_hold
from millstream.lake.storage import Storage
from millstream.lake.table import AppTransaction, LakeTable, Progress, Rewritten, TableVersion
from millstream.spark.sink.batch_input import WrittenBatch

STAGED: Final = ".staged"
REMOVED: Final = ".removed"
ATTEMPTS: Final = 100
_MOVES_AT_ONCE: Final = 16
_DATA_FILE: Final = re.compile(r"(^|/)part-[^/]*-[0-9a-f]{32}\.parquet$")
"""Under its final name, as `data_files` calls it."""


class ParquetLakeTable(LakeTable):
    """A directory of Parquet files and its log."""

    format = "parquet"
    widening = staticmethod(can_hold)

    def __init__(self, storage: Storage, options: TableOptions, state: LogState) -> None:
        super().__init__(storage, options)
        self._log = ParquetLog(storage)
        self._state = state

    @staticmethod
    def open(options: TableOptions) -> "ParquetLakeTable | None":
        assert options.path is not None
        storage = Storage.at(options.path, options.s3)
        state = ParquetLog(storage).newest()
        return None if state is None else ParquetLakeTable(storage, options, state)

    @staticmethod
    def create(options: TableOptions, rows: pa.Schema, partitioning: Partitioning) -> "ParquetLakeTable":
        assert options.path is not None
        storage = Storage.at(options.path, options.s3)
        derived = [term.field(rows) for term in partitioning.derived]
        entry = LogEntry("create", now(), pa.schema([*rows, *derived]), partitioning.text)
        # If somebody else made it at the same moment, theirs is the table; `accept` sees whether it fits.
        state = ParquetLog(storage).append(None, entry) or ParquetLog(storage).newest()
        assert state is not None
        return ParquetLakeTable(storage, options, state)

    @property
    def schema(self) -> pa.Schema:
        return self._state.schema

    @property
    def partitioning(self) -> Partitioning:
        return Partitioning.parse(tuple(word for word in self._state.partition_by.split(",") if word))

    @property
    def version(self) -> str:
        return str(self._state.version)

    def refresh(self) -> None:
        state = self._log.newest()
        if state is None:
            raise NoTableError(f"the table at {self.name} is gone")
        self._state = state

    def layout(self) -> FileLayout:
        partition_columns = set(self.partitioning.names)
        return FileLayout(
            storage=self.storage,
            schema=self.row_schema,
            file_schema=pa.schema([each for each in self.schema if each.name not in partition_columns]),
            partitioning=self.partitioning,
            suffix=f".parquet{STAGED}",
            hive_paths=True,
            compression=self.options.compression,
            target_size=self.options.target_file_size,
        )

    def change_schema(self, schema: pa.Schema, added: Sequence[str], widened: Sequence[str]) -> None:
        derived = [self.schema.field(term.name) for term in self.partitioning.derived]
        entry = LogEntry("change schema", now(), pa.schema([*schema, *derived]))
        state = self._log.append(self._state, entry)
        if state is None:  # others wrote: look at what they made of it, and see again what is to be changed
            self.refresh()
            self.accept(schema)
            return
        self._state = state

    def newest_write(self, app: str) -> WrittenBatch | None:
        number = self._state.apps.get(app)
        return None if number is None else WrittenBatch(number, self._state.inputs.get(app))

    def commit(self, files: Sequence[WrittenFile], transaction: AppTransaction | None, *, replace: bool) -> bool:
        added = [self._logged(file) for file in files]
        for attempt in range(ATTEMPTS):
            self.refresh()
            if transaction and self._is_finished(transaction):
                return False
            removed = list(self._state.files) if replace else []
            app = (transaction.app, transaction.number) if transaction else None
            given = transaction.input if transaction else None
            entry = LogEntry("replace" if replace else "append", now(), None, None, added, removed, app, given)
            state = self._log.append(self._state, entry)
            if state is not None:
                self._state = state
                self._move(removed, [file.path for file in added])
                return True
            time.sleep(min(1.0, 0.01 * 2 ** min(attempt, 7)))
        raise CommitConflictError(f"{self.name}: {ATTEMPTS} attempts to commit lost against other writers")

    def _is_finished(self, transaction: AppTransaction) -> bool:
        newest = self.newest_write(transaction.app)
        if newest is not None and newest.number >= transaction.number:
            self._finish_moves()  # of what is in the table, whether it is this write or not
        return self.is_committed(transaction)

    def _move(self, removed: Iterable[str], added: Iterable[str]) -> None:
        """Bring the names of files in line with the log; what is done already is no error."""
        with ThreadPoolExecutor(_MOVES_AT_ONCE) as pool:
            list(pool.map(lambda path: self.storage.rename(path, path + REMOVED), removed))
            list(pool.map(lambda path: self.storage.rename(path + STAGED, path), added))

    def _finish_moves(self) -> None:
        """Moves that a writer decided on and did not live to do."""
        listed = {each.path for each in self.storage.listed()}
        self.refresh()  # after the look: a file has its final name only when the log has had it
        removed = [path for path in listed if _DATA_FILE.search(path) and path not in self._state.files]
        self._move(removed, [path for path in self._state.files if path + STAGED in listed])

    def file_paths(self) -> set[str]:
        return set(self._state.files)

    def final_path(self, path: str) -> str:
        return path.removesuffix(STAGED)

    def _logged(self, file: WrittenFile) -> LoggedFile:
        found = statistics(file.footer)
        ranges = {
            name: [to_json_value(low, is_upper=False), to_json_value(high, is_upper=True)]
            for name, (low, high) in found.ranges.items()
        }
        values = zip(self.partitioning.names, file.partition, strict=True)
        return LoggedFile(
            self.final_path(file.path),
            file.size,
            file.rows,
            {name: None if value is None else value_text(value) for name, value in values},
            {name: pair for name, pair in ranges.items() if None not in pair},
        )

    def scan(self, columns: Sequence[str] | None = None, conditions: Sequence[Condition] = ()) -> Scan:
        return FileScan(
            self.storage, self.schema, self.project(columns), self._files(), tuple(conditions), (STAGED, REMOVED)
        )

    def _files(self) -> list[TableFile]:
        kinds = {each.name: each.type for each in self.schema}
        return [
            TableFile(
                file.path,
                file.size,
                file.rows,
                {name: value_from_text(text, kinds[name]) for name, text in file.partition.items()},
                {
                    name: (_bound(low, kinds[name]), _bound(high, kinds[name]))
                    for name, (low, high) in file.ranges.items()
                },
            )
            for file in self._state.files.values()
        ]

    def at_version(self, version: str) -> "ParquetLakeTable":
        state = self._log.at(int(version)) if version.isdigit() else None
        if state is None:
            raise NoTableError(f"{self.name} has no version {version}; the newest is {self.version}")
        return ParquetLakeTable(self.storage, self.options, state)

    def history(self, limit: int | None = None) -> list[TableVersion]:
        versions = self._log.versions()[::-1][:limit]
        found = []
        for version in versions:
            entry = self._log.entry(version)
            details: dict[str, Any] = {"files added": len(entry.added), "files removed": len(entry.removed)}
            details["rows added"] = sum(file.rows for file in entry.added)
            if entry.app is not None:
                details |= {"app": entry.app[0], "batch": entry.app[1]}
            found.append(TableVersion(str(version), entry.time, entry.operation, details))
        return found

    def optimize(self, target_size: int, sort: Sequence[str], progress: Progress) -> Rewritten:
        self.check_sort(sort)
        self.refresh()
        self._finish_moves()
        scan = self.scan(self.row_schema.names)
        groups = plan_rewrites(scan.files, target_size, all_files=bool(sort))
        total, done = sum(group.size for group in groups), 0
        result = Rewritten(len(scan.files), len(scan.files), *[sum(file.size for file in scan.files)] * 2)
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
        """Files in place of others in one step; False if another optimize or an overwrite took the old ones."""
        removed, added = [file.path for file in old], [self._logged(file) for file in new]
        for attempt in range(ATTEMPTS):
            self.refresh()
            if any(path not in self._state.files for path in removed):
                return False
            state = self._log.append(self._state, LogEntry("optimize", now(), None, None, added, removed))
            if state is not None:
                self._state = state
                self._move(removed, [file.path for file in added])
                return True
            time.sleep(min(1.0, 0.01 * 2 ** min(attempt, 7)))
        raise CommitConflictError(f"{self.name}: optimize lost against other writers {ATTEMPTS} times")

    def vacuum(self, older_than: timedelta) -> int:
        self.refresh()
        self._finish_moves()
        limit = now() - older_than
        needed = {*self._state.files, *self._removed_since(limit)}
        deleted = 0
        for each in self.storage.listed():
            plain = each.path.removesuffix(STAGED).removesuffix(REMOVED)
            ours = plain.endswith(".parquet") and not each.path.startswith(LOG_DIRECTORY)
            if ours and plain not in needed and each.modified <= limit:
                self.storage.delete(each.path)
                deleted += 1
        return deleted + self._log.trim(limit)

    def _removed_since(self, limit: datetime) -> set[str]:
        """Files that a reader of a version that young may still read."""
        found: set[str] = set()
        for version in reversed(self._log.versions()):
            entry = self._log.entry(version)
            if entry.time <= limit:
                break
            found.update(entry.removed)
        return found


def _bound(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind) and isinstance(value, str):
        time_ = datetime.fromisoformat(value)
        return time_ if time_.tzinfo else time_.replace(tzinfo=UTC)
    if pa.types.is_date(kind) and isinstance(value, str):
        return date.fromisoformat(value)
    return value
