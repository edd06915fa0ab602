"""How a transaction changes: each function makes the next state out of the present one, and decides nothing else.

Epochs are what fences. A client is never given the largest epoch there is, so that a producer can always be fenced; one
whose epochs are used up goes on with a new producer id.
"""

from collections.abc import Iterable
from dataclasses import replace

from millstream.formats.model.identifiers import TopicPartition
from millstream.node.transactions.core.transaction import (
    EPOCH_PER_TRANSACTION,
    LARGEST_EPOCH,
    NO_EPOCH,
    NO_ID,
    NO_TIME,
    Transaction,
    TransactionState,
    is_exhausted,
)


def with_epoch(
    transaction: Transaction,
    epoch: int,
    last_epoch: int,
    timeout_ms: int,
    now_ms: int,
    *,
    producer_id: int | None = None,
) -> Transaction:
    """A producer begins, with this epoch and perhaps with a new id; nothing is open."""
    return replace(
        transaction,
        producer_id=transaction.producer_id if producer_id is None else producer_id,
        producer_epoch=epoch,
        previous_producer_id=transaction.producer_id,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIME,
        updated_ms=now_ms,
    )


def kept(transaction: Transaction, timeout_ms: int, now_ms: int, new_producer_id: int | None) -> Transaction:
    """The open transaction stays as it is, for a client with an epoch of its own, which fences all before it."""
    client = transaction.client
    if is_exhausted(client.epoch):
        assert new_producer_id is not None
        next_id, next_epoch = new_producer_id, 0
    else:
        next_id, next_epoch = client.producer_id, client.epoch + 1
    return replace(
        transaction,
        previous_producer_id=transaction.producer_id,
        next_producer_id=next_id,
        next_producer_epoch=next_epoch,
        last_producer_epoch=NO_EPOCH,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
    )


def with_partitions(
    transaction: Transaction, partitions: Iterable[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    return replace(
        transaction,
        previous_producer_id=transaction.producer_id,
        state=TransactionState.ONGOING,
        partitions=transaction.partitions.union(partitions),
        start_ms=now_ms if transaction.is_over else transaction.start_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def needs_producer_id(transaction: Transaction, client_version: int) -> bool:
    """Whether the client needs a new id after the end of this transaction."""
    return client_version >= EPOCH_PER_TRANSACTION and is_exhausted(transaction.client.epoch)


def decided(
    transaction: Transaction, committed: bool, client_version: int, now_ms: int, new_producer_id: int | None
) -> Transaction:
    """The client has ended it."""
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    epoch, last_epoch = transaction.producer_epoch, transaction.last_producer_epoch
    next_id, next_epoch = transaction.next_producer_id, transaction.next_producer_epoch
    if client_version >= EPOCH_PER_TRANSACTION:
        last_epoch = transaction.client.epoch
        epoch = min(epoch + 1, LARGEST_EPOCH)
        if needs_producer_id(transaction, client_version):
            assert new_producer_id is not None
            next_id = new_producer_id
            next_epoch = 0 if transaction.is_kept else NO_EPOCH
        elif transaction.is_kept:
            next_epoch += 1
    return replace(
        transaction,
        previous_producer_id=transaction.producer_id,
        producer_epoch=epoch,
        next_producer_id=next_id,
        next_producer_epoch=next_epoch,
        last_producer_epoch=last_epoch,
        state=state,
        start_ms=now_ms if transaction.is_over else transaction.start_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def fenced(transaction: Transaction, transaction_version: int, now_ms: int) -> Transaction:
    """It took too long, or another producer came: it is aborted, and what its client goes on writing is refused.

    Where each transaction has its own epoch, this is to the client as if it had aborted the transaction itself: if it
    is still there, and nobody has taken its place, it may go on with the next epoch. Unless its epochs are used up.
    """
    may_go_on = transaction_version >= EPOCH_PER_TRANSACTION and not is_exhausted(transaction.client.epoch)
    epoch = min(transaction.producer_epoch + 1, LARGEST_EPOCH)
    return replace(
        transaction,
        previous_producer_id=transaction.producer_id,
        producer_epoch=epoch,
        next_producer_epoch=transaction.next_producer_epoch + (1 if transaction.is_kept else 0),
        last_producer_epoch=transaction.client.epoch if may_go_on else NO_EPOCH,
        state=TransactionState.PREPARE_ABORT,
        updated_ms=now_ms,
        client_version=transaction_version if transaction_version >= EPOCH_PER_TRANSACTION else 0,
    )


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """All markers are written: the client goes on as who it was told to be."""
    client = transaction.client
    committed = transaction.state == TransactionState.PREPARE_COMMIT
    return replace(
        transaction,
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_ID,
        next_producer_epoch=NO_EPOCH,
        state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
