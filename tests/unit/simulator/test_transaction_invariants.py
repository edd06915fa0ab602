"""Each invariant of transactions and of compacted topics is shown what it must refuse, and what it must let pass."""

import struct
from typing import Any

import pytest

from millstream.formats.records.record import Record, build_batch
from millstream.simulator.clients.transaction_tracker import Transaction, TransactionTracker
from millstream.simulator.invariants.cluster import CommittedLogsAreEqual
from millstream.simulator.invariants.compaction import CompactionKeepsLastRecord
from millstream.simulator.invariants.logs import OFFSETS_TOPIC, STATE_TOPIC, CommittedLogs
from millstream.simulator.invariants.observation import Batch, Observation, ObservedReplica
from millstream.simulator.invariants.transactions import TransactionInvariants
from millstream.simulator.results import Violation
from tests.unit.simulator.logs import ABORT, COMMIT, StoredLog, marker, plain, replica, stored, written


class World:
    """Everything that is looked at, with one transaction or more."""

    def __init__(self) -> None:
        self.tracker = TransactionTracker(log_event=lambda where, what: None)
        self.logs = CommittedLogs(cleaned=("state",))
        self.transactions = TransactionInvariants(self.tracker, self.logs, b"loop")
        self.cleaning = CompactionKeepsLastRecord(self.transactions.logs, self.logs, delete_retention_s=1.5)
        self.transactions.reads.missed_its_end = self.cleaning.missed_its_end
        self.now = 0.0
        self._agree = CommittedLogsAreEqual(self.logs)

    def begin(self, name: str = "a/1", **fields: Any) -> Transaction:
        transaction = self.tracker.begin(name, "tx", 7, 1)
        for field, value in fields.items():
            setattr(transaction, field, value)
        return transaction

    def look(self, *replicas: ObservedReplica) -> None:
        seen = Observation(self.now, replicas=list(replicas))
        for invariant in (self._agree, *self.transactions.all, self.cleaning):
            invariant.check(seen)
        self.tracker.changed.clear()

    def look_at(self, topic: str, *batches: Batch, **fields: Any) -> None:
        self.look(replica(topic, StoredLog(*batches), **fields))


def test_a_transaction_is_whole() -> None:
    world = World()
    transaction = world.begin(commit_requested=True)
    world.tracker.ended(transaction, True, 1.0)
    ledger = (written(0, "a/1#1"), marker(1, COMMIT))
    world.look_at("ledger", *ledger)
    world.look_at("state", written(0, "a/1#2", key="k"), marker(1, COMMIT))
    assert transaction.fates == {("ledger", 0): True, ("state", 0): True}
    transaction.values = {"a/1#1": ("ledger", 0), "a/1#2": ("state", 0)}
    world.transactions.check_end()
    transaction.values["a/1#3"] = ("ledger", 1)
    with pytest.raises(Violation, match=r"TransactionsAreAtomic: .* its records \['a/1#3'\] are missing"):
        world.transactions.check_end()


def test_a_torn_transaction_is_found() -> None:
    world = World()
    world.begin(commit_requested=True)
    world.look_at("ledger", written(0, "a/1#1"), marker(1, COMMIT))
    with pytest.raises(Violation, match=r"TransactionsAreAtomic: .*: committed in ledger-0, aborted in state-0"):
        world.look_at("state", written(0, "a/1#2"), marker(1, ABORT))


def test_a_commit_that_no_one_asked_for_is_found() -> None:
    world = World()
    world.begin()
    with pytest.raises(Violation, match="committed in ledger-0, but no commit was requested"):
        world.look_at("ledger", written(0, "a/1#1"), marker(1, COMMIT))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("told_first", [True, False])
def test_an_outcome_other_than_its_client_was_told_is_found(told: bool, told_first: bool) -> None:
    world = World()
    transaction = world.begin(commit_requested=True)
    if told_first:
        world.tracker.ended(transaction, told, 1.0)
    with pytest.raises(Violation, match=r"TransactionsAreAtomic: .* for its client it is"):
        world.look_at("ledger", written(0, "a/1#1"), marker(1, ABORT if told else COMMIT))
        world.tracker.ended(transaction, told, 1.0)
        world.look()


def test_records_of_two_transactions_under_one_marker_are_found() -> None:
    world = World()
    world.begin()
    world.begin("a/2")
    with pytest.raises(Violation, match="ends a/1 and a/2 with one marker"):
        world.look_at("ledger", written(0, "a/1#1"), written(1, "a/2#1"), marker(2, ABORT))


def test_a_record_that_is_committed_twice_is_found() -> None:
    world = World()
    world.begin(commit_requested=True)
    world.look_at("ledger", written(0, "a/1#1"), written(1, "a/1#1"), marker(2, COMMIT))
    with pytest.raises(Violation, match="a/1#1 is committed twice"):
        world.transactions.check_end()


def test_an_aborted_read_is_found() -> None:
    world = World()
    transaction = world.begin(commit_requested=True)
    world.tracker.note_read(transaction, "reader", "a/1#1", ("ledger", 0), 0)
    world.look()  # it may yet be committed
    with pytest.raises(
        Violation, match=r"NoAbortedRead: .* was read by reader at ledger-0 offset 0 \(a/1#1\), but it is aborted"
    ):
        world.look_at("ledger", written(0, "a/1#1"), marker(1, ABORT))


def test_a_read_before_the_commit_is_found() -> None:
    world = World()
    transaction = world.begin()
    world.tracker.note_read(transaction, "reader", "a/1#1", ("ledger", 0), 0)
    transaction.commit_requested = True
    with pytest.raises(Violation, match=r"NoAbortedRead: .* before its commit was requested"):
        world.look()


def test_a_wrong_last_stable_offset_is_found() -> None:
    world = World()
    world.begin(commit_requested=True)
    log = StoredLog(plain(0, None, "x"), written(1, "a/1#1"), plain(2, None, "y"))
    world.look(replica("ledger", log, last_stable_offset=1))
    with pytest.raises(Violation, match=r"LastStableOffsetIsCorrect: .* is 3; .* is 3, the first undecided offset 1"):
        world.look(replica("ledger", log, last_stable_offset=3))
    ended = StoredLog(*log.batches(0, 3), marker(3, COMMIT))
    world.look(replica("ledger", ended, leader_epoch=2))
    with pytest.raises(Violation, match="is 1; the high watermark is 4, the first undecided offset None"):
        world.look(replica("ledger", ended, last_stable_offset=1, leader_epoch=3))
    # Another leader that does not know yet that the marker is committed takes it for open, as it should.
    world.look(replica("ledger", ended, node_id=2, high_watermark=3, last_stable_offset=1, leader_epoch=4))
    # Nor is it wrong if it counts what is in its log: who wrote the marker knew the outcome.
    world.look(replica("ledger", ended, node_id=2, high_watermark=3, last_stable_offset=3, leader_epoch=5))
    with pytest.raises(Violation, match="decreased from 4 to 1"):
        world.look(replica("ledger", ended, high_watermark=3, last_stable_offset=1, leader_epoch=2))


def state(offset: int, number: int, epoch: int = 1, producer_id: int = 7) -> Batch:
    value = struct.pack(">hqhib", 1, producer_id, epoch, 1000, number)
    return stored(build_batch([Record(b"\x00\x00\x00\x02tx", value)], base_offset=offset, leader_epoch=1))


def test_a_changed_decision_is_found() -> None:
    world = World()
    good = [state(0, 0), state(1, 1), state(2, 2, 2), state(3, 4, 2), state(4, 1, 2), state(5, 3, 3), state(6, 5, 3)]
    world.look_at(STATE_TOPIC, *good)
    with pytest.raises(Violation, match="TransactionStatesAreValid: tx went from PrepareCommit to CompleteAbort"):
        world.look_at(STATE_TOPIC, *good, state(7, 1, 3), state(8, 2, 4), state(9, 5, 4))


def test_a_decision_that_is_taken_twice_is_found() -> None:
    with pytest.raises(Violation, match="TransactionStatesAreValid: tx went from PrepareCommit to PrepareAbort"):
        World().look_at(STATE_TOPIC, state(0, 1), state(1, 2), state(2, 3))


def test_an_epoch_that_goes_back_is_found() -> None:
    with pytest.raises(Violation, match="TransactionStatesAreValid: tx went from epoch 5 to 4 of producer 7"):
        World().look_at(STATE_TOPIC, state(0, 0, 5), state(1, 0, 0, producer_id=8), state(2, 0, 5), state(3, 0, 4))


def test_an_input_that_is_in_the_output_twice_is_found() -> None:
    world = World()
    world.begin(commit_requested=True)
    world.begin("a/2", commit_requested=True)
    once = [written(0, "a/1#0", key="loop", value="0"), marker(1, ABORT)]
    again = [written(2, "a/2#0", key="loop", value="0"), marker(3, COMMIT)]
    world.look_at("ledger", *once, *again)
    world.begin("a/3", commit_requested=True)
    with pytest.raises(Violation, match="EachInputIsCopiedOnce: input 0 is in the output twice: ledger-0 offset 2 and"):
        world.look_at("ledger", *once, *again, written(4, "a/3#0", key="loop", value="0"), marker(5, COMMIT))


def committed(offset: int, name: str, position: int) -> Batch:
    value = struct.pack(">hqih", 3, position, -1, len(name)) + name.encode() + bytes(8)
    key = b"\x00\x01\x00\x04loop"
    return stored(
        build_batch(
            [Record(key, value)],
            base_offset=offset,
            leader_epoch=1,
            producer_id=7,
            producer_epoch=1,
            transactional=True,
        )
    )


def test_offsets_agree_with_output() -> None:
    world = World()
    world.begin(commit_requested=True, takes=(0, 2))
    world.begin("a/2", commit_requested=True, takes=(2, 3))
    offsets = [committed(0, "a/1", 2), marker(1, COMMIT), committed(2, "a/2", 3), marker(3, COMMIT)]
    world.look_at(OFFSETS_TOPIC, *offsets)
    outputs = [
        written(0, "a/1#0", key="loop", value="0"),
        written(1, "a/1#1", key="loop", value="1"),
        marker(2, COMMIT),
    ]
    world.look_at("ledger", *outputs)
    with pytest.raises(Violation, match=r"OffsetsMatchOutput: the group has offset 3, but inputs \[2\] are not in"):
        world.transactions.check_end()
    third = [written(3, "a/2#2", key="loop", value="2"), marker(4, COMMIT)]
    world.look_at("ledger", *outputs, *third)
    world.transactions.check_end()
    world.begin("a/3", commit_requested=True)
    world.look_at("ledger", *outputs, *third, written(5, "a/3#3", key="loop", value="3"), marker(6, COMMIT))
    with pytest.raises(Violation, match=r"the group has offset 3, but inputs \[3\] are already in the output"):
        world.transactions.check_end()


def test_a_loop_that_does_not_go_on_where_it_was_is_found() -> None:
    world = World()
    world.begin(commit_requested=True, takes=(0, 2))
    world.begin("a/2", commit_requested=True, takes=(0, 3))
    with pytest.raises(Violation, match=r"OffsetsMatchOutput: .* from offset 0, but 2 was committed"):
        world.look_at(
            OFFSETS_TOPIC, committed(0, "a/1", 2), marker(1, COMMIT), committed(2, "a/2", 3), marker(3, COMMIT)
        )


def test_a_transaction_that_stays_open_is_found() -> None:
    world = World()
    world.begin()
    world.look_at("ledger", written(0, "a/1#1"), last_stable_offset=0)
    with pytest.raises(
        Violation, match="TransactionsEnd: ledger-0 has a/1 of producer 7, epoch 1, open since offset 0"
    ):
        world.transactions.check_end()
    other = World()
    other.look_at(STATE_TOPIC, state(0, 1), state(1, 2))
    with pytest.raises(Violation, match="TransactionsEnd: tx is PrepareCommit"):
        other.transactions.check_end()


def test_who_reads_it_all_gets_what_is_committed() -> None:
    world = World()
    world.begin(commit_requested=True)
    log = StoredLog(written(0, "a/1#1", key="k"), written(1, "a/1#2", key="k"), marker(2, COMMIT))
    world.look(replica("ledger", log))
    first, last = (batch.records[0] for batch in log.batches(0, 2))
    world.transactions.check_read({("ledger", 0): {0: first, 1: last}}, ())
    world.transactions.check_read({("ledger", 0): {1: last}}, {"ledger"})
    with pytest.raises(Violation, match="but a read_committed consumer got None"):
        world.transactions.check_read({("ledger", 0): {1: last}}, ())


# Compacted topics


def test_cleaning_may_take_what_is_superseded_aborted_or_deleted() -> None:
    world = World()
    world.begin()
    world.begin("a/2", commit_requested=True)
    aborted = [written(1, "a/1#1", key="b"), marker(2, ABORT)]
    whole = [plain(0, "a", "1"), *aborted, plain(3, "c", None), plain(4, "d", "1"), written(5, "a/2#1", key="a")]
    end = marker(6, COMMIT)
    world.look_at("state", *whole, end)
    world.look_at("state", whole[4], whole[5], end, node_id=2)
    with pytest.raises(Violation, match=r"CompactionKeepsLastRecord: state-0 on node 3 has lost Record\(key=b'd'"):
        world.look_at("state", whole[5], end, node_id=3)


def _marker_missed(world: World, *, by_leader_kept: bool = False, seen_before: bool = False) -> None:
    """Node 2 has records of a transaction, is away while it is aborted, and cleans its log when it has caught up."""
    world.begin("a/0", commit_requested=True)
    world.begin()
    world.begin("a/2", commit_requested=True)
    first = [written(0, "a/0#1", key="k"), marker(1, COMMIT)]
    aborted, end = written(2, "a/1#1", key="k"), marker(3, ABORT)
    rest = [written(4, "a/2#1", key="x"), marker(5, COMMIT)]
    away = replica("state", StoredLog(*first, aborted), node_id=2, is_leader=False)
    world.look(replica("state", StoredLog(*first, aborted), last_stable_offset=2), away)
    world.look(replica("state", StoredLog(*first, aborted, end)))
    if seen_before:
        world.look(replica("state", StoredLog(*first, aborted, end), node_id=2, is_leader=False))
    leader = replica("state", StoredLog(*first, *([end] if by_leader_kept else []), *rest))
    world.look(leader)
    back = replica("state", StoredLog(*first, aborted, *rest), node_id=2, life=2, is_leader=False)
    world.look(leader, back)
    world.look(leader, replica("state", StoredLog(first[1], aborted, *rest), node_id=2, life=2, is_leader=False))


def test_who_never_heard_of_an_abort_may_take_its_records_for_committed() -> None:
    _marker_missed(World())


@pytest.mark.parametrize("how", ["by_leader_kept", "seen_before"])
def test_who_could_have_heard_of_an_abort_may_not(how: str) -> None:
    """The leader still had the marker, or the replica itself did."""
    with pytest.raises(
        Violation, match=r"CompactionKeepsLastRecord: state-0 on node 2 has lost Record\(key=b'k', value=b'a/0"
    ):
        _marker_missed(World(), **{how: True})


def test_a_record_whose_abort_the_leader_missed_may_be_read() -> None:
    world = World()
    _marker_missed(world)
    transaction = world.tracker.transactions["a/1"]
    world.tracker.note_read(transaction, "reader", "a/1#1", ("state", 0), 2)
    world.look()
    read = {
        record.offset: record
        for each in (written(2, "a/1#1", key="k"), written(4, "a/2#1", key="x"))
        for record in each.records
    }
    world.transactions.check_read({("state", 0): read}, {"state"}, missed_its_end=world.cleaning.missed_its_end)
    with pytest.raises(Violation, match="TransactionsAreAtomic: state-0 has"):
        world.transactions.check_read({("state", 0): read}, {"state"})
    world.tracker.note_read(transaction, "reader", "a/1#2", ("ledger", 0), 7)
    with pytest.raises(Violation, match="NoAbortedRead"):
        world.look()


def test_what_is_not_decided_supersedes_nothing() -> None:
    world = World()
    world.begin()
    whole = [plain(0, "a", "1"), written(1, "a/1#1", key="a")]
    world.look_at("state", *whole, last_stable_offset=1)
    with pytest.raises(Violation, match=r"CompactionKeepsLastRecord: .* has lost Record\(key=b'a', value=b'1'"):
        world.look_at("state", whole[1], node_id=2, last_stable_offset=1)


def test_a_log_that_becomes_smaller_is_looked_at_again() -> None:
    world = World()
    world.look_at("state", plain(0, "a", "1"), plain(1, "b", "1"))
    with pytest.raises(Violation, match=r"has lost Record\(key=b'a'"):
        world.look_at("state", plain(1, "b", "1"))


def test_what_a_follower_cleaned_before_it_was_started_again_is_no_loss() -> None:
    world = World()
    whole = [plain(0, "a", "1"), plain(1, "a", "2"), plain(2, "b", "1")]
    world.look_at("state", *whole)
    world.look_at("state", *whole[1:], node_id=2, is_leader=False, high_watermark=1)
    with pytest.raises(Violation, match=r"has lost Record\(key=b'a', value=b'1'"):
        world.look_at("state", plain(1, "x", "diverged"), node_id=3, is_leader=False, high_watermark=1)


def test_in_a_cleaned_log_each_record_is_where_it_was() -> None:
    records = [Record(b"a", b"1", timestamp=5), Record(b"b", b"1", timestamp=5)]
    both = stored(build_batch(records, leader_epoch=1))
    rest = stored(build_batch([records[1]._replace(offset=1)], leader_epoch=1))
    moved = stored(build_batch([records[1]._replace(offset=0), records[0]._replace(offset=1)], leader_epoch=1))
    after = plain(2, "a", "2")
    world = World()
    world.look_at("state", both, after)
    world.look_at("state", rest, after, node_id=2)
    with pytest.raises(Violation, match="CommittedLogsAreEqual: state-0 on node 3"):
        world.look_at("state", moved, after, node_id=3)
    other = World()
    other.look_at("ledger", both, after)
    with pytest.raises(Violation, match="CommittedLogsAreEqual"):
        other.look_at("ledger", rest, after, node_id=2)


def _deletion_missed(*, away_s: float = 2.0, kept: bool = False, seen_before: bool = False, leads: int = 2) -> None:
    """Node 2 has a record, is away while its key is deleted, and leads when it is back."""
    world = World()
    for name in ("a/0", "a/1", "a/2"):
        world.begin(name, commit_requested=True)
    first = [written(0, "a/0#1", key="k"), marker(1, COMMIT)]
    deletion = [written(2, "a/1#1", key="k", value=None), marker(3, COMMIT)]
    rest = [written(4, "a/2#1", key="x"), marker(5, COMMIT)]
    world.look(replica("state", StoredLog(*first)), replica("state", StoredLog(*first), node_id=2, is_leader=False))
    world.look(replica("state", StoredLog(*first, *deletion)))
    if seen_before:
        world.look(replica("state", StoredLog(*first, *deletion), node_id=2, is_leader=False))
    world.now += away_s
    other = StoredLog(*(deletion if kept else [first[1], deletion[1]]), *rest)
    back = StoredLog(*first, deletion[1], *rest)
    world.look(replica("state", other))
    world.look(replica("state", other), replica("state", back, node_id=2, life=2, is_leader=False))
    world.look(
        replica("state", other, is_leader=leads == 1, leader_epoch=leads),
        replica("state", back, node_id=2, life=2, is_leader=leads == 2, leader_epoch=leads),
    )
    read = {record.offset: record for each in (first[0], rest[0]) for record in each.records}
    world.transactions.check_read({("state", 0): read}, {"state"}, world.cleaning.is_back)


def test_a_leader_that_never_heard_of_a_deletion_has_the_key_again() -> None:
    """What docs/compaction.md warns of: it was away for longer than `delete.retention.ms`."""
    _deletion_missed()


@pytest.mark.parametrize("how", [{"away_s": 1.0}, {"kept": True}, {"seen_before": True}, {"leads": 1}])
def test_a_key_that_is_deleted_is_not_there_for_any_other_reason(how: dict[str, Any]) -> None:
    """It was away for less than that; the others still have the deletion; it had it itself; or it does not lead."""
    with pytest.raises(Violation, match=r"TransactionsAreAtomic: state-0 has None at 0, but a .* got Record"):
        _deletion_missed(**how)
