"""One transactional id: the producer that has it, and where its transaction is.

    Empty ── partition added ──▶ Ongoing ── EndTxn, time-out, new producer ──▶ PrepareCommit | PrepareAbort
      ▲                            ▲                                                    │ all markers written
      └── InitProducerId ──┐       └──── partition added ────┐                          ▼
                           └──────────────────────────────── CompleteCommit | CompleteAbort

Under transaction version 2 an abort without any partition is allowed, too: from Empty and Complete to PrepareAbort.
The outcome is decided once Prepare is in the log; nothing takes it back.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from millstream.formats.model.identifiers import Marker, ProducerIdentity, TopicPartition

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1
LARGEST_EPOCH = (1 << 15) - 1
NO_TIMEOUT_MS = (1 << 31) - 1
"""The time-out of transactions that take part in a two-phase commit (KIP-939): they wait for their end for ever."""
EPOCH_PER_TRANSACTION = 2
"""The first transaction version in which the end of a transaction raises the producer's epoch (KIP-890)."""


class TransactionState(IntEnum):
    """With Kafka's numbers. PrepareEpochFence and Dead are in no log: Kafka passes through them in memory only."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As tools name it."""
        return self.name.title().replace("_", "")


DECIDED = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETE = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    """The producer of the transaction: its batches and its marker carry this id and epoch."""
    previous_producer_id: int = NO_ID
    """The producer's id before the last change."""
    next_producer_id: int = NO_ID
    next_producer_epoch: int = NO_EPOCH
    """Who the client is, where that is not the producer of the transaction. An id without an epoch: epochs ran out, and
    the client goes on with this id and epoch 0 once the transaction is complete. Both: the transaction was kept for a
    client that came later, who may only end it (KIP-939)."""
    last_producer_epoch: int = field(default=NO_EPOCH, compare=False)
    """The client's epoch before the present one. A client that did not hear of its new epoch still says this one. It
    is not in the log."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    updated_ms: int
    client_version: int = 0
    """The transaction version that the client spoke when the state changed."""

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def client(self) -> ProducerIdentity:
        """Who may act on it now; of a decided transaction, who may when it is complete."""
        if self.is_kept:
            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)
        if self.state in DECIDED and self.next_producer_id != NO_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.producer

    @property
    def is_kept(self) -> bool:
        """Whether another client than the one that wrote it is to end the transaction."""
        return self.next_producer_epoch != NO_EPOCH

    @property
    def is_decided(self) -> bool:
        return self.state in DECIDED

    @property
    def is_over(self) -> bool:
        """Nothing is open and nothing has to be done."""
        return self.state in COMPLETE or self.state == TransactionState.EMPTY

    def is_late(self, now_ms: int) -> bool:
        """Whether it has been open for longer than its time-out."""
        if self.state != TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return False
        return self.start_ms + self.timeout_ms < now_ms

    def marker(self, coordinator_epoch: int) -> Marker:
        """What is written to the partitions of a decided transaction."""
        assert self.is_decided
        return Marker(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            committed=self.state == TransactionState.PREPARE_COMMIT,
            transaction_version=self.client_version,
        )


def is_exhausted(epoch: int) -> bool:
    """Whether a client may not be given a later epoch: the largest is kept for fencing."""
    return epoch >= LARGEST_EPOCH - 1
