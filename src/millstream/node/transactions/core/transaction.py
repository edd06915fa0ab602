"""One transactional id: the producer that has it, and where its transaction is.

    Empty ── partition added ──▶ Ongoing ── EndTxn, time-out, new producer ──▶ PrepareCommit | PrepareAbort
      ▲                            ▲                                                    │ all markers written
      └── InitProducerId ──┐       └──── partition added ────┐                          ▼
                           └──────────────────────────────── CompleteCommit | CompleteAbort

Under transaction version 2 an abort without any partition is allowed, too: from Empty and Complete to PrepareAbort.
The outcome is decided once Prepare is in the log; nothing takes it back.

How a transaction changes: each function makes the next state out of the present one, and decides nothing else.

Epochs are what fences. A client is never given the largest epoch there is, so that a producer can always be fenced; one
whose epochs are used up goes on with a new producer id.

InitProducerId for a transactional id: which producer id and epoch its client goes on with.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from millstream.formats.model.errors import ErrorCode, KafkaError
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

    # Transitions

    def with_epoch(
        self,
        epoch: int,
        last_epoch: int,
        timeout_ms: int,
        now_ms: int,
        *,
        producer_id: int | None = None,
    ) -> "Transaction":
        """A producer starts with this epoch, and perhaps with a new id. No transaction is open."""
        return replace(
            self,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=epoch,
            previous_producer_id=self.producer_id,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def kept_for_new_client(self, timeout_ms: int, now_ms: int, new_producer_id: int | None) -> "Transaction":
        """The open transaction stays open for a new client, whose own epoch fences earlier clients."""
        client = self.client
        if is_exhausted(client.epoch):
            assert new_producer_id is not None
            next_id, next_epoch = new_producer_id, 0
        else:
            next_id, next_epoch = client.producer_id, client.epoch + 1
        return replace(
            self,
            previous_producer_id=self.producer_id,
            next_producer_id=next_id,
            next_producer_epoch=next_epoch,
            last_producer_epoch=NO_EPOCH,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )

    def with_partitions(self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> "Transaction":
        return replace(
            self,
            previous_producer_id=self.producer_id,
            state=TransactionState.ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=now_ms if self.is_over else self.start_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def needs_producer_id(self, client_version: int) -> bool:
        """Whether the client needs a new id after the end of this transaction."""
        return client_version >= EPOCH_PER_TRANSACTION and is_exhausted(self.client.epoch)

    def ended(self, committed: bool, client_version: int, now_ms: int, new_producer_id: int | None) -> "Transaction":
        """The transaction with the outcome that the client asked for; its markers are not written yet."""
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        next_id, next_epoch = self.next_producer_id, self.next_producer_epoch
        if client_version >= EPOCH_PER_TRANSACTION:
            last_epoch = self.client.epoch
            epoch = min(epoch + 1, LARGEST_EPOCH)
            if self.needs_producer_id(client_version):
                assert new_producer_id is not None
                next_id = new_producer_id
                next_epoch = 0 if self.is_kept else NO_EPOCH
            elif self.is_kept:
                next_epoch += 1
        return replace(
            self,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            next_producer_id=next_id,
            next_producer_epoch=next_epoch,
            last_producer_epoch=last_epoch,
            state=state,
            start_ms=now_ms if self.is_over else self.start_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def fenced(self, transaction_version: int, now_ms: int) -> "Transaction":
        """The abort of a transaction that took too long, or whose transactional id another producer uses now.

        What its client still writes is refused. From transaction version 2 on, the client sees this as an abort of its
        own: if no other producer has replaced it, it continues with the next epoch, unless the epochs are exhausted.
        """
        may_go_on = transaction_version >= EPOCH_PER_TRANSACTION and not is_exhausted(self.client.epoch)
        epoch = min(self.producer_epoch + 1, LARGEST_EPOCH)
        return replace(
            self,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            next_producer_epoch=self.next_producer_epoch + (1 if self.is_kept else 0),
            last_producer_epoch=self.client.epoch if may_go_on else NO_EPOCH,
            state=TransactionState.PREPARE_ABORT,
            updated_ms=now_ms,
            client_version=transaction_version if transaction_version >= EPOCH_PER_TRANSACTION else 0,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """The transaction after all markers are written. The client continues with the id and epoch of its response."""
        client = self.client
        committed = self.state == TransactionState.PREPARE_COMMIT
        return replace(
            self,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_ID,
            next_producer_epoch=NO_EPOCH,
            state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
        )


def is_exhausted(epoch: int) -> bool:
    """Whether a client may not be given a later epoch: the largest is kept for fencing."""
    return epoch >= LARGEST_EPOCH - 1


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
