"""What was decided for each sink: the log in which a micro-batch becomes committed.

A compacted topic. Under the sink's id it has the last *decision*: a batch and the transactions that are its output. It
is written in a transaction of an id that belongs to the sink alone (the decider), so whoever takes that id over fences
all who decided before; and having read the log to its end after that, knows all that they decided.

What became of a transaction, by the log itself; and its rows written again if it was aborted after the decision.

A coordinator aborts a transaction whose time is up, also one that was decided to be committed by a driver that died
before it could say so. (Not with two-phase commits: those wait.) The rows of an aborted transaction still are in the
log, where the decision says; so they are copied from there, batch by batch, into a transaction that takes its place.
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
    "max.message.bytes": str(32 << 20),  # a decision has a row for each task and partition
}
_REPLICAS = 3
_DECIDER_TIMEOUT_MS = 30_000
"""Others share the partition and cannot read past an open decision; it takes milliseconds."""
_FETCH_BYTES = 4 << 20
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """One task's output: in whose name it was written, and where it lies."""

    identity: Identity
    written: Mapping[TopicPartition, Written]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.written.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """These transactions, and no others, are the output of the batch."""

    batch: int
    attempt: str
    """Which execution of the batch it was; any execution of a batch has the same rows."""
    transactions: tuple[TaskTransaction, ...]
    input: BatchInput | None = None
    """What the batch was made of; None if the user does not want it compared, or an earlier version decided."""

    @property
    def written(self) -> WrittenBatch:
        return WrittenBatch(self.batch, self.input)


def task_prefix(sink: str) -> str:
    """How the transactional ids of a sink's tasks begin. They are used again and again, so they do not pile up."""
    return f"{ID_PREFIX}.{sink}.task."


def over_id(attempt: str) -> str:
    """The transactional id that says, once it is known, that a `.write` has failed and its tasks must not go on."""
    return f"{ID_PREFIX}.{attempt}.over"


class DecisionLog:
    """The last decision for one sink, as far as the log has been read."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._sink = sink
        self.key = sink.encode()
        self._place: TopicPartition | None = None
        self._position: int | None = None
        self._decoder = ArrowDecoder(["key", "value"])
        self.decision: Decision | None = None

    def place(self, *, create: bool) -> TopicPartition | None:
        """Where this sink's records are; None if there is no such topic and it is not to be made."""
        if self._place is None:
            topic = self._cluster.topics([TOPIC]).get(TOPIC)
            if topic is None and not create:
                return None
            count = len(topic.partitions) if topic is not None else self._create()
            # Partitions that are added later must not move what was decided.
            self._place = TopicPartition(TOPIC, zlib.crc32(self.key) % min(count, PARTITIONS))
        return self._place

    def _create(self) -> int:
        replicas = min(_REPLICAS, len(self._cluster.brokers()))
        configs = _CONFIGS | {"min.insync.replicas": str(2 if replicas == _REPLICAS else 1)}
        try:
            self._cluster.create_topic(TOPIC, PARTITIONS, replicas, configs)
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise SinkError(
                    f"exactly-once keeps its decisions in the topic {TOPIC!r}, which does not exist and could not be "
                    f"created: {error}. Create it with cleanup.policy=compact, or set delivery to at-least-once"
                ) from error
        return self._cluster.partitions_of(TOPIC)

    def read_to_end(self, wait_s: float) -> bool:
        """Reads all that is in the log now. False if open transactions of others hide some of it after `wait_s`.

        The end is that of the log and not of what is committed: a decision behind another sink's open one counts too.
        """
        place = self.place(create=False)
        if place is None:
            return True
        end = self._cluster.offsets({place: LATEST}, read_committed=False)[place].offset
        if self._position is None:
            self._position = self._cluster.offsets({place: EARLIEST})[place].offset
        patience = Deadline(wait_s)
        while self._position < end:
            fetched = self._cluster.fetch(place, self._position, max_bytes=_FETCH_BYTES, max_wait_ms=50)
            batches, after = self._decoder.decode(
                fetched.data,
                topic=place.topic,
                partition=place.partition,
                start=self._position,
                stop=max(end, self._position + 1),
                aborted=fetched.aborted,
            )
            for batch in batches:
                for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                    if key == self.key and value is not None:
                        self.decision = _decision_from(json.loads(value))
            if after == self._position and patience.elapsed_s >= wait_s:
                return False
            self._position = after
        return True


class FencedError(Exception):
    """Another process has become the decider of this sink since."""


class Decider:
    """The right to decide for one sink: held by one process at a time."""

    def __init__(self, cluster: Cluster, sink: str) -> None:
        self._cluster = cluster
        self._id = f"{ID_PREFIX}.{sink}.decider"
        self._transactions = Transactions(cluster, timeout_ms=_DECIDER_TIMEOUT_MS)
        self._identity: Identity | None = None
        self._sequence = 0
        self.log = DecisionLog(cluster, sink)

    @property
    def in_charge(self) -> bool:
        """Whether this process was the decider when it last looked, and so knows all decisions."""
        return self._identity is not None

    def take_over(self) -> None:
        """Fences whoever decided before, and learns what they decided."""
        self.log.place(create=True)
        self._identity, self._sequence = self._transactions.take(self._id, two_phase=False), 0
        # Decisions of other sinks in the same partition are open for a moment, or until their time is up.
        if not self.log.read_to_end(wait_s=_DECIDER_TIMEOUT_MS / 1000 + 30):
            self._identity = None
            raise SinkError(
                f"the decisions in {self.log.place(create=True)} cannot be read to the end: a transaction there stays "
                "open; `millstream txn list` shows whose it is"
            )

    def record(self, decision: Decision) -> None:
        """Decides. FencedError: somebody else is the decider now, and whether this was recorded, the log must tell."""
        place, identity = self.log.place(create=True), self._identity
        assert place is not None
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
        self._identity = None  # until it is known how this ends
        try:
            self._transactions.add_partitions(identity, [place])
            producer.send(place, bytearray(data), 1)
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


# The records


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _codec(value: Mapping[str, Any]) -> Codec:
    """Large ones are compressed: a batch has a limit, and thousands of tasks repeat the same names."""
    return Codec.NONE if len(value["transactions"]) < 16 else Codec.ZSTD


def _list_of(identity: Identity) -> list[Any]:
    return [identity.transactional_id, identity.producer_id, identity.epoch]


def _written_to(written: Mapping[TopicPartition, Written]) -> dict[str, list[list[int]]]:
    topics: dict[str, list[list[int]]] = {}
    for place, each in written.items():
        topics.setdefault(place.topic, []).append([place.partition, each.first_offset, each.last_offset, each.records])
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
            f"{TOPIC} has a record of format {value.get('format')!r}; this version of Millstream knows {_FORMAT}: "
            "a newer one has written it, so use that"
        )


_COPY_FETCH_BYTES = 8 << 20
_MARKER_TYPE = struct.Struct(">hh")
_COMMIT = 1
_WAIT_S = 60.0
MAX_SEQUENCE = 0x7FFFFFFF


class Fate(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"


def fate_of(cluster: Cluster, transaction: TaskTransaction) -> Fate:
    """Whether the first marker behind the transaction's records says commit or abort; all partitions have the same."""
    if not transaction.written:
        raise SinkError(f"the decided transaction {transaction.identity} is over, and where its rows were is not known")
    left = _left(cluster, transaction)
    if not left:
        return Fate.COMMITTED
    place, written = next(iter(left.items()))
    deadline = time.monotonic() + _WAIT_S
    position = written.last_offset + 1
    while True:
        for batch, header in _batches(cluster, place, position):
            if header.is_control and header.producer_id == transaction.identity.producer_id:
                record = next(iterate_records(header, batch))
                _, kind = _MARKER_TYPE.unpack_from(record.key or b"")
                return Fate.COMMITTED if kind == _COMMIT else Fate.ABORTED
            position = header.last_offset + 1
        if time.monotonic() > deadline:
            raise SinkError(
                f"{place} has no end for the transaction {transaction.identity} that was decided: is its coordinator "
                "reachable? `millstream txn find-hanging` tells"
            )
        time.sleep(0.1)


def write_again(
    cluster: Cluster, transactions: Transactions, lost: TaskTransaction, identity: Identity
) -> TaskTransaction:
    """Copies the rows of an aborted transaction into one of `identity`, which stays open."""
    producer = Producer(cluster, transactional_id=identity.transactional_id, at_most=transactions.max_produce_version)
    try:
        left = _left(cluster, lost)
        transactions.add_partitions(identity, list(left))
        for place, written in left.items():
            _copy(cluster, producer, place, written, lost.identity, identity)
        producer.flush()
        return TaskTransaction(identity, producer.written)
    finally:
        producer.close()


def _left(cluster: Cluster, transaction: TaskTransaction) -> dict[TopicPartition, Written]:
    """Without partitions where retention has deleted all of it: nobody reads that any more, so nothing is missing."""
    starts = cluster.offsets(dict.fromkeys(transaction.written, EARLIEST))
    return {place: each for place, each in transaction.written.items() if starts[place].offset <= each.last_offset}


def _copy(
    cluster: Cluster, producer: Producer, place: TopicPartition, written: Written, old: Identity, new: Identity
) -> None:
    sequence = 0
    for batch, header in _batches(cluster, place, written.first_offset):
        if header.base_offset > written.last_offset:
            break
        if header.is_control or (header.producer_id, header.producer_epoch) != (old.producer_id, old.epoch):
            continue
        copy = EncodedBatch(bytearray(batch), header.record_count)
        PLACEMENT.pack_into(copy.data, 0, 0, header.length, -1)
        stamp(copy, new.producer_id, new.epoch, sequence, True)
        producer.send(place, copy.data, copy.record_count)
        sequence = (sequence + copy.record_count) & MAX_SEQUENCE
    if sequence != written.records & MAX_SEQUENCE:
        raise SinkError(
            f"the transaction {old} of a decided batch was aborted, and of its {written.records} rows in {place} only "
            f"{sequence} are left in the log: the rest has to be written by hand. With two-phase commits "
            "(transaction.two.phase.commit.enable=true on the brokers) this cannot happen"
        )


def _batches(cluster: Cluster, place: TopicPartition, position: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    """All batches from an offset to the end of the log, those of open and aborted transactions too."""
    while True:
        try:
            fetched = cluster.fetch(place, position, max_bytes=_COPY_FETCH_BYTES, max_wait_ms=50, read_committed=False)
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
