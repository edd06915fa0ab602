"""What became of a transaction, by the log itself; and its rows written again if it was aborted after the decision.

A coordinator aborts a transaction whose time is up, also one that was decided to be committed by a driver that died
before it could say so. (Not with two-phase commits: those wait.) The rows of an aborted transaction still are in the
log, where the decision says; so they are copied from there, batch by batch, into a transaction that takes its place.
"""

import struct
import time
from collections.abc import Iterator
from enum import Enum

from millstream.columnar import EncodedBatch, stamp
from millstream.formats.records.batch import PLACEMENT, BatchHeader, iterate_headers
from millstream.formats.records.record import iterate_records
from millstream.raw_client import EARLIEST, Cluster, OffsetOutOfRangeError, TopicPartition
from millstream.raw_client.producing import Producer, Written
from millstream.raw_client.transactions import Identity, Transactions
from millstream.spark.errors import SinkError
from millstream.spark.sink.decisions import TaskTransaction

_FETCH_BYTES = 8 << 20
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
    producer = Producer(cluster, transactional_id=identity.transactional_id, at_most=transactions.produce_at_most)
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
            fetched = cluster.fetch(place, position, max_bytes=_FETCH_BYTES, max_wait_ms=50, read_committed=False)
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
