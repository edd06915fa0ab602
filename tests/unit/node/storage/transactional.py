"""Batches of transactions and their markers, as a producer and a coordinator write them to a log."""

from millstream.formats.model.identifiers import Marker, Origin, VerificationGuard
from millstream.formats.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, seal
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.batches import NOW, batch

TRANSACTIONAL, CONTROL = 0x10, 0x20


def write(
    log: PartitionLog,
    producer: int,
    sequence: int,
    *values: bytes,
    epoch: int = 0,
    guard: VerificationGuard | None = None,
    needs_guard: bool = False,
) -> int:
    """A batch in the producer's transaction; its first offset."""
    data = batch(*values, producer_id=producer, producer_epoch=epoch, sequence=sequence, attributes=TRANSACTIONAL)
    return log.append(data, leader_epoch=0, now_ms=NOW, guard=guard, needs_guard=needs_guard).base_offset


def write_own(log: PartitionLog, producer: int, *values: bytes, epoch: int = 0) -> int:
    """A batch that a broker writes in the producer's transaction."""
    data = batch(*values, producer_id=producer, producer_epoch=epoch, attributes=TRANSACTIONAL)
    return log.append(data, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR).base_offset


def end(
    log: PartitionLog, producer: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0, version: int = 1
) -> int:
    """The marker's offset."""
    marker = Marker(producer, epoch, coordinator_epoch, committed, version)
    return log.append_marker(marker, leader_epoch=0, now_ms=NOW).base_offset


def commit(log: PartitionLog, producer: int, **fields: int) -> int:
    return end(log, producer, committed=True, **fields)


def abort(log: PartitionLog, producer: int, **fields: int) -> int:
    return end(log, producer, committed=False, **fields)


def emptied(header: BatchHeader) -> bytearray:
    """A batch as the cleaner leaves it: only its header, with the offsets and the sequence it had."""
    data = bytearray(HEADER_SIZE)
    attributes = header.attributes & (TRANSACTIONAL | CONTROL)
    HEADER.pack_into(
        data, 0, header.base_offset, HEADER_SIZE - LOG_OVERHEAD, header.leader_epoch, 2, 0, attributes,
        header.last_offset_delta, -1, header.max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, 0,
    )  # fmt: skip
    seal(data, 0, len(data))
    return data
