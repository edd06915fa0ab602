"""Writing a table from Spark: tasks write data files, the driver's commit adds all of them in one step, or none.

A batch of a stream is (query id, batch id); Spark repeats a batch under the same ids after a failure, and the table
knows the newest one it has. So a batch is in the table once, whatever was killed when.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.lake.data_files import FileLayout, WrittenFile, write_files
from millstream.lake.errors import LakeError, StaleWriteError
from millstream.lake.options import TableOptions
from millstream.lake.table import AppTransaction, open_or_create, open_table
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.sink.checkpoint_input import CheckpointOffsets, input_of_rows
from millstream.spark.sink.row_digest import Digesting, RowDigest


@dataclass(frozen=True)
class FilesWritten(WriterCommitMessage):
    """What a task tells the driver: its files, and which query they are of."""

    app: str | None
    files: tuple[WrittenFile, ...]
    digest: RowDigest | None = None
    """Of the rows, where nothing else says which input they are."""
    query: str | None = None
    """Spark's id of the streaming query."""


class _TableWriter:
    def __init__(self, options: TableOptions, rows: StructType, *, replace: bool) -> None:
        if options.version is not None or options.columns is not None:
            raise LakeError("version and columns are options for reading a table, not for writing it")
        self._options = options
        self._replace = replace
        self._layout: FileLayout = open_or_create(options, to_arrow_schema(rows, timezone="UTC")).layout()

    def _write(self, batches: Iterator[pa.RecordBatch], label: str, *, digested: bool) -> FilesWritten:
        if not digested:
            return FilesWritten(None, tuple(write_files(batches, self._layout, label)))
        digesting = Digesting(batches)
        return FilesWritten(None, tuple(write_files(digesting, self._layout, label)), digesting.digest)

    def _commit(self, messages: Sequence[FilesWritten | None], transaction: AppTransaction | None) -> None:
        files = [file for message in messages if message is not None for file in message.files]
        if not files and not self._replace:
            if transaction is not None:
                open_table(self._options).is_committed(transaction)  # no rows now, but some under this number before?
            return
        table = open_table(self._options)
        try:
            is_new = table.commit(files, transaction, replace=self._replace)
        except StaleWriteError:
            table.discard(file.path for file in files)
            raise
        if not is_new:
            table.discard(file.path for file in files)

    def _abort(self, messages: Sequence[FilesWritten | None]) -> None:
        """Delete what tasks wrote; unless all of them did, for then a commit was tried, and nobody knows how it ended.

        `millstream table optimize --vacuum` finds what is left."""
        if any(message is None for message in messages):
            for message in messages:
                for file in message.files if message is not None else ():
                    self._layout.storage.delete(file.path)


class StreamTableWriter(_TableWriter, DataSourceStreamArrowWriter):
    """Of a streaming query: exactly once."""

    def __init__(self, options: TableOptions, rows: StructType, *, replace: bool) -> None:
        super().__init__(options, rows, replace=replace)
        self._offsets = CheckpointOffsets.find(options.checkpoint) if options.check_replays else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        app = self._options.txn_app_id or query
        if app is None:
            raise LakeError("Spark did not say which streaming query this is; set the option txnAppId")
        batch = "" if context is None else context.getLocalProperty("streaming.sql.batchId") or ""
        digested = self._options.check_replays and not self._knows_offsets_of(query)
        written = self._write(iterator, f"{app[:8]}-{batch}", digested=digested)
        return dataclasses.replace(written, app=app, query=query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        known = [message for message in messages if isinstance(message, FilesWritten)]
        apps = {message.app for message in known if message.app is not None}
        if len(apps) > 1:
            raise LakeError(f"one batch with files of several queries: {', '.join(sorted(apps))}")
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
    """Of `df.write`: one commit; with txnAppId and txnVersion it may be repeated."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        digested = self._options.check_replays and self._options.txn_app_id is not None
        return self._write(iterator, "batch", digested=digested)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        app, number = self._options.txn_app_id, self._options.txn_version
        if app is not None and number is None:
            raise LakeError("txnAppId needs txnVersion in a batch write")
        known = [message for message in messages if isinstance(message, FilesWritten)]
        transaction = None
        if app is not None and number is not None:
            given = input_of_rows([message.digest for message in known]) if self._options.check_replays else None
            transaction = AppTransaction(app, number, given, is_stream=False)
        self._commit(known, transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort([message if isinstance(message, FilesWritten) else None for message in messages])
