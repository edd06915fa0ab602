"""Upserts: rows that replace the row with the same keys, or delete it; and history tables, with all versions of a row.

The first part is pure: from the changes of some keys, and what the table has of these keys, to what it has afterwards.
The sequence of a change orders the changes of a key, not the time at which they arrive. So late changes, and changes in
another order, give the same table.

The second part changes a table. Tasks write their changes to files that are not in the table; the driver's commit
merges them. It reads the files that may have rows of these keys, writes them again without those rows, adds the new
rows, and replaces the files in one commit, together with the id of the batch. If another writer was faster, it begins
again.

A deleted key has no row, but its deletion must be known: an older change that arrives later would bring the row back.
So deletions are kept in a file beside the data for `keepDeletes`; the commit has its number.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import SystemRandom
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.lake.data_files import FileLayout, WrittenFile, write_files
from millstream.lake.errors import CommitConflictError, LakeError, LakeOptionError
from millstream.lake.ledger import Bookkeeping
from millstream.lake.options import TableOptions
from millstream.lake.partitioning import Partitioning
from millstream.lake.row_crc import RowCrc, row_crc
from millstream.lake.scan import Condition, TableFile, all_may_hold
from millstream.lake.schema_evolution import conform, storable
from millstream.lake.storage import Storage
from millstream.lake.table import AppTransaction, LakeTable

VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
CURRENT: Final = "_current"
_NOTED_AT: Final = "_noted_at"
CHANGES: Final = "_millstream_changes"
"""The directory of changes that are not merged yet. Delta and Iceberg leave directories with `_` alone."""
DELETES: Final = "_millstream_deletes"
_ATTEMPTS: Final = 20
_LISTED_KEYS: Final = 1000

Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True)
class UpsertRules:
    """How changes become rows."""

    keys: tuple[str, ...]
    sequence: str
    delete: str | None = None
    """A column of changes that is true for deletions; it is not in the table."""
    history: bool = False

    @staticmethod
    def of(options: TableOptions) -> "UpsertRules | None":
        if options.keys is None:
            return None
        if options.sequence_by is None:
            raise LakeOptionError(
                "keys needs sequenceBy: a column that grows with each change of a key, such as an offset, a version or"
                " a time"
            )
        return UpsertRules(options.keys, options.sequence_by, options.delete_column, options.history)

    def table_schema(self, changes: pa.Schema) -> pa.Schema:
        """The columns of the table for changes with these columns. LakeOptionError if they do not fit."""
        for name in (*self.keys, self.sequence, *((self.delete,) if self.delete else ())):
            if name not in changes.names:
                raise LakeOptionError(f"the rows have no column {name}; columns are {', '.join(changes.names)}")
        for name in (*self.keys, self.sequence):
            kind = changes.field(name).type
            if pa.types.is_nested(kind) or (name in self.keys and pa.types.is_floating(kind)):
                raise LakeOptionError(f"column {name} is {kind}, which cannot be a key or a sequence; choose another")
        if self.delete is not None and not pa.types.is_boolean(changes.field(self.delete).type):
            raise LakeOptionError(f"deleteColumn={self.delete} must be a boolean column")
        kept = [each for each in changes if each.name != self.delete]
        if self.history:
            if taken := {VALID_FROM, VALID_TO, CURRENT} & set(changes.names):
                raise LakeOptionError(f"history adds a column {min(taken)}, and the rows have one; rename it")
            kind = changes.field(self.sequence).type
            kept += [pa.field(VALID_FROM, kind), pa.field(VALID_TO, kind), pa.field(CURRENT, pa.bool_())]
        return pa.schema(kept)

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in (*self.keys, self.sequence):
            if batch.column(name).null_count:
                raise LakeError(
                    f"a change has null in the column {name}, which is a key or the sequence; filter such rows out"
                )
        return batch


# Pure


@dataclass(frozen=True)
class Deletion:
    """A deleted key that the rows of the table do not show."""

    key: Key
    sequence: Any
    noted_at: datetime


@dataclass(frozen=True)
class Event:
    """A change of a key; `row` is None for a deletion."""

    sequence: Any
    row: Row | None


def resolve(
    rules: UpsertRules,
    changes: Iterable[Row],
    rows: Iterable[Row],
    deletions: Iterable[Deletion],
    now: datetime,
) -> tuple[list[Row], list[Deletion]]:
    """The rows and deletions of all keys in the arguments, after the changes.

    `rows`, `deletions`: all that the table has of these keys. Of two changes with the same sequence the later one in
    `changes` counts, and a change before a row of the table.
    """
    events: dict[Key, dict[Any, Event]] = {}
    noted: dict[tuple[Key, Any], datetime] = {}
    for deletion in deletions:
        events.setdefault(deletion.key, {})[deletion.sequence] = Event(deletion.sequence, None)
        noted[deletion.key, deletion.sequence] = deletion.noted_at
    for key, event in _known(rules, rows):
        events.setdefault(key, {})[event.sequence] = event
    for change in changes:
        key = tuple(change[name] for name in rules.keys)
        gone = rules.delete is not None and bool(change[rules.delete])
        kept = None if gone else {name: value for name, value in change.items() if name != rules.delete}
        events.setdefault(key, {})[change[rules.sequence]] = Event(change[rules.sequence], kept)
    found: list[Row] = []
    left: list[Deletion] = []
    for key, by_sequence in events.items():
        ordered = [by_sequence[sequence] for sequence in sorted(by_sequence)]
        made, unseen = _versions(ordered) if rules.history else _newest(ordered)
        found += made
        left += [Deletion(key, sequence, noted.get((key, sequence), now)) for sequence in unseen]
    return found, left


def _known(rules: UpsertRules, rows: Iterable[Row]) -> Iterator[tuple[Key, Event]]:
    """The events that rows of the table show: their own, and deletions at the end of a version."""
    own = {VALID_FROM, VALID_TO, CURRENT}
    begins: set[tuple[Key, Any]] = set()
    ends: list[tuple[Key, Any]] = []
    for row in rows:
        key = tuple(row[name] for name in rules.keys)
        begins.add((key, row[rules.sequence]))
        if rules.history and not row[CURRENT]:
            ends.append((key, row[VALID_TO]))
        yield key, Event(row[rules.sequence], {name: value for name, value in row.items() if name not in own})
    for key, sequence in ends:
        if (key, sequence) not in begins:
            yield key, Event(sequence, None)


def _newest(ordered: Sequence[Event]) -> tuple[list[Row], list[Any]]:
    last = ordered[-1]
    return ([], [last.sequence]) if last.row is None else ([last.row], [])


def _versions(ordered: Sequence[Event]) -> tuple[list[Row], list[Any]]:
    """All versions with their times, and the deletions that do not end a version."""
    found: list[Row] = []
    unseen = []
    for number, event in enumerate(ordered):
        following = ordered[number + 1].sequence if number + 1 < len(ordered) else None
        if event.row is not None:
            found.append(event.row | {VALID_FROM: event.sequence, VALID_TO: following, CURRENT: following is None})
        elif number == 0 or ordered[number - 1].row is None:
            unseen.append(event.sequence)
    return found, unseen


# In a table


def staging(table: LakeTable, changes: pa.Schema) -> FileLayout:
    """Where tasks write changes."""
    schema = storable(changes)
    return FileLayout(table.storage, schema, schema, Partitioning(), CHANGES, table.options.compression)


def merge(
    table: LakeTable,
    rules: UpsertRules,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    transaction: AppTransaction | None,
    books: Bookkeeping | None = None,
) -> bool:
    """Merges the changes in these files into the table, in one commit. False if that was done before.

    The files with the changes are deleted at the end. Memory: the changes of the batch, and one data file at a time.
    """
    changes = _read_changes(table.storage, files, storable(schema))
    for attempt in range(_ATTEMPTS):
        table.refresh()
        if transaction is not None and table.is_committed(transaction):
            _discard(table.storage, [file.path for file in files])
            return False
        plan = _Merge(table, rules, changes)
        try:
            note = None if books is None else books.note(table.ledger, plan.change)
            table.replace_files(plan.old, plan.new, transaction, plan.deletes_number, note)
        except CommitConflictError as error:
            plan.undo()
            last = error
            time.sleep(min(2.0, 0.05 * 2**attempt))
            continue
        except BaseException:
            table.discard(file.path for file in plan.new)
            raise
        _discard(table.storage, [file.path for file in files])
        return True
    raise CommitConflictError(f"{table.name}: other writers won {_ATTEMPTS} attempts to merge; try again: {last}")


def _read_changes(storage: Storage, files: Sequence[WrittenFile], schema: pa.Schema) -> list[Row]:
    found: list[Row] = []
    for file in files:
        with storage.open_input(file.path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches():
                found += conform(batch, schema).to_pylist()
    return found


def _discard(storage: Storage, paths: Iterable[str]) -> None:
    for path in paths:
        storage.delete(path)


class _Merge:
    """The files of one attempt: those to remove, those to add, and the file of deletions."""

    def __init__(self, table: LakeTable, rules: UpsertRules, changes: Sequence[Row]) -> None:
        self._table = table
        self._rules = rules
        keys = {tuple(change[name] for name in rules.keys) for change in changes}
        self.old: list[TableFile] = []
        self.new: list[WrittenFile] = []
        self.change = RowCrc()
        """Of all rows of the table."""
        scan = table.scan(table.row_schema.names)
        layout = table.layout()
        touched: list[Row] = []
        conditions = _conditions(rules.keys, keys)
        for file in scan.files:
            if not all_may_hold(conditions, file.known_ranges):
                continue
            rows = pa.Table.from_batches(list(scan.read([file])), schema=scan.schema)
            of_keys = _rows_of_keys(rows, rules.keys, keys)
            if not pc.any(of_keys).as_py():
                continue
            self.old.append(file)
            mine = rows.filter(of_keys)
            touched += mine.to_pylist()
            self.change -= _crc(mine)
            rest = rows.filter(pc.invert(of_keys))
            self.new += write_files(rest.to_batches(), layout, "merged")
        now = datetime.now(UTC)
        oldest = now - timedelta(seconds=table.options.keep_deletes_s)
        kept = [each for each in self._deletions() if each.noted_at >= oldest]
        affected = [each for each in kept if each.key in keys]
        found, left = resolve(rules, changes, touched, affected, now)
        if found:
            batch = pa.RecordBatch.from_pylist(found, schema=table.row_schema)
            self.change += row_crc(batch)
            self.new += write_files([batch], layout, "upserted")
        self.deletes_number = self._write_deletions([each for each in kept if each.key not in keys] + left)

    def undo(self) -> None:
        _discard(self._table.storage, [file.path for file in self.new])
        if self.deletes_number:
            self._table.storage.delete(_deletes_path(self.deletes_number))

    def _deletions(self) -> list[Deletion]:
        number = self._table.deletes_number
        if not number:
            return []
        with self._table.storage.open_input(_deletes_path(number)) as stream:
            rows = pq.read_table(stream).to_pylist()
        return [
            Deletion(tuple(row[name] for name in self._rules.keys), row[self._rules.sequence], row[_NOTED_AT])
            for row in rows
        ]

    def _write_deletions(self, deletions: Sequence[Deletion]) -> int:
        """Returns the number of the file; 0 if there is none to keep."""
        if not deletions:
            return 0
        schema = self._table.row_schema
        names = dict.fromkeys((*self._rules.keys, self._rules.sequence))
        columns = [schema.field(name) for name in names] + [pa.field(_NOTED_AT, pa.timestamp("us", "UTC"))]
        rows = [
            dict(zip(self._rules.keys, each.key, strict=True))
            | {self._rules.sequence: each.sequence, _NOTED_AT: each.noted_at}
            for each in deletions
        ]
        number = SystemRandom().randrange(1, 1 << 62)  # of its own: a driver that lost must not write over the winner's
        with self._table.storage.open_output(_deletes_path(number)) as stream:
            pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), stream)
        return number


def _crc(rows: pa.Table) -> RowCrc:
    return sum((row_crc(batch) for batch in rows.to_batches()), RowCrc())


def _deletes_path(number: int) -> str:
    return f"{DELETES}/{number}.parquet"


def _conditions(names: Sequence[str], keys: set[Key]) -> list[Condition]:
    """What a file must fulfil to have rows of these keys."""
    found = []
    for position, name in enumerate(names):
        values = {key[position] for key in keys}
        if not values:
            continue
        if len(values) <= _LISTED_KEYS:
            found.append(Condition(name, "in", tuple(values)))
        else:
            found += [Condition(name, ">=", min(values)), Condition(name, "<=", max(values))]
    return found


def _rows_of_keys(rows: pa.Table, names: Sequence[str], keys: set[Key]) -> pa.Array:
    """Which rows have one of the keys."""
    if len(names) == 1:
        wanted = pa.array([key[0] for key in keys], rows.schema.field(names[0]).type)
        return pc.is_in(rows.column(names[0]), value_set=wanted).combine_chunks()
    columns = [rows.column(name).to_pylist() for name in names]
    return pa.array([key in keys for key in zip(*columns, strict=True)], pa.bool_())


def sweep(table: LakeTable, older_than: timedelta) -> int:
    """Deletes changes of failed writes, and files of deletions that no commit needs. Returns their number."""
    limit = datetime.now(UTC) - older_than
    needed = _deletes_path(table.deletes_number or 0)
    paths = [
        each.path
        for directory in (CHANGES, DELETES)
        for each in table.storage.listed(f"{directory}/")
        if each.path != needed and each.modified <= limit
    ]
    _discard(table.storage, paths)
    return len(paths)
