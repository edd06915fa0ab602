"""The state machine of one partition of `__transaction_state`, and its records.

`on_decided` is called for each transaction whose outcome is decided: after a write, and after the log is loaded. When
all markers are written, the caller calls `complete`. Transactions that exceed their timeout are aborted; transactional
ids that are not used for long are deleted.

The records are those of Kafka (`transaction.schema`). `TransactionFilter` is the filter of ListTransactions.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity, TopicName, TopicPartition
from millstream.node.coordination.core.expression import Expression
from millstream.node.coordination.core.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    DeferredResponse,
    RecordFormats,
    Timers,
)
from millstream.node.transactions.core.transaction import (
    EndTxnCheck,
    ProducerIdNeeded,
    ProducerStart,
    StartedProducer,
    Transaction,
    TransactionState,
    check_client,
    check_end_txn,
    started_producer,
    transaction_of_new_producer,
)

_TYPE = 0


_FORMATS = RecordFormats("millstream.node.transactions.core", "transaction.schema")


def encode(transaction: Transaction, transaction_version: int) -> CoordinatorRecord:
    """The record of a transaction. `transaction_version` is the cluster's, and selects the version of the record."""
    version = 1 if transaction_version >= 1 else 0
    fields = {
        "producer_id": transaction.producer_id,
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "producer_epoch": transaction.producer_epoch,
        "next_producer_epoch": transaction.next_producer_epoch,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_status": transaction.state,
        "transaction_partitions": _rows(transaction),
        "transaction_last_update_timestamp_ms": transaction.updated_ms,
        "transaction_start_timestamp_ms": transaction.start_ms,
        "client_transaction_version": transaction.client_version,
    }
    return _FORMATS.encode(_TYPE, {"transactional_id": transaction.transactional_id}, fields, version)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    return _FORMATS.encode(_TYPE, {"transactional_id": transactional_id}, None)


def _rows(transaction: Transaction) -> list[dict[str, object]] | None:
    if transaction.state == TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partition_ids": partitions} for topic, partitions in topics.items()]


def decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """The transactional id, with its transaction or None if it is deleted; None for an unknown record."""
    if not _FORMATS.is_known(key, value):
        return None
    transactional_id = _FORMATS.read_key(key).transactional_id
    if value is None:
        return transactional_id, None
    row = _FORMATS.read_value(_TYPE, value)
    return transactional_id, Transaction(
        transactional_id=transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        previous_producer_id=row.previous_producer_id,
        next_producer_id=row.next_producer_id,
        next_producer_epoch=row.next_producer_epoch,
        timeout_ms=row.transaction_timeout_ms,
        state=TransactionState(row.transaction_status),
        partitions=frozenset(
            TopicPartition(TopicName(topic.topic), partition)
            for topic in row.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=row.transaction_start_timestamp_ms,
        updated_ms=row.transaction_last_update_timestamp_ms,
        client_version=row.client_transaction_version,
    )


R = TypeVar("R")
_MAX_BATCH_BYTES = 256 << 10
_NEXT_BATCH_DELAY_MS = 50
"""The delay of the next batch, when the aborted or deleted transactions do not fit into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """What the state machine needs of the cluster's settings and levels."""

    transaction_version: int
    """The cluster's level of the feature `transaction.version`."""
    expiration_ms: int
    abort_interval_ms: int
    expiry_interval_ms: int
    decisions_held: bool = False
    """Whether a backup takes its points now. Then no transaction is decided (`DecisionsHeld`)."""


class DecisionsHeld(Exception):
    """The operation would decide a transaction while a backup takes its points. The caller repeats it later."""


class TransactionShard:
    """The state machine of one partition of `__transaction_state`."""

    def __init__(self, settings: Callable[[], TransactionSettings]) -> None:
        self.timers = Timers()
        self.transactions: dict[str, Transaction] = {}
        self.on_decided: Callable[[Transaction], None] = lambda transaction: None
        """Called with each transaction whose markers must be written."""
        self._settings = settings
        self._ongoing: dict[str, None] = {}

    # Requests of clients

    def start_producer(self, start: ProducerStart, now_ms: int) -> CoordinatorResult[StartedProducer]:
        """InitProducerId. ProducerIdNeeded if it must be called again with a new id."""
        changed = transaction_of_new_producer(self.transactions, start, self._settings().transaction_version, now_ms)
        if not changed.is_decided:
            return self._changed(changed, started_producer(changed))
        if self._settings().decisions_held:
            raise DecisionsHeld
        later: DeferredResponse[StartedProducer] = DeferredResponse()
        later.resolve(_busy("the open transaction is being aborted"))  # type: ignore[arg-type]
        return self._changed(changed, later)

    def add_partitions(
        self,
        transactional_id: str,
        client: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> CoordinatorResult[None]:
        """Adds the partitions to the transaction, which starts if none is open."""
        transaction = self._known(transactional_id)
        if transaction.is_decided:
            raise _busy("the last transaction is still ending; try again")
        check_client(transaction, client)
        if transaction.is_kept:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"{transactional_id!r} has a prepared transaction, which must be ended first",
            )
        wanted = frozenset(partitions)
        if transaction.state == TransactionState.ONGOING and wanted <= transaction.partitions:
            return CoordinatorResult(None)
        return self._changed(transaction.with_partitions(wanted, client_version, now_ms), None)

    def verify(
        self, transactional_id: str, client: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether the partitions are part of the transaction; KafkaError if the client has none."""
        transaction = self._known(transactional_id)
        check_client(transaction, client)
        if transaction.is_decided:
            raise _busy("the transaction is ending; try again")
        has = frozenset() if transaction.is_kept else transaction.partitions
        return {at: ErrorCode.NONE if at in has else ErrorCode.TRANSACTION_ABORTABLE for at in partitions}

    def end(
        self,
        transactional_id: str,
        client: ProducerIdentity,
        committed: bool,
        client_version: int,
        now_ms: int,
        new_producer_id: int | None = None,
    ) -> CoordinatorResult[ProducerIdentity]:
        """EndTxn; the response is the client's producer id and epoch from now on. ProducerIdNeeded if it must be called
        again with a new id."""
        transaction = self._known(transactional_id)
        if check_end_txn(transaction, client, committed, client_version) is EndTxnCheck.REPEATED:
            return CoordinatorResult(transaction.producer)
        if self._settings().decisions_held:
            raise DecisionsHeld
        if new_producer_id is None and transaction.needs_producer_id(client_version):
            raise ProducerIdNeeded
        changed = transaction.ended(committed, client_version, now_ms, new_producer_id)
        return self._changed(changed, changed.client)

    def _known(self, transactional_id: str) -> Transaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id!r} has no producer id")
        return transaction

    # Not by a request of a client

    def complete(self, decided: Transaction, now_ms: int) -> CoordinatorResult[None]:
        """Called when all markers of a decided transaction are written."""
        transaction = self.transactions.get(decided.transactional_id)
        if transaction is None or transaction != decided:
            return CoordinatorResult(None)  # already complete; perhaps the next transaction is decided
        return self._changed(transaction.completed(now_ms), None)

    def _abort_timed_out(self, now_ms: int) -> CoordinatorResult[None] | None:
        settings = self._settings()
        version = settings.transaction_version
        if settings.decisions_held:
            self.timers.set("abort", now_ms + _NEXT_BATCH_DELAY_MS, self._abort_timed_out)
            return None
        self._set_timers(now_ms)
        changes: list[Transaction] = []
        records: list[CoordinatorRecord] = []
        size = 0
        for transactional_id in self._ongoing:
            transaction = self.transactions[transactional_id]
            if not transaction.is_timed_out(now_ms):
                continue
            if size > _MAX_BATCH_BYTES:
                self.timers.set("abort", now_ms + _NEXT_BATCH_DELAY_MS, self._abort_timed_out)
                break
            changes.append(transaction.fenced(version, now_ms))
            records.append(encode(changes[-1], version))
            size += _size(records[-1])
        return CoordinatorResult(None, records, lambda error: self._written(changes, error)) if records else None

    def _delete_expired(self, now_ms: int) -> CoordinatorResult[None] | None:
        self._set_timers(now_ms)
        before = now_ms - self._settings().expiration_ms
        records: list[CoordinatorRecord] = []
        size = 0
        for transaction in self.transactions.values():
            if not transaction.is_over or transaction.updated_ms > before:
                continue
            if size > _MAX_BATCH_BYTES:
                self.timers.set("forget", now_ms + _NEXT_BATCH_DELAY_MS, self._delete_expired)
                break
            records.append(tombstone(transaction.transactional_id))
            size += _size(records[-1])
        return CoordinatorResult(None, records) if records else None

    def _set_timers(self, now_ms: int) -> None:
        settings = self._settings()
        if self._ongoing and "abort" not in self.timers:
            self.timers.set("abort", now_ms + settings.abort_interval_ms, self._abort_timed_out)
        if self.transactions and "forget" not in self.timers:
            self.timers.set("forget", now_ms + settings.expiry_interval_ms, self._delete_expired)

    # Records

    def _changed(self, changed: Transaction, response: "R | DeferredResponse[R]") -> "CoordinatorResult[R]":
        record = encode(changed, self._settings().transaction_version)
        return CoordinatorResult(response, [record], lambda error: self._written([changed], error))

    def _written(self, changes: Sequence[Transaction], error: KafkaError | None) -> None:
        if error is not None:
            return
        for changed in changes:
            transaction = replace(
                self.transactions[changed.transactional_id], last_producer_epoch=changed.last_producer_epoch
            )
            self.transactions[changed.transactional_id] = transaction
            if transaction.is_decided:
                self.on_decided(transaction)
        self._set_timers(changes[-1].updated_ms)

    def replay(self, key: bytes, value: bytes | None) -> None:
        decoded = decode(key, value)
        if decoded is None:
            return
        transactional_id, transaction = decoded
        self._ongoing.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = transaction
        if transaction.state == TransactionState.ONGOING:
            self._ongoing[transactional_id] = None

    def loaded(self, now_ms: int) -> None:
        for transaction in tuple(self.transactions.values()):
            if transaction.is_decided:
                self.on_decided(transaction)
        self._set_timers(now_ms)


def _busy(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, reason)


def _size(record: CoordinatorRecord) -> int:
    return len(record.key) + len(record.value or b"")


STATES_BY_LABEL = {state.label: state for state in TransactionState}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """The filter of ListTransactions. An empty field matches all transactions."""

    states: Collection[TransactionState] | None = None
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    pattern: Expression | None = None

    def matches(self, transaction: Transaction, now_ms: int) -> bool:
        if self.states is not None and transaction.state not in self.states:
            return False
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        if self.longer_than_ms >= 0 and now_ms - transaction.start_ms <= self.longer_than_ms:
            return False
        return self.pattern is None or self.pattern.is_match(transaction.transactional_id)
