"""InitProducerId for a transactional id: which producer id and epoch its client goes on with.

A client that says nothing of itself is a new instance: the epoch goes up, and whoever was there before is fenced. One
that names its id and epoch wants to go on after an error (KIP-360): it gets the next epoch, or the present one again if
it did not hear of it. An open transaction of the one before is aborted first, unless the client asks to keep it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity
from millstream.node.transactions.core import transitions
from millstream.node.transactions.core.transaction import NO_EPOCH, NO_ID, Transaction, TransactionState, is_exhausted


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
            return transitions.fenced(transaction, transaction_version, now_ms)
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
    return transitions.kept(transaction, start.timeout_ms, now_ms, new_id)


def _next(transaction: Transaction, start: ProducerStart, now_ms: int) -> Transaction:
    """Nothing is open: the next epoch, a new id if there is none, or the same once more."""
    epoch, expected = transaction.producer_epoch, start.expected
    if is_exhausted(epoch) and (expected is None or expected.epoch == epoch):
        return transitions.with_epoch(
            transaction,
            0,
            NO_EPOCH if expected is None else epoch,
            start.timeout_ms,
            now_ms,
            producer_id=_taken(start.new_producer_id),
        )
    if expected is None:
        return transitions.with_epoch(transaction, epoch + 1, NO_EPOCH, start.timeout_ms, now_ms)
    if epoch in (NO_EPOCH, expected.epoch):
        return transitions.with_epoch(transaction, epoch + 1, epoch, start.timeout_ms, now_ms)
    if expected.epoch == transaction.last_producer_epoch:
        # Had there been another client since, the last epoch would be none.
        return transitions.with_epoch(transaction, epoch, expected.epoch, start.timeout_ms, now_ms)
    raise _fenced(expected)


def _taken(producer_id: int | None) -> int:
    if producer_id is None:
        raise ProducerIdNeeded
    assert producer_id != NO_ID
    return producer_id


def _fenced(expected: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, f"a later producer has taken the place of {expected.producer_id}/{expected.epoch}"
    )
