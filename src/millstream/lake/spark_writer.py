"""Writing a table from Spark: tasks write data files, the driver's commit adds all of them in one step, or none.

A batch of a stream is (query id, batch id); Spark repeats a batch under the same ids after a failure, and the table
knows the newest one it has. So a batch is in the table once, whatever was killed when.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.lake.data_files import FileLayout, WrittenFile, write_files
from millstream.lake.errors import LakeError
from millstream.lake.options import TableOptions
from millstream.lake.table import AppTransaction, open_or_create, open_table


@dataclass(frozen=True)
class FilesWritten(WriterCommitMessage):
    """What a task tells the driver: its files, and which query they are of."""

    app: str | None
    files: tuple[WrittenFile, ...]


class _TableWriter:
    def __init__(self, options: TableOptions, rows: StructType, *, replace: bool) -> None:
        if options.version is not None or options.columns is not None:
            raise LakeError("version and columns are options for reading a table, not for writing it")
        self._options = options
        self._replace = replace
        self._layout: FileLayout = open_or_create(options, to_arrow_schema(rows, timezone="UTC")).layout()

    def _write(self, batches: Iterator[pa.RecordBatch], app: str | None, label: str) -> FilesWritten:
        return FilesWritten(app, tuple(write_files(batches, self._layout, label)))

    def _commit(self, messages: Sequence[FilesWritten | None], transaction: AppTransaction | None) -> None:
        files = [file for message in messages if message is not None for file in message.files]
        if not files and not self._replace:
            return
        table = open_table(self._options)
        if not table.commit(files, transaction, replace=self._replace):
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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        app = self._options.txn_app_id or query
        if app is None:
            raise LakeError("Spark did not say which streaming query this is; set the option txnAppId")
        batch = "" if context is None else context.getLocalProperty("streaming.sql.batchId") or ""
        return self._write(iterator, app, f"{app[:8]}-{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        known = [message for message in messages if isinstance(message, FilesWritten)]
        apps = {message.app for message in known if message.app is not None}
        if len(apps) > 1:
            raise LakeError(f"one batch with files of several queries: {', '.join(sorted(apps))}")
        self._commit(known, AppTransaction(apps.pop(), batchId) if apps else None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort([message if isinstance(message, FilesWritten) else None for message in messages])


class BatchTableWriter(_TableWriter, DataSourceArrowWriter):
    """Of `df.write`: one commit; with txnAppId and txnVersion it may be repeated."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return self._write(iterator, None, "batch")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        app, number = self._options.txn_app_id, self._options.txn_version
        if app is not None and number is None:
            raise LakeError("txnAppId needs txnVersion in a batch write")
        transaction = None if app is None or number is None else AppTransaction(app, number)
        self._commit([message for message in messages if isinstance(message, FilesWritten)], transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort([message if isinstance(message, FilesWritten) else None for message in messages])
