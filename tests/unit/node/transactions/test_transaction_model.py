"""Transactions under arbitrary interleavings: clients that begin, write, end, repeat and recover, and coordinators that
die. Whatever happens, a transaction has one outcome, no one acts for a client that was replaced, and the log holds all.
"""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity, TopicPartition
from millstream.node.transactions.core.shard import encode
from millstream.node.transactions.core.transaction import MAX_EPOCH, NO_TIMEOUT_MS, Transaction, TransactionState
from tests.examples import examples
from tests.unit.node.coordination.transaction_run import TransactionRun, partition

PARTITIONS = [partition("a", 0), partition("a", 1), partition("b", 0)]
EXPECTED_REFUSALS = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
}


class Transactions(RuleBasedStateMachine):
    clients: "Bundle[ProducerIdentity]" = Bundle("clients")

    @initialize(version=st.sampled_from([0, 1, 2]), epoch=st.sampled_from([None, MAX_EPOCH - 3, MAX_EPOCH - 2]))
    def begin(self, version: int, epoch: int | None) -> None:
        self.run = TransactionRun(version)
        self.version = version if version == 2 else 0
        self.outcomes: dict[ProducerIdentity, bool] = {}
        """The outcome that each marker tells."""
        self.replaced: set[ProducerIdentity] = set()
        self.handed_out: set[ProducerIdentity] = set()
        self.written: dict[ProducerIdentity, set[TopicPartition]] = {}
        """What clients were told is part of the transaction that they have open."""
        if epoch is not None:
            self.run.start()
            self.run.log.append(encode(replace(self.run.known(), producer_epoch=epoch), version))
            self.run.restart()
            self.handed_out.add(self.run.known().producer)

    def _refused(self, error: KafkaError) -> None:
        assert error.code in EXPECTED_REFUSALS, error

    @rule(
        target=clients,
        two_phase=st.booleans(),
        keep=st.booleans(),
        timeout_ms=st.sampled_from([1000, 100_000]),
    )
    def new_instance(self, two_phase: bool, keep: bool, timeout_ms: int) -> ProducerIdentity:
        before = self.run.shard.transactions.get("tx")
        keep = keep and self.version == 2
        try:
            begun = self.run.start(timeout_ms=timeout_ms, two_phase=two_phase, keep=keep)
        except KafkaError as error:
            assert error.code == ErrorCode.CONCURRENT_TRANSACTIONS
            return ProducerIdentity(-5, -5)
        assert begun.producer not in self.handed_out
        assert begun.producer.epoch < MAX_EPOCH
        if begun.ongoing is None:
            assert before is None or before.is_over
        else:
            assert keep and before is not None and before.producer == begun.ongoing
            assert before.partitions == self.run.known().partitions
        self.replaced |= self.handed_out
        self.handed_out.add(begun.producer)
        self.written = {}
        return begun.producer

    @rule(target=clients, client=clients)
    def recovers(self, client: ProducerIdentity) -> ProducerIdentity:
        """KIP-360: the client names itself."""
        try:
            fresh = self.run.start(expected=client).producer
        except KafkaError as error:
            self._refused(error)
            return client
        if client in self.handed_out:  # else no one ever was that
            assert client not in self.replaced
        self.handed_out.add(fresh)
        return fresh

    @rule(client=clients, added=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def adds(self, client: ProducerIdentity, added: set[TopicPartition]) -> None:
        try:
            self.run.add(client, *added, version=self.version)
        except KafkaError as error:
            self._refused(error)
            return
        assert client not in self.replaced and client in self.handed_out
        assert added <= self.run.known().partitions
        self.written.setdefault(client, set()).update(added)

    @rule(target=clients, client=clients, committed=st.booleans())
    def ends(self, client: ProducerIdentity, committed: bool) -> ProducerIdentity:
        before = self.run.shard.transactions.get("tx")
        try:
            after = self.run.end(client, committed, version=self.version)
        except KafkaError as error:
            self._refused(error)
            return client
        assert client in self.handed_out and client not in self.replaced
        assert after.epoch < MAX_EPOCH
        now = self.run.known()
        written = self.written.pop(client, set())
        assert before is not None
        if before.state == TransactionState.ONGOING:
            assert now.is_decided and now.partitions == before.partitions and written <= now.partitions
        if self.version == 2:
            assert after == now.client and after != client
        else:
            assert after == client
        self.handed_out.add(after)
        return after

    @precondition(lambda self: self.run.decided)
    @rule()
    def markers_are_written(self) -> None:
        decided = self.run.complete()
        now = self.run.known()
        assert now.is_over and now.partitions == frozenset()
        assert (now.state == TransactionState.COMPLETE_COMMIT) == decided.marker(0).committed
        assert now.producer == decided.client, "the client goes on as who it was told to be"
        if now.producer_id == decided.producer_id:
            assert now.producer_epoch >= decided.producer_epoch, "the next batch would be refused"

    @rule(duration_ms=st.sampled_from([1, 900, 5000, 200_000]))
    def time_goes_by(self, duration_ms: int) -> None:
        before = self.run.shard.transactions.get("tx")
        self.run.wait(duration_ms)
        now = self.run.shard.transactions.get("tx")
        if before is not None and before != now:
            if before.state == TransactionState.ONGOING:
                assert now is not None and now.state == TransactionState.PREPARE_ABORT
                assert before.timeout_ms != NO_TIMEOUT_MS
                assert self.run.now_ms > before.start_ms + before.timeout_ms
            else:
                assert before.is_over and now is None
                # Everything is forgotten: the next client has a new id.
                self.replaced |= self.handed_out

    @rule()
    def coordinator_dies(self) -> None:
        self.run.restart()

    @invariant()
    def a_load_gives_the_same_state(self) -> None:
        if not hasattr(self, "run"):
            return
        again = TransactionRun(self.run.settings.transaction_version)
        again.log = self.run.log
        again.restart()
        assert again.shard.transactions == self.run.shard.transactions
        assert again.decided == self.run.decided

    @invariant()
    def a_transaction_has_one_outcome(self) -> None:
        known: Transaction | None = self.run.shard.transactions.get("tx") if hasattr(self, "run") else None
        if known is None or not known.is_decided:
            return
        marker = known.marker(0)
        if self.version == 2:
            committed = self.outcomes.setdefault(known.producer, marker.committed)
            assert committed == marker.committed
        assert all(each.epoch < MAX_EPOCH for each in self.handed_out)


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
