"""EndTxn: whether the client may end its transaction so, and whether it did already.

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

from enum import Enum

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity
from millstream.node.transactions.core.transaction import (
    COMPLETE,
    EPOCH_PER_TRANSACTION,
    LARGEST_EPOCH,
    Transaction,
    TransactionState,
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


def _fenced(client: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, f"a later producer has taken the place of {client.producer_id}/{client.epoch}"
    )
