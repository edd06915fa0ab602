"""What a partition remembers of its idempotent producers, from batch headers alone: epoch and the last five batches.

The rules are those of Kafka 4's ProducerAppendInfo. A producer that the partition does not know may begin with any
sequence, because its records may have been deleted by retention. The file format is in `producer_snapshot`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from millstream.model.errors import ErrorCode, KafkaError
from millstream.records.batch import MAX_SEQUENCE, NO_SEQUENCE

REMEMBERED_BATCHES = 5
NO_EPOCH = -1
NO_TRANSACTION = -1


class WrittenBatch(NamedTuple):
    """One batch a producer wrote."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class ProducerEntry:
    """One producer's standing in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int = NO_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # The fields of `WrittenBatch`, unnamed until somebody asks: naming them would be a tenth of an append.
        self.batches: list[tuple[int, int, int, int, int]] = []
        self.next_sequence = 0
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.transaction_start = NO_TRANSACTION

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    @property
    def last_batch(self) -> WrittenBatch | None:
        return WrittenBatch(*self.batches[-1]) if self.batches else None

    def add(self, epoch: int, first_sequence: int, offset_delta: int, last_offset: int, timestamp: int) -> None:
        batches = self.batches
        if epoch != self.epoch:
            self.epoch = epoch
            batches.clear()
        elif len(batches) >= REMEMBERED_BATCHES:
            del batches[0]
        last_sequence = (first_sequence + offset_delta) & MAX_SEQUENCE
        batches.append((first_sequence, last_sequence, last_offset, offset_delta, timestamp))
        self.next_sequence = (last_sequence + 1) & MAX_SEQUENCE
        self.last_timestamp = timestamp


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = {entry.producer_id: entry for entry in entries}

    def check(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> WrittenBatch | None:
        """None when the batch may be appended, the batch as written when this is its repetition; else raises
        KafkaError."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if epoch == entry.epoch:
            if first_sequence == entry.next_sequence:
                return None
            for written in entry.batches:
                if written[0] == first_sequence and written[1] == last_sequence:
                    return WrittenBatch(*written)
            raise out_of_order(producer_id, first_sequence, entry.last_sequence)
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} writes with epoch {epoch}, but epoch {entry.epoch} has been seen",
            )
        if first_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence} instead of 0",
            )
        return None

    def append(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_offset_delta: int,
        last_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """Take note of a data batch that is in the log."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        entry.add(epoch, first_sequence, last_offset_delta, last_offset, timestamp)
        if transactional and entry.transaction_start == NO_TRANSACTION:
            entry.transaction_start = last_offset - last_offset_delta

    def end_transaction(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int) -> None:
        """Take note of a commit or abort marker that is in the log."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        if epoch > entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.next_sequence = 0
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_start = NO_TRANSACTION
        entry.last_timestamp = timestamp

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were idle too long; returns how many."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start == NO_TRANSACTION and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)


def out_of_order(producer_id: int, first_sequence: int, last_sequence: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} sent sequence {first_sequence} after {last_sequence}",
    )
