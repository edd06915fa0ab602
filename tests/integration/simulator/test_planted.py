"""Bugs that are planted into the product must be found, and by an invariant that is about them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker
from millstream.formats.records.batch import HEADER_SIZE, BatchHeader
from millstream.node.cluster.lifecycle import ControllerContact
from millstream.node.consensus.quorum.metadata_log import MetadataLog
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile
from millstream.node.controller.broker_sessions import BrokerSession
from millstream.node.coordination import runtime as coordinator_runtime
from millstream.node.groups.core.shard import GroupShard
from millstream.node.groups.core.streams.group import StreamsGroup
from millstream.node.metadata.topic_names import INTERNAL_TOPICS
from millstream.node.replicas.core.follower import PartitionFollower
from millstream.node.replicas.local_partition import PartitionContext
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.retry_order import LeaderChangeGapGuard, RetryOrderGuard
from millstream.node.replicas.roles import ReplicaRoles
from millstream.node.runtime.node import Node
from millstream.node.storage.cleaner.copying import CleanedTransactions
from millstream.node.storage.disk import File
from millstream.node.storage.index.transaction_index import AbortedTransaction
from millstream.node.storage.log import recovery
from millstream.node.storage.log.batch_scan import header_at, walk_checked
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.transactions.core import transaction as transaction_end
from millstream.node.transactions.core.shard import TransactionShard
from millstream.node.transactions.core.transaction import Transaction, TransactionState
from millstream.node.transactions.markers import TransactionMarkers
from millstream.simulator.scenarios import Options, Scenario
from millstream.simulator.simulation import simulate

pytestmark = pytest.mark.plain  # bugs are planted in place of methods

SEEDS = range(1, 61)
_OF_RECORDS = {
    "AcknowledgedIsDurable",
    "History",
    "CommittedLogsAreEqual",
    "Liveness",
    "OffsetsMatchOutput",
    "TaskIsActiveOnce",
    "TransactionsAreAtomic",
    "TransactionsEnd",
}
"""What may find that something is lost: any record, a marker, or the state of a group."""


def _acknowledge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def when_committed(self: Partition, offset: int, callback: Callable[[object], None]) -> None:
        callback(None if self.is_leader else self.not_leader())

    monkeypatch.setattr(Partition, "when_committed", when_committed)


def _forget_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumStateFile, "save", lambda self, state: None)


def _never_truncate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionFollower, "diverged", lambda self, epoch, end: self._log.log_end_offset)


def _count_unsynced_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataLog, "flushed_offset", property(lambda self: self.partition.log_end_offset))


def _let_batches_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once, and is in Kafka. Alone it is rarely found, for most gaps come with a new leader."""
    monkeypatch.setattr(RetryOrderGuard, "check", lambda self, *batch: None)
    _take_gaps(monkeypatch)


def _take_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once, and is in Kafka."""
    monkeypatch.setattr(LeaderChangeGapGuard, "check", lambda self, *batch: None)


def _never_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once, and is in Kafka: a leader that was deposed and does not know it refuses a sequence for good."""
    monkeypatch.setattr(ControllerContact, "is_lost", False)


def _keep_failing_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: a leader whose writes fail keeps leading."""
    monkeypatch.setattr(Node, "_goes_offline", lambda self: False)


_LEAST_BYTES = 17
"""Up to the byte that says of which format a batch is."""


def _believe_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery of records takes a batch for whole when it begins as one: what a torn write left of it counts."""
    checked = walk_checked

    def walk(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader, bool]]:
        if "__cluster_metadata" in file.path:
            yield from checked(file, start, end)
            return
        position = start
        while end - position >= _LEAST_BYTES:
            file.truncate(max(file.size(), position + HEADER_SIZE))
            header = header_at(file, position)
            if header is None:
                break
            yield position, header, True
            position += header.size
        file.truncate(position)

    monkeypatch.setattr(recovery, "walk_checked", walk)


# On a single node, without power


def _coordinators_do_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: what coordinators acknowledged was gone after a power cut."""
    config_of = ReplicaRoles._config_of

    def without_flush(self: ReplicaRoles, topic: str) -> LogConfig:
        config = config_of(self, topic)
        return replace(config, flush_before_ack=False) if topic in INTERNAL_TOPICS else config

    monkeypatch.setattr(ReplicaRoles, "_config_of", without_flush)


def _coordinators_acknowledge_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their topics are flushed, but nothing waits for it."""
    monkeypatch.setattr(coordinator_runtime, "may_acknowledge", lambda partition, end: True)


def _show_what_is_not_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: readers got records that a power cut took, and passed over what was written in their place."""
    monkeypatch.setattr(PartitionContext, "own_end", lambda self: self._log.log_end_offset)


def _acknowledge_deletions_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: records that had been deleted came back."""
    monkeypatch.setattr(LogDirectory, "when_checkpointed", lambda self, callback, begin: callback(None))


def _tasks_are_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member gets a task before another one has revoked it."""
    monkeypatch.setattr(StreamsGroup, "is_active_anywhere", lambda self, task: False)


# Transactions


def _name_no_aborted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "aborted_transactions", lambda self, fetch_offset, up_to: [])


def _everything_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def _send_markers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionMarkers, "_retry_later", lambda self, work: None)


def _wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionShard, "_abort_timed_out", lambda self, now_ms: None)


def _abort_in_compacted_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append_marker

    def append_marker(self: PartitionLog, marker: Marker, **fields: object) -> object:
        committed = marker.committed and self.topic_partition.topic != "state"
        return append(self, replace(marker, committed=committed), **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionLog, "append_marker", append_marker)


def _later_coordinators_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = Transaction.marker

    def changed(self: Transaction, coordinator_epoch: int) -> Marker:
        made = marker(self, coordinator_epoch)
        committed = made.committed and coordinator_epoch == 0
        return Marker(
            made.producer_id, made.producer_epoch, made.coordinator_epoch, committed, made.transaction_version
        )

    monkeypatch.setattr(Transaction, "marker", changed)


def _forget_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes over thinks that what was decided is still open."""
    loaded = TransactionShard.loaded

    def forgetful(self: TransactionShard, now_ms: int) -> None:
        for name, transaction in tuple(self.transactions.items()):
            if transaction.is_decided:
                object.__setattr__(transaction, "state", TransactionState.ONGOING)
                self._ongoing[name] = None
        loaded(self, now_ms)

    monkeypatch.setattr(TransactionShard, "loaded", forgetful)


def _count_offsets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: GroupShard, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        self.replay(key, value)

    monkeypatch.setattr(GroupShard, "replay_pending", at_once)


def _lose_offsets_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    end = GroupShard.end_transaction
    monkeypatch.setattr(
        GroupShard, "end_transaction", lambda self, producer_id, committed: end(self, producer_id, False)
    )


def _fence_while_an_end_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: EndTxn with the next epoch was fenced until the markers were written."""

    def fence(transaction: Transaction) -> None:
        if transaction.is_decided:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, "an end is pending")

    monkeypatch.setattr(transaction_end, "_check_not_pending", fence)


# Cleaning


def _clean_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.log_end_offset))


def _abort_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: an aborted transaction took its producer's next ones with it."""
    begin = CleanedTransactions.__init__

    def forgetful(self: CleanedTransactions, aborted: Iterable[AbortedTransaction]) -> None:
        begin(self, [each._replace(last_offset=1 << 62) for each in aborted])

    monkeypatch.setattr(CleanedTransactions, "__init__", forgetful)


def _take_silence_for_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that neither probes nor waits longer where everything is late."""

    def is_suspect(self: BrokerSession, now_s: float, suspect_s: float, lateness_s: float) -> bool:
        return now_s - self.last_contact_s >= suspect_s / 2

    monkeypatch.setattr(BrokerSession, "is_suspect", is_suspect)


LONG = pytest.mark.slow
"""Those that need ten seeds and more. Each scenario has others that are found sooner."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "scenario", "found_by"),
    [
        (_acknowledge_early, Scenario.FAILOVER, _OF_RECORDS),
        pytest.param(
            _forget_votes,
            Scenario.BLACKOUT,
            {"EpochsOnlyGrow", "OneQuorumLeaderPerEpoch", "CommittedMetadataIsStable"},
            marks=LONG,
        ),
        pytest.param(_never_truncate, Scenario.FAILOVER, _OF_RECORDS, marks=LONG),
        (_count_unsynced_metadata, Scenario.BLACKOUT, {"CommittedMetadataIsStable"}),
        (_let_batches_overtake, Scenario.FAILOVER, {"AcknowledgedIsDurable", "History"}),
        (_take_gaps, Scenario.FAILOVER, {"AcknowledgedIsDurable", "History"}),
        (_never_doubt, Scenario.FAILOVER, {"AcknowledgedIsDurable"}),
        (_keep_failing_disks, Scenario.DISK, {"WritesContinue"}),
        pytest.param(
            _believe_headers,
            Scenario.DISK,
            {"AcknowledgedIsDurable", "CompactionKeepsLastRecord", "History", "CommittedLogsAreEqual"},
            marks=LONG,
        ),
        (_coordinators_do_not_wait_for_the_disk, Scenario.POWER, _OF_RECORDS),
        pytest.param(_coordinators_acknowledge_before_the_flush, Scenario.POWER, _OF_RECORDS, marks=LONG),
        pytest.param(
            _show_what_is_not_on_disk,
            Scenario.POWER,
            {"CommittedLogsAreEqual", "History", "AcknowledgedIsDurable"},
            marks=LONG,
        ),
        (_acknowledge_deletions_early, Scenario.POWER, {"AcknowledgedIsDurable"}),
        (_name_no_aborted_ones, Scenario.TRANSACTIONS, {"NoAbortedRead"}),
        (_tasks_are_free_at_once, Scenario.POWER, {"TaskIsActiveOnce"}),
        (_everything_is_stable, Scenario.TRANSACTIONS, {"LastStableOffsetIsCorrect", "NoAbortedRead"}),
        pytest.param(_send_markers_once, Scenario.TRANSACTIONS, {"TransactionsEnd", "Liveness"}, marks=LONG),
        (_wait_for_ever, Scenario.TRANSACTIONS, {"TransactionsEnd"}),
        (_abort_in_compacted_topics, Scenario.TRANSACTIONS, {"TransactionsAreAtomic"}),
        (_later_coordinators_abort, Scenario.TRANSACTIONS, {"TransactionsAreAtomic"}),
        pytest.param(_forget_decisions, Scenario.TRANSACTIONS, {"TransactionStatesAreValid"}, marks=LONG),
        (_count_offsets_at_once, Scenario.TRANSACTIONS, {"OffsetsMatchOutput"}),
        (_lose_offsets_of_transactions, Scenario.TRANSACTIONS, {"OffsetsMatchOutput", "EachInputIsCopiedOnce"}),
        (_fence_while_an_end_is_pending, Scenario.TRANSACTIONS, {"HealthyProducerIsNotFenced"}),
        (_clean_what_is_open, Scenario.TRANSACTIONS, {"CompactionKeepsLastRecord"}),
        (_abort_for_ever, Scenario.TRANSACTIONS, {"CompactionKeepsLastRecord", "TransactionsAreAtomic"}),
        (_take_silence_for_death, Scenario.BUSY, {"NoBrokerIsFenced"}),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Scenario,
    found_by: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        violation = simulate(seed, Options(scenario=scenario)).violation
        if violation is not None:
            assert violation.invariant in found_by, f"seed {seed}: {violation}"
            return
    pytest.fail(f"{len(SEEDS)} seeds have not found it")
