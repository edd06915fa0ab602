"""InitProducerId for a transactional id: which producer id and epoch its client goes on with.

A client that says nothing of itself is a new instance: the epoch goes up, and whoever was there before is fenced. One
that names its id and epoch wants to go on after an error (KIP-360): it gets the next epoch, or the present one again if
it did not hear of it. An open transaction of the one before is aborted first, unless the client asks to keep it.

EndTxn: whether the client may end its transaction so, and whether it did already.

Up to transaction version 1 the epoch stays the same over a transaction's end, and the state tells a repetition. From
version 2 on each end raises the epoch, so an epoch that is one less is that of a repetition. A transaction that the
coordinator aborted looks the same: its client, too, may go on with the next epoch.

    state            abort, again   abort, new        commit, again   commit, new
    Empty            fenced         aborts            fenced          INVALID_TXN_STATE
    CompleteAbort    as before      aborts            INVALID…        INVALID_TXN_STATE
    CompleteCommit   INVALID…       aborts            as before       INVALID_TXN_STATE

While the markers of an end are being written (PrepareCommit, PrepareAbort), all of these get CONCURRENT_TRANSACTIONS,
which clients retry. A client has its next epoch before the markers are written, so its next end may arrive then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity
from millstream.node.transactions.core.transaction import (
    COMPLETE,
    EPOCH_PER_TRANSACTION,
    LARGEST_EPOCH,
    NO_EPOCH,
    NO_ID,
    Transaction,
    TransactionState,
    is_exhausted,
)


class ProducerIdNeeded(Exception):
    """The operation must be run again with a producer id that nobody has; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStart:
    """What a client asks for that begins to produce with a transactional id."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    """Who the client was, if it wants to go on as that."""
    keep_prepared: bool = False
    new_producer_id: int | None = None
    """For the case that one is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProducer:
    producer: ProducerIdentity
    ongoing: ProducerIdentity | None = None
    """The producer of the transaction that was kept open."""


def started(
    known: Mapping[str, Transaction], start: ProducerStart, transaction_version: int, now_ms: int
) -> Transaction:
    """What becomes of the transactional id. A decided abort means that the client has to come again.

    CONCURRENT_TRANSACTIONS while the end of a transaction is under way; PRODUCER_FENCED for a client that was replaced.
    """
    transaction = known.get(start.transactional_id)
    if transaction is None:
        transaction = Transaction(
            transactional_id=start.transactional_id,
            producer_id=_taken(start.new_producer_id),
            timeout_ms=start.timeout_ms,
            updated_ms=now_ms,
        )
    if transaction.is_decided:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the end of a transaction is under way")
    if start.expected is not None and not _may_be(transaction, start.expected):
        raise _fenced(start.expected)
    if transaction.state == TransactionState.ONGOING:
        if not start.keep_prepared:
            return transaction.fenced(transaction_version, now_ms)
        return _kept(transaction, start, now_ms)
    return _next(transaction, start, now_ms)


def answer_of(transaction: Transaction) -> StartedProducer:
    ongoing = transaction.producer if transaction.is_kept else None
    return StartedProducer(producer=transaction.client, ongoing=ongoing)


def _may_be(transaction: Transaction, expected: ProducerIdentity) -> bool:
    """Whether the client that says so may be the one we know; whether its epoch is right is seen later."""
    if transaction.producer_epoch == NO_EPOCH:
        return True  # all was forgotten, or never known: it gets a new id
    if expected.producer_id == transaction.client.producer_id:
        return True
    # It may not have heard yet that its epochs ran out.
    return expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.epoch)


def _kept(transaction: Transaction, start: ProducerStart, now_ms: int) -> Transaction:
    client = transaction.client
    if start.expected is not None and start.expected != client:
        raise _fenced(start.expected)
    new_id = _taken(start.new_producer_id) if is_exhausted(client.epoch) else None
    return transaction.kept_for_new_client(start.timeout_ms, now_ms, new_id)


def _next(transaction: Transaction, start: ProducerStart, now_ms: int) -> Transaction:
    """Nothing is open: the next epoch, a new id if there is none, or the same once more."""
    epoch, expected = transaction.producer_epoch, start.expected
    if is_exhausted(epoch) and (expected is None or expected.epoch == epoch):
        return transaction.with_epoch(
            0,
            NO_EPOCH if expected is None else epoch,
            start.timeout_ms,
            now_ms,
            producer_id=_taken(start.new_producer_id),
        )
    if expected is None:
        return transaction.with_epoch(epoch + 1, NO_EPOCH, start.timeout_ms, now_ms)
    if epoch in (NO_EPOCH, expected.epoch):
        return transaction.with_epoch(epoch + 1, epoch, start.timeout_ms, now_ms)
    if expected.epoch == transaction.last_producer_epoch:
        # Had there been another client since, the last epoch would be none.
        return transaction.with_epoch(epoch, expected.epoch, start.timeout_ms, now_ms)
    raise _fenced(expected)


def _taken(producer_id: int | None) -> int:
    if producer_id is None:
        raise ProducerIdNeeded
    assert producer_id != NO_ID
    return producer_id


def _fenced(client: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, f"a later producer has taken the place of {client.producer_id}/{client.epoch}"
    )


class Ending(Enum):
    DECIDES = "the outcome is to be written"
    REPEATED = "it is as the client wants it already"


def ending(transaction: Transaction, client: ProducerIdentity, committed: bool, client_version: int) -> Ending:
    """What a client's wish to end the transaction comes to; KafkaError if it may not."""
    if client_version >= EPOCH_PER_TRANSACTION:
        # Before the client is looked at: it may have its next id and epoch already, and asks for the next end.
        _check_not_pending(transaction)
        return _with_epochs(transaction, client, committed)
    check_client(transaction, client)
    _check_not_pending(transaction)
    if transaction.state == TransactionState.ONGOING:
        return Ending.DECIDES
    if _outcome(transaction) != committed:
        raise _invalid(transaction, committed)
    return Ending.REPEATED


def _with_epochs(transaction: Transaction, client: ProducerIdentity, committed: bool) -> Ending:
    if _is_repeated(transaction, client):
        if _outcome(transaction) != committed:
            raise _invalid(transaction, committed)
        if transaction.producer_epoch == LARGEST_EPOCH:
            raise _fenced(client)  # that is for markers only: nobody who has it could be fenced
        return Ending.REPEATED
    check_client(transaction, client)
    if transaction.state != TransactionState.ONGOING and committed:
        raise _invalid(transaction, committed)
    return Ending.DECIDES


def _is_repeated(transaction: Transaction, client: ProducerIdentity) -> bool:
    """Whether the client is who it was before the last end."""
    if transaction.state not in COMPLETE:
        return False
    if transaction.client_version < EPOCH_PER_TRANSACTION and transaction.state == TransactionState.COMPLETE_COMMIT:
        return False  # by a client that kept its epoch: whoever is one behind was replaced before, and did not commit
    now = transaction.producer
    if ProducerIdentity(client.producer_id, client.epoch + 1) == now:
        return True
    ran_out = client.epoch == LARGEST_EPOCH - 1 and now.epoch == 0
    return ran_out and client.producer_id == transaction.previous_producer_id


def check_client(transaction: Transaction, client: ProducerIdentity) -> None:
    """Refuses whoever is not the client of the transaction."""
    if client.producer_id != transaction.client.producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{transaction.transactional_id!r} does not have producer id {client.producer_id}",
        )
    if client.epoch != transaction.client.epoch:
        raise _fenced(client)


def _check_not_pending(transaction: Transaction) -> None:
    """CONCURRENT_TRANSACTIONS until all markers of the last end are written: the client tries again, and is not fenced.

    Whether the client repeats that end or asks for the next one is seen when the last end is complete.
    """
    if transaction.is_decided:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the end of the last transaction of {transaction.transactional_id!r} is pending; try again",
        )


def _outcome(transaction: Transaction) -> bool | None:
    return {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}.get(transaction.state)


def _invalid(transaction: Transaction, committed: bool) -> KafkaError:
    wish = "committed" if committed else "aborted"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, f"a transaction that is {transaction.state.label} cannot be {wish}")
