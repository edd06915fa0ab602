"""EndTxn: whether the client may end its transaction so, and whether it did already.

Up to transaction version 1 the epoch stays the same over a transaction's end, and the state tells a repetition. From
version 2 on each end raises the epoch, so an epoch that is one less is that of a repetition. A transaction that the
coordinator aborted looks the same: its client, too, may go on with the next epoch.

    state            abort, again   abort, new        commit, again   commit, new
    Empty            fenced         aborts            fenced          INVALID_TXN_STATE
    CompleteAbort    as before      aborts            INVALID…        INVALID_TXN_STATE
    CompleteCommit   INVALID…       aborts            as before       INVALID_TXN_STATE
"""

from enum import Enum

from millstream.coordinator.transaction.transaction import (
    COMMITTED,
    COMPLETE,
    EPOCH_PER_TRANSACTION,
    LARGEST_EPOCH,
    Transaction,
    TransactionState,
)
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.transactions import ProducerIdentity


class Ending(Enum):
    DECIDES = "the outcome is to be written"
    REPEATED = "it is as the client wants it already"


def ending(transaction: Transaction, client: ProducerIdentity, committed: bool, client_version: int) -> Ending:
    """What a client's wish to end the transaction comes to; KafkaError if it may not."""
    if client_version >= EPOCH_PER_TRANSACTION:
        return _with_epochs(transaction, client, committed)
    check_client(transaction, client)
    if transaction.state == TransactionState.ONGOING:
        return Ending.DECIDES
    _check_decided(transaction, committed)
    if _outcome(transaction) != committed:
        raise _invalid(transaction, committed)
    return Ending.REPEATED


def _with_epochs(transaction: Transaction, client: ProducerIdentity, committed: bool) -> Ending:
    again = _is_repeated(transaction, client)
    if not again:
        check_client(transaction, client)
    if transaction.is_decided and not again:
        raise _fenced(client)
    if transaction.state == TransactionState.ONGOING:
        return Ending.DECIDES
    _check_decided(transaction, committed)
    if again:
        if _outcome(transaction) != committed:
            raise _invalid(transaction, committed)
        if transaction.producer_epoch == LARGEST_EPOCH:
            raise _fenced(client)  # that is for markers only: nobody who has it could be fenced
        return Ending.REPEATED
    if committed:
        raise _invalid(transaction, committed)
    return Ending.DECIDES


def _is_repeated(transaction: Transaction, client: ProducerIdentity) -> bool:
    """Whether the client is who it was before the last end."""
    if transaction.state not in COMPLETE and not transaction.is_decided:
        return False
    if transaction.client_version < EPOCH_PER_TRANSACTION and transaction.state in COMMITTED:
        return False  # by a client that kept its epoch: whoever is one behind was replaced before, and did not commit
    raised = ProducerIdentity(client.producer_id, client.epoch + 1)
    if transaction.is_kept:
        return raised == transaction.client
    if raised == transaction.producer:
        return True
    now = transaction.producer
    ran_out = client.epoch == LARGEST_EPOCH - 1 and now.epoch == 0
    return transaction.state in COMPLETE and ran_out and client.producer_id == transaction.previous_producer_id


def check_client(transaction: Transaction, client: ProducerIdentity) -> None:
    """Refuses whoever is not the client of the transaction."""
    if client.producer_id != transaction.client.producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{transaction.transactional_id!r} does not have producer id {client.producer_id}",
        )
    if client.epoch != transaction.client.epoch:
        raise _fenced(client)


def _check_decided(transaction: Transaction, committed: bool) -> None:
    if not transaction.is_decided:
        return
    if (transaction.state == TransactionState.PREPARE_COMMIT) != committed:
        raise _invalid(transaction, committed)
    raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the end of the transaction is under way")


def _outcome(transaction: Transaction) -> bool | None:
    return {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}.get(transaction.state)


def _invalid(transaction: Transaction, committed: bool) -> KafkaError:
    wish = "committed" if committed else "aborted"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, f"a transaction that is {transaction.state.label} cannot be {wish}")


def _fenced(client: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, f"a later producer has taken the place of {client.producer_id}/{client.epoch}"
    )
