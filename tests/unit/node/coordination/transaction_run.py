"""A transaction shard without a broker: its log is a list, its clock a number, and its runtime is this module."""

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity, TopicName, TopicPartition
from millstream.node.coordination.core.state_machine import CoordinatorRecord, CoordinatorResult, DeferredResponse
from millstream.node.transactions.core.shard import TransactionSettings, TransactionShard
from millstream.node.transactions.core.transaction import (
    NO_TIMEOUT_MS,
    ProducerIdNeeded,
    ProducerStart,
    StartedProducer,
    Transaction,
)

START_MS = 1_000_000
R = TypeVar("R")


def partition(name: str, index: int = 0) -> TopicPartition:
    return TopicPartition(TopicName(name), index)


class TransactionRun:
    def __init__(self, transaction_version: int = 2, first_producer_id: int = 1000) -> None:
        self.settings = TransactionSettings(
            transaction_version=transaction_version,
            expiration_ms=1_000_000,
            abort_interval_ms=1000,
            expiry_interval_ms=10_000,
        )
        self.now_ms = START_MS
        self.log: list[CoordinatorRecord] = []
        self.ids = count(first_producer_id)
        self.decided: dict[str, Transaction] = {}
        """Transactions whose markers someone has to write."""
        self.fail_writes: KafkaError | None = None
        self.shard = self._load()

    def _load(self) -> TransactionShard:
        shard = TransactionShard(lambda: self.settings)
        self.decided = {}
        shard.on_decided = lambda decided: self.decided.update({decided.transactional_id: decided})
        for record in self.log:
            shard.replay(*record)
        shard.loaded(self.now_ms)
        return shard

    def restart(self) -> None:
        """The coordinator dies, and another loads the log."""
        self.shard = self._load()

    # The runtime

    def run(self, operation: "Callable[[int | None], CoordinatorResult[R]]") -> R:
        try:
            outcome = operation(None)
        except ProducerIdNeeded:
            outcome = operation(next(self.ids))
        self._write(outcome)
        response: Any = outcome.response.value if isinstance(outcome.response, DeferredResponse) else outcome.response
        if isinstance(response, KafkaError):
            raise response
        given: R = response
        return given

    def _write(self, outcome: "CoordinatorResult[Any]") -> None:
        if self.fail_writes is not None and outcome.records:
            if outcome.on_written is not None:
                outcome.on_written(self.fail_writes)
            raise self.fail_writes
        for record in outcome.records:
            self.log.append(record)
            self.shard.replay(*record)
        if outcome.on_written is not None:
            outcome.on_written(None)

    def wait(self, duration_ms: int) -> None:
        """Time goes by, and timers ring."""
        self.now_ms += duration_ms
        while (action := self.shard.timers.take_due(self.now_ms)) is not None:
            outcome = action(self.now_ms)
            if outcome is not None:
                self._write(outcome)

    # Requests

    def start(
        self,
        transactional_id: str = "tx",
        expected: ProducerIdentity | None = None,
        timeout_ms: int = 60_000,
        *,
        keep: bool = False,
        two_phase: bool = False,
    ) -> StartedProducer:
        return self.run(
            lambda new_id: self.shard.start_producer(
                ProducerStart(
                    transactional_id=transactional_id,
                    timeout_ms=NO_TIMEOUT_MS if two_phase else timeout_ms,
                    expected=expected,
                    keep_prepared=keep,
                    new_producer_id=new_id,
                ),
                self.now_ms,
            )
        )

    def begin(self, transactional_id: str = "tx", **options: Any) -> ProducerIdentity:
        """As clients do: again while an earlier transaction is being ended."""
        for _ in range(3):
            try:
                return self.start(transactional_id, **options).producer
            except KafkaError as error:
                assert error.code == ErrorCode.CONCURRENT_TRANSACTIONS
                self.complete(transactional_id)
        raise AssertionError("it never begins")

    def add(
        self, client: ProducerIdentity, *partitions: TopicPartition, transactional_id: str = "tx", version: int = 2
    ) -> None:
        self.run(lambda _: self.shard.add_partitions(transactional_id, client, partitions, version, self.now_ms))

    def end(
        self, client: ProducerIdentity, committed: bool = True, transactional_id: str = "tx", version: int = 2
    ) -> ProducerIdentity:
        return self.run(
            lambda new_id: self.shard.end(transactional_id, client, committed, version, self.now_ms, new_id)
        )

    def complete(self, transactional_id: str = "tx") -> Transaction:
        """The markers of a decided transaction are all written."""
        decided = self.decided.pop(transactional_id)
        self.run(lambda _: self.shard.complete(decided, self.now_ms))
        return decided

    def known(self, transactional_id: str = "tx") -> Transaction:
        return self.shard.transactions[transactional_id]
