"""`format("millstream-table")`: lake tables in Spark, reading and writing.

Reading: files are distributed to tasks, which yield Arrow batches. Spark passes filters to a Python source only with
`spark.sql.python.filterPushdown.enabled`; then files and row groups that cannot match are skipped.

Writing: tasks write data files, and the driver's commit adds all of them in one step. A batch of a stream is (query id,
batch id). Spark repeats a failed batch under the same ids, and the table has the newest ids, so each batch is in the
table once.
"""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millstream.lake.data_files import FileLayout, WrittenFile, write_files
from millstream.lake.errors import LakeError, StaleWriteError
from millstream.lake.options import TableOptions, parse_options
from millstream.lake.scan import Condition, Scan, TableFile, from_spark
from millstream.lake.schema_evolution import conform
from millstream.lake.table import AppTransaction, open_or_create, open_table
from millstream.lake.upserts import UpsertRules, merge, staging
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.sink.input_identity import CheckpointOffsets, DigestingRows, RowDigest, input_of_rows

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class FileShare(InputPartition):
    """The files that a task reads; all tasks read the same version."""

    def __init__(self, scan: Scan, files: list[TableFile]) -> None:
        super().__init__(len(files))
        self.scan = scan
        self.files = files


class TableReader(DataSourceReader):
    """Reads one version of a table, the newest when the query is planned."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        scan = open_table(self._options).scan(self._schema.names, self._conditions)
        shares = scan.splits(self._options.split_size)
        scan.files = []  # each task gets only its own files
        return [FileShare(scan, share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FileShare):  # Spark makes an empty partition if there is none
            return
        for batch in partition.scan.read(partition.files):
            yield conform(batch, self._schema)


class PruningTableReader(TableReader):
    """A reader that gets filters from Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        table = open_table(self._options)
        self._conditions = from_spark(filters, table.schema)
        return filters  # Spark applies all filters again


def make_reader(options: TableOptions, schema: StructType) -> TableReader:
    """A reader with `pushFilters` is an error if the setting is off; the running worker module shows whether it is
    on."""
    kind = PruningTableReader if _PUSHDOWN_WORKER in sys.modules else TableReader
    return kind(options, schema)


@dataclass(frozen=True)
class FilesWritten(WriterCommitMessage):
    """The message of a task to the driver: its files, and their query."""

    app: str | None
    files: tuple[WrittenFile, ...]
    digest: RowDigest | None = None
    """Digest of the rows, if the checkpoint does not identify the input."""
    query: str | None = None
    """Spark's id of the streaming query."""


class _TableWriter:
    def __init__(self, options: TableOptions, rows: StructType, *, replace: bool) -> None:
        if options.version is not None or options.columns is not None:
            raise LakeError("version and columns are options for reading; remove them from the write")
        self._options = options
        self._replace = replace
        self._rows: pa.Schema = to_arrow_schema(rows, timezone="UTC")
        self._rules = UpsertRules.of(options)
        self._layout: FileLayout
        if self._rules is None:
            self._layout = open_or_create(options, self._rows).layout()
            return
        if replace:
            raise LakeError("a table with keys is changed row by row; use the mode append, or remove keys")
        self._layout = staging(open_or_create(options, self._rules.table_schema(self._rows)), self._rows)

    def _write(self, batches: Iterator[pa.RecordBatch], label: str, *, digested: bool) -> FilesWritten:
        if (rules := self._rules) is not None:
            batches = (rules.check(batch) for batch in batches)
        if not digested:
            return FilesWritten(None, tuple(write_files(batches, self._layout, label)))
        digesting = DigestingRows(batches)
        return FilesWritten(None, tuple(write_files(digesting, self._layout, label)), digesting.digest)

    def _commit(self, messages: Sequence[FilesWritten | None], transaction: AppTransaction | None) -> None:
        files = [file for message in messages if message is not None for file in message.files]
        if not files and not self._replace:
            if transaction is not None:
                open_table(self._options).is_committed(transaction)  # raises if this number was used with other rows
            return
        table = open_table(self._options)
        if self._rules is not None:
            try:
                merge(table, self._rules, files, self._rows, transaction)
            except StaleWriteError:
                self._delete(files)
                raise
            return
        try:
            is_new = table.commit(files, transaction, replace=self._replace)
        except StaleWriteError:
            table.discard(file.path for file in files)
            raise
        if not is_new:
            table.discard(file.path for file in files)

    def _abort(self, messages: Sequence[FilesWritten | None]) -> None:
        """Deletes the files of tasks, unless all tasks succeeded: then a commit was tried, with an unknown result.

        `millstream table optimize --vacuum` deletes the remaining files."""
        if any(message is None for message in messages):
            self._delete([file for message in messages if message is not None for file in message.files])

    def _delete(self, files: Sequence[WrittenFile]) -> None:
        for file in files:
            self._layout.storage.delete(file.path)


class StreamTableWriter(_TableWriter, DataSourceStreamArrowWriter):
    """Writes a streaming query, exactly once."""

    def __init__(self, options: TableOptions, rows: StructType, *, replace: bool) -> None:
        super().__init__(options, rows, replace=replace)
        self._offsets = CheckpointOffsets.find(options.checkpoint) if options.check_replays else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        app = self._options.txn_app_id or query
        if app is None:
            raise LakeError("Spark did not pass the id of the streaming query; set the option txnAppId")
        batch = "" if context is None else context.getLocalProperty("streaming.sql.batchId") or ""
        digested = self._options.check_replays and not self._knows_offsets_of(query)
        written = self._write(iterator, f"{app[:8]}-{batch}", digested=digested)
        return dataclasses.replace(written, app=app, query=query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        known = [message for message in messages if isinstance(message, FilesWritten)]
        apps = {message.app for message in known if message.app is not None}
        if len(apps) > 1:
            raise LakeError(f"a batch has files of several queries: {', '.join(sorted(apps))}; start the query again")
        self._commit(known, AppTransaction(apps.pop(), batchId, self._input(known, batchId)) if apps else None)

    def _input(self, messages: Sequence[FilesWritten], batch: int) -> BatchInput | None:
        if not self._options.check_replays:
            return None
        if self._offsets is not None and self._knows_offsets_of(messages[0].query):
            return self._offsets.input_of(batch)
        return input_of_rows([message.digest for message in messages])

    def _knows_offsets_of(self, query: str | None) -> bool:
        return self._offsets is not None and self._offsets.query == query

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort([message if isinstance(message, FilesWritten) else None for message in messages])


class BatchTableWriter(_TableWriter, DataSourceArrowWriter):
    """Writes `df.write` in one commit; with txnAppId and txnVersion it can be repeated. It is then known by its rows;
    with the checkpointLocation of the query whose batch txnVersion is, by the offsets of that batch."""

    def __init__(self, options: TableOptions, rows: StructType, *, replace: bool) -> None:
        super().__init__(options, rows, replace=replace)
        self._is_named = options.check_replays and options.txn_app_id is not None
        self._offsets = CheckpointOffsets.find(options.checkpoint) if self._is_named else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        digested = self._is_named and self._offsets is None
        return self._write(iterator, "batch", digested=digested)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        app, number = self._options.txn_app_id, self._options.txn_version
        if app is not None and number is None:
            raise LakeError("txnAppId needs txnVersion in a batch write; set both")
        known = [message for message in messages if isinstance(message, FilesWritten)]
        transaction = None
        if app is not None and number is not None:
            transaction = AppTransaction(app, number, self._input(known, number), is_stream=self._offsets is not None)
        self._commit(known, transaction)

    def _input(self, messages: Sequence[FilesWritten], number: int) -> BatchInput | None:
        if not self._options.check_replays:
            return None
        if self._offsets is not None:
            return self._offsets.input_of(number)
        return input_of_rows([message.digest for message in messages])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort([message if isinstance(message, FilesWritten) else None for message in messages])


class MillstreamTableSource(DataSource):
    """Reads tables (batch) and writes them (batch, and streams exactly once)."""

    @classmethod
    def name(cls) -> str:
        return "millstream-table"

    def _options(self) -> TableOptions:
        return parse_options(self.options)

    def schema(self) -> StructType:
        options = self._options()
        return from_arrow_schema(open_table(options).project(options.columns))

    def reader(self, schema: StructType) -> TableReader:
        return make_reader(self._options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise LakeError(
            "a table is read with spark.read; to stream a topic with its history from a table, use"
            ' readStream.format("millstream") with startingOffsets=table:PATH'
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchTableWriter:
        return BatchTableWriter(self._options(), schema, replace=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamTableWriter:  # noqa: N802
        return StreamTableWriter(self._options(), schema, replace=overwrite)
