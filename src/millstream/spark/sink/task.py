"""A task's part: its rows written, in a transaction of its own that it leaves open for the driver to end.

What a task tells the driver when it has written.
"""

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
from millstream.spark.sink.decisions import DecisionLog, TaskTransaction, over_id, task_prefix
from millstream.spark.sink.input_identity import Digesting, RowDigest
from millstream.spark.sink.options import WriteOptions
from millstream.spark.sink.rows import RowRouter


@dataclass
class TaskWrite(WriterCommitMessage):
    """One task's work. Without rows there is no transaction; nor is there at least once."""

    sink: str
    batch: int
    attempt: str
    rows: int
    transaction: TaskTransaction | None
    digest: RowDigest | None = None
    """Of the rows that Spark gave, where nothing else says which input they are."""


MAX_SEQUENCE = 0x7FFFFFFF
_LOG_WAIT_S = 60.0
Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Rows as Spark gives them to rows with the record's columns."""


@dataclass(slots=True)
class _Stamps:
    """Who the batches are from, and how far the sequence of each partition is."""

    producer_id: int = -1
    epoch: int = -1
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def next(self, place: TopicPartition, records: int) -> int:
        if self.producer_id < 0:
            return -1
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = (sequence + records) & MAX_SEQUENCE
        return sequence


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which task of which batch this is, and in which run of the query."""

    sink: str
    run: str
    batch: int
    transactional_id: str

    @classmethod
    def here(cls) -> "TaskPlace":
        context = TaskContext.get()
        if context is None:
            raise SinkError("rows are written in Spark's tasks, and this is none")
        sink = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if sink is None or batch is None:
            raise SinkError("Spark does not say which query and batch this task belongs to: exactly-once needs both")
        run = context.getLocalProperty("spark.jobGroup.id") or ""
        return cls(sink, run, int(batch), f"{task_prefix(sink)}{context.partitionId()}.{context.attemptNumber()}")


# At least once


def write_at_least_once(options: WriteOptions, transform: Transform, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes rows for good, batch by batch; how many they were."""
    cluster = cluster_of(options.connection)
    stamps = _idempotent_stamps(cluster, options) if options.idempotent else _Stamps()
    producer = Producer(cluster, acks=options.acks, delivery_timeout_s=options.delivery_timeout_s)
    rows = _write(cluster, options, transform, batches, producer, stamps, transactional=False)
    if options.idempotent:
        _idle_stamps[os.getpid(), options] = stamps
    return rows


_idle_stamps: dict[tuple[int, WriteOptions], _Stamps] = {}
"""By process: those whose last task succeeded, so that their sequences are known."""


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
    """Writes rows of a micro-batch, and leaves their transaction open; or nothing if the batch is decided already.

    `known_query` is the one whose offsets the driver can read; rows of others are digested.
    """
    here = TaskPlace.here()
    if not options.check_replays or here.sink == known_query:
        return _write_once(options, here, attempt, transform, batches)
    digesting = Digesting(batches)
    written = _write_once(options, here, attempt, transform, iter(digesting))
    return replace(written, digest=digesting.digest)


def _write_once(
    options: WriteOptions, here: TaskPlace, attempt: str, transform: Transform, batches: Iterator[pa.RecordBatch]
) -> TaskWrite:
    if _is_decided(options, here):
        for _ in batches:  # a batch that is replayed: the driver finds out whether its rows are there
            pass
        return TaskWrite(here.sink, here.batch, attempt, 0, None)
    return write_open(options, _transactions_of(options), here, attempt, transform, batches, two_phase=True)


def write_for_batch_query(
    options: WriteOptions, attempt: str, transform: Transform, batches: Iterator[pa.RecordBatch]
) -> TaskWrite:
    """The same for `.write`: nobody else could end its transactions, so they do have a time-out."""
    here = TaskPlace(attempt, "", -1, f"{task_prefix(attempt)}{uuid4().hex}")
    return write_open(options, _transactions_of(options), here, attempt, transform, batches, two_phase=False)


def write_open(
    options: WriteOptions,
    transactions: Transactions,
    here: TaskPlace,
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
    if not two_phase and transactions.is_known(over_id(attempt)):
        raise SinkError("another task of this write has failed, and what was written of it has been aborted")
    producer = _TransactionalProducer(cluster, options, transactions, identity)
    stamps = _Stamps(identity.producer_id, identity.epoch)
    try:
        rows = _write(cluster, options, transform, chain((first,), batches), producer, stamps, transactional=True)
    except BaseException:
        _give_up(transactions, identity)
        raise
    return TaskWrite(here.sink, here.batch, attempt, rows, TaskTransaction(identity, producer.written))


class _TransactionalProducer(Producer):
    """Names partitions to the coordinator before they are written, where that is the client's to do."""

    def __init__(self, cluster: Cluster, options: WriteOptions, transactions: Transactions, identity: Identity) -> None:
        super().__init__(
            cluster,
            transactional_id=identity.transactional_id,
            at_most=transactions.max_produce_version,
            delivery_timeout_s=options.delivery_timeout_s,
        )
        self._transactions, self._identity = transactions, identity
        self._added: set[TopicPartition] = set()

    def send(self, place: TopicPartition, data: bytearray, records: int) -> None:
        if place not in self._added:
            self._transactions.add_partitions(self._identity, [place])
            self._added.add(place)
        super().send(place, data, records)


def _is_decided(options: WriteOptions, here: TaskPlace) -> bool:
    """Whether an earlier run decided this batch. Only the first one of a run can be such, so only then it is asked."""
    key = (os.getpid(), options, here.sink)
    run, first = _first_seen.get(key, ("", -1))
    if run == here.run != "" and here.batch > first:
        return False
    log = DecisionLog(cluster_of(options.connection), here.sink)
    if not log.read_to_end(_LOG_WAIT_S):
        raise SinkError(f"the decisions of query {here.sink} cannot be read: a transaction there stays open")
    _first_seen[key] = (here.run, here.batch)
    return log.decision is not None and log.decision.batch == here.batch


def _give_up(transactions: Transactions, identity: Identity) -> None:
    """Aborts what this task wrote: it has told nobody of it. If that fails, the driver clears it away later."""
    try:
        transactions.end(identity, commit=False)
    except WireError:
        pass


_first_seen: dict[tuple[int, WriteOptions, str], tuple[str, int]] = {}
"""By process: the run that was here last, and its first batch here."""
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
            for place, encoded in router.add(transform(batch)):
                sequence = stamps.next(place, encoded.record_count)
                stamp(encoded, stamps.producer_id, stamps.epoch, sequence, transactional)
                producer.send(place, encoded.data, encoded.record_count)
        for place, encoded in router.rest():
            sequence = stamps.next(place, encoded.record_count)
            stamp(encoded, stamps.producer_id, stamps.epoch, sequence, transactional)
            producer.send(place, encoded.data, encoded.record_count)
        producer.flush()
    finally:
        producer.close()
    return rows
