"""Writers for `.write/.writeStream.format("millstream")`, as Spark asks for them.

Spark makes a stream writer anew for each micro-batch on the driver and sends it to the tasks; and another one, in yet
another process of the driver's host, to commit or abort. They share nothing but the messages of the tasks. If `commit`
fails, `abort` is called with the same messages: a batch may be decided by then.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.raw_client import WireError
from millstream.raw_client.transactions import Ended, Transactions
from millstream.spark.connections import cluster_of
from millstream.spark.errors import OptionError, SinkError
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.sink.checkpoint_input import CheckpointOffsets, input_of_rows
from millstream.spark.sink.columns import Shape, shape_of
from millstream.spark.sink.decisions import over_id, task_prefix
from millstream.spark.sink.messages import TaskWrite
from millstream.spark.sink.options import parse_write_options
from millstream.spark.sink.settling import settler_of
from millstream.spark.sink.task import write_at_least_once, write_for_batch_query, write_in_transaction

log = logging.getLogger("millstream.spark")


class _Writer:
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> None:
        if overwrite:
            how = "output mode complete" if streaming else "mode overwrite"
            raise OptionError(f"a topic is only ever appended to: {how} cannot be written to it")
        self._options = parse_write_options(options, streaming=streaming)
        self._shape: Shape = shape_of(schema, self._options)
        self._attempt = uuid4().hex
        """Of this execution: a batch that is replayed has another one."""

    def _write_plainly(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrite:
        rows = write_at_least_once(self._options, self._shape.transform(), iterator)
        return TaskWrite("", -1, self._attempt, rows, None)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A micro-batch: exactly once unless told otherwise."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, streaming=True)
        location = next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)
        compares = self._options.exactly_once and self._options.check_replays
        self._offsets = CheckpointOffsets.find(location) if compares else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrite:
        if not self._options.exactly_once:
            return self._write_plainly(iterator)
        query = self._offsets.query if self._offsets is not None else None
        return write_in_transaction(self._options, self._attempt, self._shape.transform(), iterator, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        writes = _writes(messages)
        if self._options.exactly_once and writes:
            given = self._input(batchId, writes) if self._options.check_replays else None
            settler_of(self._options, writes[0].sink).commit(batchId, writes, given)

    def _input(self, batch: int, writes: Sequence[TaskWrite]) -> BatchInput:
        if self._offsets is not None and self._offsets.query == writes[0].sink:
            return self._offsets.input_of(batch)
        return input_of_rows([each.digest for each in writes])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        writes = _writes(messages)
        if not self._options.exactly_once or not writes:
            return
        try:
            settler_of(self._options, writes[0].sink).abort(batchId, writes)
        except (WireError, SinkError) as error:  # why the batch failed is what the user must see
            log.warning("batch %d could not be aborted, its next attempt will see to it: %s", batchId, error)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One `.write`: at least once unless told otherwise; exactly once means that only what succeeds is seen."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrite:
        if not self._options.exactly_once:
            return self._write_plainly(iterator)
        return write_for_batch_query(self._options, self._attempt, self._shape.transform(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        refused = [each.refused for each in self._end(messages, commit=True) if each.refused is not None]
        if refused:
            raise SinkError(
                f"{len(refused)} of {len(messages)} tasks' rows could not be committed: {refused[0]}. What the others "
                "wrote is committed"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        self._end(messages, commit=False)
        # Tasks that were cut off when another failed have told nobody of their transactions, which would stay open
        # until a time-out; and some run on for a moment. Who has an id by now loses it; who takes one later is told.
        transactions = Transactions(
            cluster_of(self._options.connection), timeout_ms=self._options.transaction_timeout_ms
        )
        try:
            transactions.take(over_id(self._attempt), two_phase=False)
        finally:
            transactions.take_all(sorted(transactions.ids_in_use(task_prefix(self._attempt), ("Empty", "Ongoing"))))

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, commit: bool) -> list[Ended]:
        identities = [each.transaction.identity for each in _writes(messages) if each.transaction is not None]
        if not identities:
            return []
        return Transactions(cluster_of(self._options.connection)).end_all(identities, commit=commit)


def _writes(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWrite]:
    """Those of tasks that succeeded."""
    return [each for each in messages if isinstance(each, TaskWrite)]
