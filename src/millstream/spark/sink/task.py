"""The part of a task in writing rows: batches are sent in a transaction, which the task leaves open for the driver."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from millstream.columnar import stamp
from millstream.raw_client import Cluster, TopicPartition, WireError
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import Identity, Transactions, idempotent_producer
from millstream.spark.connections import cluster_of
from millstream.spark.errors import SinkError
from millstream.spark.sink.decisions import DecisionLog, TaskTransaction, failed_write_id, task_prefix
from millstream.spark.sink.input_identity import DigestingRows, RowDigest
from millstream.spark.sink.options import WriteOptions
from millstream.spark.sink.rows import RowRouter, forget_topics
from millstream.spark.worker_memory import keep_modules


@dataclass
class TaskWrite(WriterCommitMessage):
    """The message of a task to the driver. `transaction` is None without rows, and with at-least-once."""

    sink: str
    batch: int
    attempt: str
    rows: int
    transaction: TaskTransaction | None
    digest: RowDigest | None = None
    """Digest of the rows, if the checkpoint does not identify the input."""


MAX_SEQUENCE = 0x7FFFFFFF
_LOG_WAIT_SECONDS = 60.0
Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
"""From the rows of the query to rows with the columns of a record."""


@dataclass(slots=True)
class _Stamps:
    """Producer id and epoch, and the next sequence of each partition."""

    producer_id: int = -1
    epoch: int = -1
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def next(self, topic_partition: TopicPartition, records: int) -> int:
        if self.producer_id < 0:
            return -1
        sequence = self.sequences.get(topic_partition, 0)
        self.sequences[topic_partition] = (sequence + records) & MAX_SEQUENCE
        return sequence


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The query, run, batch and transactional id of a task."""

    sink: str
    run: str
    batch: int
    transactional_id: str

    @classmethod
    def here(cls) -> "TaskIdentity":
        context = TaskContext.get()
        if context is None:
            raise SinkError("this is not a Spark task; write with df.write or df.writeStream")
        sink = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if sink is None or batch is None:
            raise SinkError(
                "Spark did not pass the query id and batch id to this task, which exactly-once needs; set delivery to "
                "at-least-once"
            )
        return cls._of(context, sink, int(batch))

    @classmethod
    def named(cls, sink: str, batch: int) -> "TaskIdentity":
        """Of a batch write that has an identity of its own."""
        context = TaskContext.get()
        if context is None:
            raise SinkError("this is not a Spark task; write with df.write")
        return cls._of(context, sink, batch)

    @classmethod
    def _of(cls, context: TaskContext, sink: str, batch: int) -> "TaskIdentity":
        run = context.getLocalProperty("spark.jobGroup.id") or ""
        return cls(sink, run, batch, f"{task_prefix(sink)}{context.partitionId()}.{context.attemptNumber()}")


# At least once


def write_at_least_once(options: WriteOptions, transform: Transform, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes rows without a transaction. Returns their number."""
    cluster = cluster_of(options.connection)
    stamps = _idempotent_stamps(cluster, options) if options.idempotent else _Stamps()
    producer = Producer(cluster, acks=options.acks, delivery_timeout_s=options.delivery_timeout_s)
    rows = _write(cluster, options, transform, batches, producer, stamps, transactional=False)
    if options.idempotent:
        _idle_stamps[os.getpid(), options] = stamps
    return rows


_idle_stamps: dict[tuple[int, WriteOptions], _Stamps] = {}
"""By process: stamps whose last task succeeded, so their sequences are known."""


def _idempotent_stamps(cluster: Cluster, options: WriteOptions) -> _Stamps:
    if (kept := _idle_stamps.pop((os.getpid(), options), None)) is not None:
        return kept
    return _Stamps(*idempotent_producer(cluster))


# Exactly once


def write_in_transaction(
    options: WriteOptions,
    attempt: str,
    transform: Transform,
    batches: Iterator[pa.RecordBatch],
    known_query: str | None = None,
) -> TaskWrite:
    """Writes the rows of a micro-batch and leaves the transaction open. Writes nothing if the batch is decided already.

    `known_query`: the query whose offsets the driver can read from the checkpoint; rows of other queries are digested.
    """
    if options.app_id is not None and options.version is not None:
        here = TaskIdentity.named(options.app_id, options.version)
    else:
        here = TaskIdentity.here()
    if not options.check_replays or here.sink == known_query:
        return _write_once(options, here, attempt, transform, batches)
    digesting = DigestingRows(batches)
    written = _write_once(options, here, attempt, transform, iter(digesting))
    return replace(written, digest=digesting.digest)


def _write_once(
    options: WriteOptions, here: TaskIdentity, attempt: str, transform: Transform, batches: Iterator[pa.RecordBatch]
) -> TaskWrite:
    if _is_decided(options, here):
        for _ in batches:  # a repeated batch: the driver checks that it has the same input
            pass
        return TaskWrite(here.sink, here.batch, attempt, 0, None)
    return write_open(options, _transactions_of(options), here, attempt, transform, batches, two_phase=True)


def write_for_batch_query(
    options: WriteOptions, attempt: str, transform: Transform, batches: Iterator[pa.RecordBatch]
) -> TaskWrite:
    """The same for `.write`. No later run could end its transactions, so they have a timeout."""
    here = TaskIdentity(attempt, "", -1, f"{task_prefix(attempt)}{uuid4().hex}")
    return write_open(options, _transactions_of(options), here, attempt, transform, batches, two_phase=False)


def write_open(
    options: WriteOptions,
    transactions: Transactions,
    here: TaskIdentity,
    attempt: str,
    transform: Transform,
    batches: Iterator[pa.RecordBatch],
    *,
    two_phase: bool,
) -> TaskWrite:
    first = next((each for each in batches if each.num_rows), None)
    if first is None:
        return TaskWrite(here.sink, here.batch, attempt, 0, None)
    cluster = cluster_of(options.connection)
    identity = transactions.take(here.transactional_id, two_phase=two_phase)
    if not two_phase and transactions.is_known(failed_write_id(attempt)):
        raise SinkError("another task of this write failed, and the write was aborted; start it again")
    producer = _TransactionalProducer(cluster, options, transactions, identity)
    stamps = _Stamps(identity.producer_id, identity.epoch)
    try:
        rows = _write(cluster, options, transform, chain((first,), batches), producer, stamps, transactional=True)
    except BaseException:
        _give_up(transactions, identity)
        raise
    return TaskWrite(here.sink, here.batch, attempt, rows, TaskTransaction(identity, producer.written))


class _TransactionalProducer(Producer):
    """Adds partitions to the transaction before the first write, if the protocol version requires it."""

    def __init__(self, cluster: Cluster, options: WriteOptions, transactions: Transactions, identity: Identity) -> None:
        super().__init__(
            cluster,
            transactional_id=identity.transactional_id,
            at_most=transactions.max_produce_version,
            delivery_timeout_s=options.delivery_timeout_s,
        )
        self._transactions, self._identity = transactions, identity
        self._added: set[TopicPartition] = set()

    def send(self, topic_partition: TopicPartition, data: bytearray, records: int) -> None:
        if topic_partition not in self._added:
            self._transactions.add_partitions(self._identity, [topic_partition])
            self._added.add(topic_partition)
        super().send(topic_partition, data, records)


def _is_decided(options: WriteOptions, here: TaskIdentity) -> bool:
    """Whether an earlier run decided this batch. That is possible only for the first batch of a run."""
    key = (os.getpid(), options, here.sink)
    run, first = _first_seen.get(key, ("", -1))
    if run == here.run != "" and here.batch > first:
        return False
    log = DecisionLog(cluster_of(options.connection), here.sink)
    if not log.read_to_end(_LOG_WAIT_SECONDS):
        raise SinkError(
            f"the decisions of query {here.sink} cannot be read: a transaction in the topic stays open; "
            "`millstream txn list` shows it"
        )
    _first_seen[key] = (here.run, here.batch)
    return log.decision is not None and log.decision.batch == here.batch


def _give_up(transactions: Transactions, identity: Identity) -> None:
    """Aborts the transaction of a failed task. If that fails, the driver aborts it later."""
    try:
        transactions.end(identity, commit=False)
    except WireError:
        pass


_first_seen: dict[tuple[int, WriteOptions, str], tuple[str, int]] = {}
"""By process: the last run of the query, and its first batch in this process."""
_transactions: dict[tuple[int, WriteOptions], Transactions] = {}


def _transactions_of(options: WriteOptions) -> Transactions:
    key = (os.getpid(), options)
    if key not in _transactions:
        _transactions[key] = Transactions(cluster_of(options.connection), timeout_ms=options.transaction_timeout_ms)
    return _transactions[key]


# Both


def _write(
    cluster: Cluster,
    options: WriteOptions,
    transform: Transform,
    batches: Iterator[pa.RecordBatch],
    producer: Producer,
    stamps: _Stamps,
    *,
    transactional: bool,
) -> int:
    router = RowRouter(cluster, options)
    rows = 0
    try:
        for batch in batches:
            rows += batch.num_rows
            for topic_partition, encoded in router.add(transform(batch)):
                sequence = stamps.next(topic_partition, encoded.record_count)
                stamp(encoded, stamps.producer_id, stamps.epoch, sequence, transactional)
                producer.send(topic_partition, encoded.data, encoded.record_count)
        for topic_partition, encoded in router.rest():
            sequence = stamps.next(topic_partition, encoded.record_count)
            stamp(encoded, stamps.producer_id, stamps.epoch, sequence, transactional)
            producer.send(topic_partition, encoded.data, encoded.record_count)
        producer.flush()
    except BaseException:
        forget_topics(options)
        raise
    finally:
        producer.close()
    keep_modules()
    return rows
