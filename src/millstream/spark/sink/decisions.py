"""The log of decisions: which transactions are the output of a micro-batch; and repair of decided transactions.

A compacted topic has the last *decision* of each query under the query's id: a batch and its transactions. A decision
is written in a transaction whose id belongs to the query alone (the decider). A process that takes over this id fences
all earlier deciders; then it reads the log to its end, and so knows all their decisions.

A coordinator aborts a transaction after its timeout, also a decided one whose driver died before it could commit. (With
two-phase commits there is no timeout.) The rows of an aborted transaction are still in the log, at the offsets in the
decision. They are copied, batch by batch, to a new transaction that replaces it.
"""

import json
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millstream.columnar import ArrowDecoder, EncodedBatch, stamp
from millstream.formats.records.batch import PLACEMENT, BatchHeader, iterate_headers
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch, iterate_records
from millstream.raw_client import (
    EARLIEST,
    LATEST,
    Cluster,
    ErrorCode,
    OffsetOutOfRangeError,
    RefusedError,
    TopicPartition,
)
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.producing import Producer, Written
from millstream.raw_client.transactions import FENCED_CODES, Identity, Transactions
from millstream.spark.errors import SinkError
from millstream.spark.sink.batch_input import BatchInput, WrittenBatch

TOPIC = "__millstream_sink_decisions"
PARTITIONS = 8
ID_PREFIX = "millstream-sink"
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(32 << 20),  # a decision has an entry for each task and partition
}
_REPLICAS = 3
_DECIDER_TIMEOUT_MS = 30_000
"""Other queries share the partition and cannot read past an open decision, which takes milliseconds."""
_FETCH_BYTES = 4 << 20
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The output of a task: its transaction, and the offsets of its rows."""

    identity: Identity
    written: Mapping[TopicPartition, Written]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.written.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions that are the output of a batch."""

    batch: int
    attempt: str
    """The execution of the batch; all executions of a batch have the same rows."""
    transactions: tuple[TaskTransaction, ...]
    input: BatchInput | None = None
    """The input of the batch; None with checkReplays=false, or if an earlier version decided."""

    @property
    def written(self) -> WrittenBatch:
        return WrittenBatch(self.batch, self.input)


def task_prefix(sink: str) -> str:
    """The prefix of the transactional ids of a query's tasks. Ids are reused, so their number is bounded."""
    return f"{ID_PREFIX}.{sink}.task."


def failed_write_id(attempt: str) -> str:
    """The transactional id whose existence means: this `.write` failed, its tasks must stop."""
    return f"{ID_PREFIX}.{attempt}.over"


class DecisionLog:
    """The last decision of one query, as far as the log has been read."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._sink = sink
        self.key = sink.encode()
        self._topic_partition: TopicPartition | None = None
        self._position: int | None = None
        self._decoder = ArrowDecoder(["key", "value"])
        self.decision: Decision | None = None

    def topic_partition(self, *, create: bool) -> TopicPartition | None:
        """The partition with the decisions of this query; None if the topic does not exist and `create` is false."""
        if self._topic_partition is None:
            topic = self._cluster.topics([TOPIC]).get(TOPIC)
            if topic is None and not create:
                return None
            count = len(topic.partitions) if topic is not None else self._create()
            # Decisions must not move when partitions are added.
            self._topic_partition = TopicPartition(TOPIC, zlib.crc32(self.key) % min(count, PARTITIONS))
        return self._topic_partition

    def _create(self) -> int:
        replicas = min(_REPLICAS, len(self._cluster.brokers()))
        configs = _CONFIGS | {"min.insync.replicas": str(2 if replicas == _REPLICAS else 1)}
        try:
            self._cluster.create_topic(TOPIC, PARTITIONS, replicas, configs)
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise SinkError(
                    f"exactly-once needs the topic {TOPIC!r}, which does not exist and could not be created: {error}. "
                    "Create it with cleanup.policy=compact, or set delivery to at-least-once"
                ) from error
        return self._cluster.partitions_of(TOPIC)

    def read_to_end(self, wait_s: float) -> bool:
        """Reads the log to its current end. False if open transactions still hide a part of it after `wait_s`.

        The end is the log end offset, not the last stable offset: a decision after another open one counts too.
        """
        topic_partition = self.topic_partition(create=False)
        if topic_partition is None:
            return True
        end = self._cluster.offsets({topic_partition: LATEST}, read_committed=False)[topic_partition].offset
        if self._position is None:
            self._position = self._cluster.offsets({topic_partition: EARLIEST})[topic_partition].offset
        deadline = Deadline(wait_s)
        while self._position < end:
            fetched = self._cluster.fetch(topic_partition, self._position, max_bytes=_FETCH_BYTES, max_wait_ms=50)
            batches, after = self._decoder.decode(
                fetched.data,
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                start=self._position,
                stop=max(end, self._position + 1),
                aborted=fetched.aborted,
            )
            for batch in batches:
                for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                    if key == self.key and value is not None:
                        self.decision = _decision_from(json.loads(value))
            if after == self._position and deadline.elapsed_s >= wait_s:
                return False
            self._position = after
        return True


class FencedError(Exception):
    """Another process has become the decider of this query."""


class Decider:
    """Records decisions of one query; only one process at a time is the decider."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._id = f"{ID_PREFIX}.{sink}.decider"
        self._transactions = Transactions(cluster, timeout_ms=_DECIDER_TIMEOUT_MS)
        self._identity: Identity | None = None
        self._sequence = 0
        self.log = DecisionLog(cluster, sink)

    @property
    def in_charge(self) -> bool:
        """Whether this process was the decider at its last operation, and so knows all decisions."""
        return self._identity is not None

    def take_over(self) -> None:
        """Fences earlier deciders and reads their decisions."""
        self.log.topic_partition(create=True)
        self._identity, self._sequence = self._transactions.take(self._id, two_phase=False), 0
        # Decisions of other queries in the partition are open for a moment, or until their timeout.
        if not self.log.read_to_end(wait_s=_DECIDER_TIMEOUT_MS / 1000 + 30):
            self._identity = None
            raise SinkError(
                f"the decisions in {self.log.topic_partition(create=True)} cannot be read to the end: a transaction "
                f"stays "
                "open; `millstream txn list` shows it"
            )

    def record(self, decision: Decision) -> None:
        """Records a decision. FencedError: another process is the decider, and the log shows whether this was
        recorded."""
        topic_partition, identity = self.log.topic_partition(create=True), self._identity
        assert topic_partition is not None
        assert identity is not None
        value = _decision_to(decision)
        data = build_batch(
            [Record(self.log.key, _json(value))],
            codec=_codec(value),
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        producer = Producer(
            self._cluster,
            transactional_id=self._id,
            at_most=self._transactions.max_produce_version,
            delivery_timeout_s=30,
        )
        self._identity = None  # until the result is known
        try:
            self._transactions.add_partitions(identity, [topic_partition])
            producer.send(topic_partition, bytearray(data), 1)
            producer.flush()
            following = self._transactions.end(identity, commit=True)
        except RefusedError as error:
            if error.code in FENCED_CODES:
                raise FencedError(str(error)) from error
            raise
        finally:
            producer.close()
        self._identity = following or identity
        self._sequence = 0 if following else self._sequence + 1
        self.log.decision = decision


# Records of the log


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _codec(value: Mapping[str, Any]) -> Codec:
    """Large decisions are compressed, because a batch has a size limit."""
    return Codec.NONE if len(value["transactions"]) < 16 else Codec.ZSTD


def _list_of(identity: Identity) -> list[Any]:
    return [identity.transactional_id, identity.producer_id, identity.epoch]


def _written_to(written: Mapping[TopicPartition, Written]) -> dict[str, list[list[int]]]:
    topics: dict[str, list[list[int]]] = {}
    for topic_partition, each in written.items():
        topics.setdefault(topic_partition.topic, []).append(
            [topic_partition.partition, each.first_offset, each.last_offset, each.records]
        )
    return topics


def _decision_to(decision: Decision) -> dict[str, Any]:
    rows = [[*_list_of(each.identity), _written_to(each.written)] for each in decision.transactions]
    value = {"format": _FORMAT, "batch": decision.batch, "attempt": decision.attempt, "transactions": rows}
    return value if decision.input is None else value | {"input": decision.input.to_json()}


def _decision_from(value: Mapping[str, Any]) -> Decision:
    _check_format(value)
    transactions = []
    for transactional_id, producer_id, epoch, topics in value["transactions"]:
        written = {
            TopicPartition(topic, partition): Written(first, last, records)
            for topic, rows in topics.items()
            for partition, first, last, records in rows
        }
        transactions.append(TaskTransaction(Identity(transactional_id, producer_id, epoch), written))
    return Decision(value["batch"], value["attempt"], tuple(transactions), BatchInput.from_json(value.get("input")))


def _check_format(value: Mapping[str, Any]) -> None:
    if value.get("format") != _FORMAT:
        raise SinkError(
            f"{TOPIC} has a record of format {value.get('format')!r}; this version of Millstream reads {_FORMAT}. "
            "A newer version has written it; upgrade"
        )


_COPY_FETCH_BYTES = 8 << 20
_MARKER_TYPE = struct.Struct(">hh")
_COMMIT = 1
_WAIT_SECONDS = 60.0
MAX_SEQUENCE = 0x7FFFFFFF


class TransactionResult(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"


def transaction_result(cluster: Cluster, transaction: TaskTransaction) -> TransactionResult:
    """Whether the first marker after the transaction's records is a commit or an abort; it is the same in all
    partitions."""
    if not transaction.written:
        raise SinkError(f"the decided transaction {transaction.identity} has ended, and its offsets are not known")
    left = _not_deleted(cluster, transaction)
    if not left:
        return TransactionResult.COMMITTED
    topic_partition, written = next(iter(left.items()))
    deadline = time.monotonic() + _WAIT_SECONDS
    position = written.last_offset + 1
    while True:
        for batch, header in _batches(cluster, topic_partition, position):
            if header.is_control and header.producer_id == transaction.identity.producer_id:
                record = next(iterate_records(header, batch))
                _, kind = _MARKER_TYPE.unpack_from(record.key or b"")
                return TransactionResult.COMMITTED if kind == _COMMIT else TransactionResult.ABORTED
            position = header.last_offset + 1
        if time.monotonic() > deadline:
            raise SinkError(
                f"{topic_partition} has no marker for the decided transaction {transaction.identity}: check that its "
                "coordinator is reachable; `millstream txn find-hanging` shows hanging transactions"
            )
        time.sleep(0.1)


def write_again(
    cluster: Cluster, transactions: Transactions, lost: TaskTransaction, identity: Identity
) -> TaskTransaction:
    """Copies the rows of an aborted transaction to the transaction `identity`, which stays open."""
    producer = Producer(cluster, transactional_id=identity.transactional_id, at_most=transactions.max_produce_version)
    try:
        left = _not_deleted(cluster, lost)
        transactions.add_partitions(identity, list(left))
        for topic_partition, written in left.items():
            _copy(cluster, producer, topic_partition, written, lost.identity, identity)
        producer.flush()
        return TaskTransaction(identity, producer.written)
    finally:
        producer.close()


def _not_deleted(cluster: Cluster, transaction: TaskTransaction) -> dict[TopicPartition, Written]:
    """The partitions whose rows retention has not deleted."""
    starts = cluster.offsets(dict.fromkeys(transaction.written, EARLIEST))
    return {
        topic_partition: each
        for topic_partition, each in transaction.written.items()
        if starts[topic_partition].offset <= each.last_offset
    }


def _copy(
    cluster: Cluster,
    producer: Producer,
    topic_partition: TopicPartition,
    written: Written,
    old: Identity,
    new: Identity,
) -> None:
    sequence = 0
    for batch, header in _batches(cluster, topic_partition, written.first_offset):
        if header.base_offset > written.last_offset:
            break
        if header.is_control or (header.producer_id, header.producer_epoch) != (old.producer_id, old.epoch):
            continue
        copy = EncodedBatch(bytearray(batch), header.record_count)
        PLACEMENT.pack_into(copy.data, 0, 0, header.length, -1)
        stamp(copy, new.producer_id, new.epoch, sequence, True)
        producer.send(topic_partition, copy.data, copy.record_count)
        sequence = (sequence + copy.record_count) & MAX_SEQUENCE
    if sequence != written.records & MAX_SEQUENCE:
        raise SinkError(
            f"the transaction {old} of a decided batch was aborted, and of its {written.records} rows in "
            f"{topic_partition} only "
            f"{sequence} are left in the log. Write the missing rows by hand. With two-phase commits "
            "(transaction.two.phase.commit.enable=true on the brokers) this cannot happen"
        )


def _batches(
    cluster: Cluster, topic_partition: TopicPartition, position: int
) -> Iterator[tuple[memoryview, BatchHeader]]:
    """All batches from an offset to the log end, those of open and aborted transactions included."""
    while True:
        try:
            fetched = cluster.fetch_existing(
                topic_partition, position, max_bytes=_COPY_FETCH_BYTES, read_committed=False
            )
        except OffsetOutOfRangeError as error:
            if position >= error.log_start:
                raise
            position = error.log_start
            continue
        before = position
        for at, header in iterate_headers(fetched.data):
            if header.last_offset >= position:
                yield fetched.data[at : at + header.size], header
                position = header.last_offset + 1
        if position == before:
            return
