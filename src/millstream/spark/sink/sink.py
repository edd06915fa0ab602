"""The writers of `format("millstream")`, and how the driver commits a batch exactly once.

Spark creates a stream writer for each micro-batch on the driver and sends it to the tasks; it creates another one, in
another process on the driver's host, to commit or abort. They share only the messages of the tasks. If `commit` fails,
Spark calls `abort` with the same messages, when the batch may be decided already.

To commit, the driver decides the batch, ends its transactions, and aborts those that earlier attempts left open. Each
step can be repeated by any process: a batch is decided at most once. The proof is in docs/spark-sink.md.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.raw_client import Cluster, RefusedError, WireError
from millstream.raw_client.transactions import FENCED_CODES, EndResult, Identity, Transactions
from millstream.spark.connections import cluster_of
from millstream.spark.errors import OptionError, SinkError
from millstream.spark.sink.batch_input import BatchInput, refusal
from millstream.spark.sink.decisions import (
    Decider,
    Decision,
    FencedError,
    TaskTransaction,
    TransactionResult,
    failed_write_id,
    task_prefix,
    transaction_result,
    write_again,
)
from millstream.spark.sink.input_identity import CheckpointOffsets, input_of_rows
from millstream.spark.sink.options import WriteOptions, parse_write_options
from millstream.spark.sink.rows import RowShape, shape_of
from millstream.spark.sink.task import TaskWrite, write_at_least_once, write_for_batch_query, write_in_transaction
from millstream.spark.worker_memory import keep_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("millstream.spark")

_TRIES = 5


class BatchCommitter:
    """Commits the batches of one query in one process. It remains the decider from batch to batch."""

    def __init__(self, cluster: Cluster, sink: str, options: WriteOptions) -> None:
        self._cluster = cluster
        self._sink = sink
        self._decider = Decider(cluster, sink)
        self._transactions = Transactions(cluster, timeout_ms=options.transaction_timeout_ms)
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="open-transactions")

    def commit(self, batch: int, writes: Sequence[TaskWrite], given: BatchInput | None = None) -> None:
        """Commits the batch: with these writes, or as it was decided before with the same input."""
        attempt = writes[0].attempt
        # Listed at the same time, because it takes a request to each broker, and seldom finds any.
        listed = self._lister.submit(self._open_ids)
        transactions = tuple(each.transaction for each in writes if each.transaction is not None)
        decision = self._decide(Decision(batch, attempt, transactions, given))
        finished = self._finish(decision)
        if (why := refusal(self._sink, batch, given, decision.written)) is not None:
            raise SinkError(why)  # after `_finish`, because open transactions would block readers
        if given is not None and decision.input is None:
            _log.warning(
                "batch %d of query %s was decided by an earlier version; its input is not compared", batch, self._sink
            )
        if decision.attempt != attempt:
            self._abort(_own(writes) - _ids(decision))
        if decision.attempt != attempt or not finished:
            self._sweep(set())  # all decided transactions are ended, so open ones are left over
        else:
            self._sweep(_ids(decision), listed)

    def abort(self, batch: int, writes: Sequence[TaskWrite]) -> None:
        """Aborts the transactions of a failed batch, unless it was decided before it failed."""
        self._decider.take_over()
        decision = self._decider.log.decision
        kept = _ids(decision) if decision is not None else set()  # may be of a later batch of another run
        self._abort(_own(writes) - kept)
        self._sweep(kept)

    def _decide(self, wanted: Decision) -> Decision:
        """Records the wanted decision. Returns the known one if this batch or a later one is decided already."""
        batch = wanted.batch
        known = self._decider.log.decision
        looked = False
        for _ in range(_TRIES):
            # This process may have been replaced as the decider without noticing.
            if not self._decider.in_charge or (not looked and known is not None and known.batch >= batch):
                self._decider.take_over()
                looked = True
            known = self._decider.log.decision
            if known is not None and known.batch >= batch:
                return known
            try:
                self._decider.record(wanted)
            except FencedError as error:
                _log.warning("another process decides for query %s (%s); reading its decisions", self._sink, error)
                continue
            return wanted
        raise SinkError(f"several runs of query {self._sink} are active; stop all but one")

    def _finish(self, decision: Decision) -> bool:
        """Commits the decided transactions. Idempotent. False if one of them had ended already."""
        as_expected = True
        while True:
            pending = {each.identity: each for each in decision.transactions}
            lost = []
            for ended in self._transactions.end_all(list(pending), commit=True):
                if ended.refused is None:
                    continue
                as_expected = False
                if not isinstance(ended.refused, RefusedError) or ended.refused.code not in FENCED_CODES:
                    raise ended.refused
                if transaction_result(self._cluster, pending[ended.identity]) is TransactionResult.ABORTED:
                    lost.append(pending[ended.identity])
            if not lost:
                return as_expected
            decision = self._replace(decision, lost)

    def _replace(self, decision: Decision, lost: Collection[TaskTransaction]) -> Decision:
        """Writes the rows of aborted, decided transactions to new ones, and records these in the decision."""
        _log.warning(
            "batch %d of query %s: %d of its transactions were aborted after the decision (timeout?); their rows are "
            "copied from the log",
            decision.batch,
            self._sink,
            len(lost),
        )
        restored = []
        for number, each in enumerate(lost):
            identity = self._transactions.take(f"{task_prefix(self._sink)}restored-{number}")
            restored.append(write_again(self._cluster, self._transactions, each, identity))
        replaced = replace(decision, transactions=tuple(restored))
        try:
            if not self._decider.in_charge:
                self._decider.take_over()
                if self._decider.log.decision != decision:
                    raise FencedError("another run continued the query")
            self._decider.record(replaced)
        except FencedError as error:
            self._abort({each.identity for each in restored})
            raise SinkError(f"batch {decision.batch} of query {self._sink}: {error}; start the query again") from error
        return replaced

    def _abort(self, identities: Iterable[Identity]) -> None:
        for ended in self._transactions.end_all(list(identities), commit=False):
            if ended.refused is not None and not (
                isinstance(ended.refused, RefusedError) and ended.refused.code in FENCED_CODES
            ):
                _log.warning("a transaction could not be aborted; the next batch aborts it: %s", ended.refused)

    def _open_ids(self) -> set[str]:
        return self._transactions.ids_in_use(task_prefix(self._sink))

    def _sweep(self, kept: set[Identity], listed: "Future[set[str]] | None" = None) -> None:
        """Aborts and fences transactions that failed attempts left open. `listed`: the open ones, if known."""
        try:
            left = listed.result() if listed is not None else self._open_ids()
            left -= {each.transactional_id for each in kept}
            if left:
                _log.warning(
                    "query %s: aborting %d transactions that earlier attempts left open", self._sink, len(left)
                )
            self._transactions.init_all(sorted(left))
        except WireError as error:  # the batch itself is done
            _log.warning(
                "query %s: open transactions of earlier attempts are aborted with the next batch (%s)",
                self._sink,
                error,
            )


def _own(writes: Sequence[TaskWrite]) -> set[Identity]:
    return {each.transaction.identity for each in writes if each.transaction is not None}


def _ids(decision: Decision) -> set[Identity]:
    return {each.identity for each in decision.transactions}


_kept: dict[tuple[int, WriteOptions, str], BatchCommitter] = {}


def committer_of(options: WriteOptions, sink: str) -> BatchCommitter:
    """The committer of a query in this process. Spark reuses the process for the next batch."""
    key = (os.getpid(), options, sink)
    if key not in _kept:
        _kept[key] = BatchCommitter(cluster_of(options.connection), sink, options)
    return _kept[key]


class _Writer:
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> None:
        if overwrite:
            how = "output mode complete" if streaming else "mode overwrite"
            raise OptionError(f"{how} is not possible: a topic can only be appended to. Use append")
        self._options = parse_write_options(options, streaming=streaming)
        self._shape: RowShape = shape_of(schema, self._options)
        self._attempt = uuid4().hex
        """Identifies this execution; a repeated batch has another one."""
        keep_modules()  # of the workers that plan and commit

    def _write_plainly(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrite:
        rows = write_at_least_once(self._options, self._shape.transform(), iterator)
        return TaskWrite("", -1, self._attempt, rows, None)


def _checkpoint(options: Mapping[str, str]) -> str | None:
    return next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a micro-batch; exactly once by default."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, streaming=True)
        compares = self._options.exactly_once and self._options.check_replays
        self._offsets = CheckpointOffsets.find(_checkpoint(options)) if compares else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrite:
        if not self._options.exactly_once:
            return self._write_plainly(iterator)
        query = self._offsets.query if self._offsets is not None else None
        return write_in_transaction(self._options, self._attempt, self._shape.transform(), iterator, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        writes = _writes(messages)
        if self._options.exactly_once and writes:
            given = self._input(batchId, writes) if self._options.check_replays else None
            committer_of(self._options, writes[0].sink).commit(batchId, writes, given)

    def _input(self, batch: int, writes: Sequence[TaskWrite]) -> BatchInput:
        if self._offsets is not None and self._offsets.query == writes[0].sink:
            return self._offsets.input_of(batch)
        return input_of_rows([each.digest for each in writes])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        writes = _writes(messages)
        if not self._options.exactly_once or not writes:
            return
        try:
            committer_of(self._options, writes[0].sink).abort(batchId, writes)
        except (WireError, SinkError) as error:  # the user must see the reason for which the batch failed
            _log.warning("batch %d could not be aborted; its next attempt aborts it: %s", batchId, error)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A `.write`; at least once by default. Exactly once: readers see rows only if the write succeeds.

    With `txnAppId` and `txnVersion` it is committed like a micro-batch: a repeated write counts once. It is then known
    by its rows; with the `checkpointLocation` of the query whose batch `txnVersion` is, by the offsets of that batch.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, streaming=False)
        compares = self._options.app_id is not None and self._options.check_replays
        self._offsets = CheckpointOffsets.find(_checkpoint(options)) if compares else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrite:
        if not self._options.exactly_once:
            return self._write_plainly(iterator)
        if self._options.app_id is not None:
            known = self._options.app_id if self._offsets is not None else None
            return write_in_transaction(self._options, self._attempt, self._shape.transform(), iterator, known)
        return write_for_batch_query(self._options, self._attempt, self._shape.transform(), iterator)

    @property
    def _version(self) -> int:
        assert self._options.version is not None
        return self._options.version

    def _input(self, writes: Sequence[TaskWrite]) -> BatchInput:
        if self._offsets is not None:
            return self._offsets.input_of(self._version)
        return input_of_rows([each.digest for each in writes])

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.app_id is not None:
            writes = _writes(messages)
            if writes:
                given = self._input(writes) if self._options.check_replays else None
                committer_of(self._options, self._options.app_id).commit(self._version, writes, given)
            return
        refused = [each.refused for each in self._end(messages, commit=True) if each.refused is not None]
        if refused:
            raise SinkError(
                f"the rows of {len(refused)} of {len(messages)} tasks could not be committed: {refused[0]}. The rows "
                f"of "
                "the other tasks are committed"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        if self._options.app_id is not None:
            try:
                committer_of(self._options, self._options.app_id).abort(self._version, _writes(messages))
            except (WireError, SinkError) as error:  # the user must see the reason for which the write failed
                _log.warning("the write could not be aborted; its next attempt aborts it: %s", error)
            return
        self._end(messages, commit=False)
        # Tasks that Spark cancelled sent no message, and their transactions would stay open until the timeout; some may
        # still run. Taking over their ids fences them. A task that starts later sees `failed_write_id` and stops.
        transactions = Transactions(
            cluster_of(self._options.connection), timeout_ms=self._options.transaction_timeout_ms
        )
        try:
            transactions.take(failed_write_id(self._attempt), two_phase=False)
        finally:
            transactions.init_all(sorted(transactions.ids_in_use(task_prefix(self._attempt), ("Empty", "Ongoing"))))

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, commit: bool) -> list[EndResult]:
        identities = [each.transaction.identity for each in _writes(messages) if each.transaction is not None]
        if not identities:
            return []
        return Transactions(cluster_of(self._options.connection)).end_all(identities, commit=commit)


def _writes(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWrite]:
    """The messages of tasks that succeeded."""
    return [each for each in messages if isinstance(each, TaskWrite)]


_FORMAT = "millstream"


def write_batch(rows: "DataFrame", batch_id: int, *, app_id: str, **options: str) -> None:
    """Writes the rows of a `foreachBatch` to topics exactly once.

        def copy(rows, batch_id):
            write_batch(rows, batch_id, app_id="bills", topic="bills", **broker)

        orders.writeStream.foreachBatch(copy).option("checkpointLocation", "/data/bills").start()

    Spark repeats a batch after a failure, with the same id. The rows of a repeated batch are compared with the written
    ones, and written once. `app_id`: the name of this output; each query, and each call in it, has its own. `options`:
    those of `format("millstream")` for writing (docs/spark-sink.md).
    """
    given = {**options, "txnAppId": app_id, "txnVersion": str(batch_id)}
    rows.write.format(_FORMAT).mode("append").options(**given).save()
