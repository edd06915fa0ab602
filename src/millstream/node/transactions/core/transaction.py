"""One transactional id: its producer, the state of its transaction, and the decisions of InitProducerId and EndTxn.

    Empty ── partition added ──▶ Ongoing ── EndTxn, timeout, new producer ──▶ PrepareCommit | PrepareAbort
      ▲                            ▲                                                   │ all markers written
      └── InitProducerId ──┐       └──── partition added ────┐                         ▼
                           └──────────────────────────────── CompleteCommit | CompleteAbort

With transaction version 2 an abort without partitions is allowed, from Empty and Complete to PrepareAbort. The outcome
is final when Prepare is in the log.

Epochs fence producers. A client never gets the largest epoch, so that every producer can be fenced. A producer whose
epochs are exhausted gets a new producer id.

InitProducerId (`transaction_of_new_producer`): a client without a producer id is a new instance. It gets the next
epoch, and the earlier producer is fenced. A client that sends its id and epoch continues after an error (KIP-360): it
gets the next epoch, or the current one again if it missed the response. An open transaction is aborted first, unless
the client keeps it.

EndTxn (`check_end_txn`): up to transaction version 1 the end of a transaction keeps the epoch, and the state shows a
repeated request. From version 2 on each end raises the epoch, so a request with the epoch before is a repeated one. An
abort by the coordinator looks the same: the client may continue with the next epoch.

    version 2        abort, again       abort, new        commit, again      commit, new
    Empty            PRODUCER_FENCED    aborts            PRODUCER_FENCED    INVALID_TXN_STATE
    CompleteAbort    success            aborts            INVALID_TXN_STATE  INVALID_TXN_STATE
    CompleteCommit   INVALID_TXN_STATE  aborts            success            INVALID_TXN_STATE

    version 0, 1     abort              commit
    Empty            INVALID_TXN_STATE  INVALID_TXN_STATE
    CompleteAbort    success            INVALID_TXN_STATE
    CompleteCommit   INVALID_TXN_STATE  success

In PrepareCommit and PrepareAbort all of these get CONCURRENT_TRANSACTIONS, which clients retry. A client has its next
epoch before the markers are written, so its next EndTxn may arrive in these states.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import Enum, IntEnum

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, ProducerIdentity, TopicPartition

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1
MAX_EPOCH = (1 << 15) - 1
NO_TIMEOUT_MS = (1 << 31) - 1
"""The timeout of transactions in a two-phase commit (KIP-939): they are never aborted by time."""
EPOCH_PER_TRANSACTION = 2
"""The first transaction version in which the end of a transaction raises the producer's epoch (KIP-890)."""


class TransactionState(IntEnum):
    """Kafka's numbers. PrepareEpochFence and Dead are never in the log; Kafka only has them in memory."""

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
        """The name in responses and tools."""
        return self.name.title().replace("_", "")


DECIDED = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETE = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id: its producer, and its open or last transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    """The producer of the transaction: its batches and its marker have this id and epoch."""
    previous_producer_id: int = NO_ID
    """The producer id before the last change."""
    next_producer_id: int = NO_ID
    next_producer_epoch: int = NO_EPOCH
    """The client, if it is not the producer of the transaction. An id without an epoch: the epochs are exhausted, and
    the client continues with this id and epoch 0 when the transaction is complete. Both: the transaction was kept for a
    later client, which may only end it (KIP-939)."""
    last_producer_epoch: int = field(default=NO_EPOCH, compare=False)
    """The client's epoch before the current one. A client that missed a response still sends this epoch. It is not in
    the log."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    updated_ms: int
    client_version: int = 0
    """The transaction version of the client's last request."""

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def client(self) -> ProducerIdentity:
        """The producer id and epoch that may act now; for a decided transaction, those after its completion."""
        if self.is_kept:
            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)
        if self.state in DECIDED and self.next_producer_id != NO_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.producer

    @property
    def is_kept(self) -> bool:
        """Whether the transaction was kept for another client than its producer."""
        return self.next_producer_epoch != NO_EPOCH

    @property
    def is_decided(self) -> bool:
        return self.state in DECIDED

    @property
    def is_over(self) -> bool:
        """Whether no transaction is open and none is ending."""
        return self.state in COMPLETE or self.state == TransactionState.EMPTY

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether it has been open longer than its timeout."""
        if self.state != TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return False
        return self.start_ms + self.timeout_ms < now_ms

    def marker(self, coordinator_epoch: int) -> Marker:
        """The marker for the partitions of a decided transaction."""
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
        """The transaction with the outcome of the client; its markers are not written yet."""
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        next_id, next_epoch = self.next_producer_id, self.next_producer_epoch
        if client_version >= EPOCH_PER_TRANSACTION:
            last_epoch = self.client.epoch
            epoch = min(epoch + 1, MAX_EPOCH)
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
        epoch = min(self.producer_epoch + 1, MAX_EPOCH)
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
    """Whether a client may not get a later epoch: the largest epoch is reserved for fencing."""
    return epoch >= MAX_EPOCH - 1


class ProducerIdNeeded(Exception):
    """The operation must run again with a new producer id. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStart:
    """InitProducerId of a transactional producer."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    """The producer id and epoch that the client had, if it wants to continue with them."""
    keep_prepared: bool = False
    new_producer_id: int | None = None
    """Used if a new id is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProducer:
    """The result of InitProducerId."""

    producer: ProducerIdentity
    ongoing: ProducerIdentity | None = None
    """The producer of the prepared transaction that was kept open, if there is one."""


def transaction_of_new_producer(
    known: Mapping[str, Transaction], start: ProducerStart, transaction_version: int, now_ms: int
) -> Transaction:
    """The transaction after InitProducerId. If it is a decided abort, the client must retry.

    CONCURRENT_TRANSACTIONS while a transaction is ending; PRODUCER_FENCED for a client that was replaced.
    """
    transaction = known.get(start.transactional_id)
    if transaction is None:
        transaction = Transaction(
            transactional_id=start.transactional_id,
            producer_id=_required_id(start.new_producer_id),
            timeout_ms=start.timeout_ms,
            updated_ms=now_ms,
        )
    if transaction.is_decided:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is still ending; try again")
    if start.expected is not None and not _may_be_client(transaction, start.expected):
        raise _fenced(start.expected)
    if transaction.state == TransactionState.ONGOING:
        if not start.keep_prepared:
            return transaction.fenced(transaction_version, now_ms)
        return _kept(transaction, start, now_ms)
    return _next(transaction, start, now_ms)


def started_producer(transaction: Transaction) -> StartedProducer:
    """The producer id and epoch for the response to InitProducerId."""
    ongoing = transaction.producer if transaction.is_kept else None
    return StartedProducer(producer=transaction.client, ongoing=ongoing)


def _may_be_client(transaction: Transaction, expected: ProducerIdentity) -> bool:
    """Whether the client may be the known producer, by its id; the epoch is checked later."""
    if transaction.producer_epoch == NO_EPOCH:
        return True  # the id was deleted or is new: it gets a new producer id
    if expected.producer_id == transaction.client.producer_id:
        return True
    # It may not know yet that its epochs are exhausted.
    return expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.epoch)


def _kept(transaction: Transaction, start: ProducerStart, now_ms: int) -> Transaction:
    client = transaction.client
    if start.expected is not None and start.expected != client:
        raise _fenced(start.expected)
    new_id = _required_id(start.new_producer_id) if is_exhausted(client.epoch) else None
    return transaction.kept_for_new_client(start.timeout_ms, now_ms, new_id)


def _next(transaction: Transaction, start: ProducerStart, now_ms: int) -> Transaction:
    """No transaction is open: the next epoch, a new id if there is none, or the same epoch again."""
    epoch, expected = transaction.producer_epoch, start.expected
    if is_exhausted(epoch) and (expected is None or expected.epoch == epoch):
        return transaction.with_epoch(
            0,
            NO_EPOCH if expected is None else epoch,
            start.timeout_ms,
            now_ms,
            producer_id=_required_id(start.new_producer_id),
        )
    if expected is None:
        return transaction.with_epoch(epoch + 1, NO_EPOCH, start.timeout_ms, now_ms)
    if epoch in (NO_EPOCH, expected.epoch):
        return transaction.with_epoch(epoch + 1, epoch, start.timeout_ms, now_ms)
    if expected.epoch == transaction.last_producer_epoch:
        # After another client, the last epoch would not be set.
        return transaction.with_epoch(epoch, expected.epoch, start.timeout_ms, now_ms)
    raise _fenced(expected)


def _required_id(producer_id: int | None) -> int:
    if producer_id is None:
        raise ProducerIdNeeded
    assert producer_id != NO_ID
    return producer_id


def _fenced(client: ProducerIdentity) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"producer {client.producer_id} with epoch {client.epoch} was fenced by a later producer",
    )


class EndTxnCheck(Enum):
    """The result of the check of an EndTxn request."""

    DECIDE = "the outcome has to be written"
    REPEATED = "the request repeats the last one, and the outcome is written already"


def check_end_txn(
    transaction: Transaction, client: ProducerIdentity, committed: bool, client_version: int
) -> EndTxnCheck:
    """Whether the client may end the transaction, or has already; KafkaError if it may not."""
    if client_version >= EPOCH_PER_TRANSACTION:
        # Checked before the client: it may already have its next id and epoch, and end its next transaction.
        _check_not_pending(transaction)
        return _check_end_with_epochs(transaction, client, committed)
    check_client(transaction, client)
    _check_not_pending(transaction)
    if transaction.state == TransactionState.ONGOING:
        return EndTxnCheck.DECIDE
    if _outcome(transaction) != committed:
        raise _invalid(transaction, committed)
    return EndTxnCheck.REPEATED


def _check_end_with_epochs(transaction: Transaction, client: ProducerIdentity, committed: bool) -> EndTxnCheck:
    if _is_repeated(transaction, client):
        if _outcome(transaction) != committed:
            raise _invalid(transaction, committed)
        if transaction.producer_epoch == MAX_EPOCH:
            raise _fenced(client)  # this epoch is for markers only: a client with it could not be fenced
        return EndTxnCheck.REPEATED
    check_client(transaction, client)
    if transaction.state != TransactionState.ONGOING and committed:
        raise _invalid(transaction, committed)
    return EndTxnCheck.DECIDE


def _is_repeated(transaction: Transaction, client: ProducerIdentity) -> bool:
    """Whether the client has the epoch from before the last end."""
    if transaction.state not in COMPLETE:
        return False
    if transaction.client_version < EPOCH_PER_TRANSACTION and transaction.state == TransactionState.COMPLETE_COMMIT:
        return False  # this client kept its epoch; a lower one is from a replaced client
    now = transaction.producer
    if ProducerIdentity(client.producer_id, client.epoch + 1) == now:
        return True
    ran_out = client.epoch == MAX_EPOCH - 1 and now.epoch == 0
    return ran_out and client.producer_id == transaction.previous_producer_id


def check_client(transaction: Transaction, client: ProducerIdentity) -> None:
    """PRODUCER_FENCED or INVALID_PRODUCER_ID_MAPPING unless this is the client of the transaction."""
    if client.producer_id != transaction.client.producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{transaction.transactional_id!r} does not have producer id {client.producer_id}",
        )
    if client.epoch != transaction.client.epoch:
        raise _fenced(client)


def _check_not_pending(transaction: Transaction) -> None:
    """CONCURRENT_TRANSACTIONS until all markers of the last end are written. The client retries, and is not fenced.

    Whether the request repeats that end or is the next one is known when the last end is complete.
    """
    if transaction.is_decided:
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the end of the last transaction of {transaction.transactional_id!r} is pending; try again",
        )


def _outcome(transaction: Transaction) -> bool | None:
    return {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}.get(transaction.state)


def _invalid(transaction: Transaction, committed: bool) -> KafkaError:
    outcome = "committed" if committed else "aborted"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"a transaction that is {transaction.state.label} cannot be {outcome}"
    )
