"""The history checker and transactions: a correct log is accepted, every kind of planted anomaly is caught."""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.simulator.history import (
    Fate,
    History,
    Kind,
    Poll,
    Recorder,
    Report,
    Seen,
    Send,
    Source,
    Transaction,
    check,
)
from millstream.simulator.history.operations import load, save

INPUTS = ("in-0", "in-1")
OUTPUTS = ("out-0", "out-1")
GROUP = "copiers"


class Entry(NamedTuple):
    """What is at an offset; a marker has no value."""

    value: str | None
    transaction: str | None


class IdealCopier:
    """A correct log and one copier: it consumes, transforms and produces in transactions, some of which end badly.

    Some are aborted; of some the client never learns the fate, or dies before it asks; records have markers between
    them; consumers of both kinds read whenever they like. The one source of chance makes a seed a history.
    """

    def __init__(self, seed: int, steps: int = 60, inputs: int = 20) -> None:
        self.random = random.Random(seed)
        self.time = 0.0
        self.recorder = Recorder(self._tick)
        self.logs: dict[str, list[Entry]] = {name: [] for name in (*INPUTS, *OUTPUTS)}
        self.committed: dict[str, int | None] = dict.fromkeys(INPUTS)
        self.decided: dict[str, bool] = {}
        """By transaction: whether it was committed."""
        self.positions: dict[str, dict[str, int]] = {}
        self.number = 0
        for number in range(inputs):
            name = self.random.choice(INPUTS)
            self.recorder.acked(self.recorder.send("p", name, f"input {number}"), len(self.logs[name]))
            self.logs[name].append(Entry(f"input {number}", None))
        for consumer in ("dirty", "clean"):
            self.positions[consumer] = dict.fromkeys(OUTPUTS, 0)
            self.recorder.assigned(consumer, dict.fromkeys(OUTPUTS, 0), committed_only=consumer == "clean")
        for _ in range(steps):
            self.random.choice((self.copy, self.copy, self.poll, self.poll, self.ends, self.ask))()
        self.finish()

    def _tick(self) -> float:
        self.time += 1.0
        return self.time

    def copy(self) -> None:
        """One transaction with up to three inputs of each partition."""
        self.number += 1
        transaction = self.recorder.begin("copier", f"copier/{self.number}")
        offsets = {}
        touched = set()
        for source_name, name in zip(INPUTS, OUTPUTS, strict=True):
            start = self.committed[source_name] or 0
            until = min(len(self.logs[source_name]), start + self.random.randint(0, 3))
            for offset in range(start, until):
                value = f"{source_name} {offset} by {self.number}"
                source = Source(source_name, offset)
                send = self.recorder.send("copier", name, value, transaction=transaction, source=source)
                if self.random.random() < 0.8:
                    self.recorder.acked(send, len(self.logs[name]))
                self.logs[name].append(Entry(value, transaction.name))
                touched.add(name)
            offsets[source_name] = until
        self.recorder.commit("copier", GROUP, offsets, transaction=transaction)
        self._end(transaction, offsets, touched)

    def _end(self, transaction: Transaction, offsets: dict[str, int], touched: set[str]) -> None:
        for _ in range(self.random.randint(0, 2)):
            self.random.choice((self.poll, self.ends, self.ask))()
        ending = self.random.choice(("commit", "commit", "abort", "die", "die after commit", "die before abort"))
        asks = ending not in ("abort", "die")
        commits = ending in ("commit", "die after commit")
        if asks:
            self.recorder.committing(transaction)
        self.decided[transaction.name] = commits
        for name in sorted(touched):
            self.logs[name].append(Entry(None, transaction.name))
            if self.random.random() < 0.2:
                self.logs[name].append(Entry(None, transaction.name))  # a marker may be written again
        if commits:
            self.committed |= offsets
        if ending in ("commit", "abort"):
            self.recorder.ended(transaction, committed=commits)

    def last_stable(self, name: str) -> int:
        log = self.logs[name]
        open_ones = [at for at, each in enumerate(log) if each.transaction and each.transaction not in self.decided]
        return min(open_ones, default=len(log))

    def poll(self) -> None:
        self.take(self.random.choice(sorted(self.positions)), self.random.randint(0, 6))

    def take(self, consumer: str, count: int) -> None:
        committed_only = consumer != "dirty"
        invoked_at = self.recorder.now()
        records = []
        for name, position in self.positions[consumer].items():
            end = self.last_stable(name) if committed_only else len(self.logs[name])
            for offset in range(position, min(position + count, end)):
                value, transaction = self.logs[name][offset]
                self.positions[consumer][name] = offset + 1
                if value is not None and (not committed_only or transaction is None or self.decided[transaction]):
                    records.append(Seen(name, offset, value))
        self.recorder.poll(consumer, invoked_at, records)

    def ends(self) -> None:
        name = self.random.choice(OUTPUTS)
        invoked_at, stable = self.recorder.now(), self.random.random() < 0.5
        end = self.last_stable(name) if stable else len(self.logs[name])
        self.recorder.end_read("ends", name, invoked_at, end, committed_only=stable)

    def ask(self) -> None:
        self.recorder.committed_read(GROUP, self.recorder.now(), self.committed, stable=self.random.random() < 0.5)

    def finish(self) -> None:
        for consumer, names in (("final", OUTPUTS), ("final inputs", INPUTS)):
            self.positions[consumer] = dict.fromkeys(names, 0)
            self.recorder.assigned(consumer, dict.fromkeys(names, 0), committed_only=True)
            self.take(consumer, 1_000_000)
        self.recorder.committed_read(GROUP, self.recorder.now(), self.committed, stable=True)


@given(st.integers(min_value=0))
def test_whatever_a_correct_log_does_with_transactions_is_accepted(seed: int) -> None:
    report = check(IdealCopier(seed).recorder.history)
    assert report.clean, str(report)
    assert report.transactions == sum(report.fates.values())


@given(st.integers(min_value=0, max_value=1000))
def test_a_saved_history_with_transactions_is_the_same(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    recorder = IdealCopier(seed, steps=20).recorder
    recorder.compacted("out-0")
    path = tmp_path_factory.getbasetemp() / "transactions.jsonl"
    save(recorder.history, path)
    assert load(path) == recorder.history


@given(st.integers(min_value=0), st.data())
def test_a_record_of_any_committed_transaction_that_is_taken_out_is_missed(seed: int, data: st.DataObject) -> None:
    history = IdealCopier(seed).recorder.history
    committed = {each.name for each in history.transactions if each.fate is Fate.COMMITTED}
    sends = [send for send in history.sends if send.transaction in committed]
    if sends:
        lost = data.draw(st.sampled_from(sends))
        rewrite(history, lambda records: [each for each in records if each.value != lost.value])
        assert kinds(check(history)) >= {Kind.OFFSETS_DISAGREE}
        assert kinds(check(history)) & {Kind.LOST_WRITE, Kind.UNSEEN_TAIL}


# Planted anomalies


def rewrite(history: History, change: Callable[[list[Seen]], list[Seen]], *consumers: str) -> None:
    for each in history.reading:
        if isinstance(each, Poll) and (not consumers or each.consumer in consumers):
            each.records = tuple(change(list(each.records)))


def kinds(report: Report) -> set[Kind]:
    return {anomaly.kind for anomaly in report.anomalies}


class Planted:
    """Three transactions of a copier: t1 committed (inputs 0 and 1), t2 aborted (2 and 3), t3 committed (2 and 3).

    Each has a record in either output, and a marker after it; `dirty` reads all of it, `clean` what is committed.
    """

    def __init__(self, last_fate: Fate = Fate.COMMITTED) -> None:
        self.time = 0.0
        self.recorder = Recorder(self._tick)
        for offset in range(4):
            self.recorder.acked(self.recorder.send("p", "in-0", f"input {offset}"), offset)
        self.recorder.assigned("inputs", {"in-0": 0}, committed_only=True)
        seen = [Seen("in-0", offset, f"input {offset}") for offset in range(4)]
        self.recorder.poll("inputs", self.recorder.now(), seen)
        self.t1 = self.transaction("t1", 0, offset=0)
        self.asking_commits(self.t1)
        self.t2 = self.transaction("t2", 2, offset=2)
        self.recorder.ended(self.t2, committed=False)
        self.t3 = self.transaction("t3", 2, offset=4)
        if last_fate is not Fate.OPEN:
            self.recorder.committing(self.t3)
        if last_fate is Fate.COMMITTED:
            self.recorder.ended(self.t3, committed=True)
        for name in ("dirty", "clean"):
            self.recorder.assigned(name, dict.fromkeys(OUTPUTS, 0), committed_only=name == "clean")
        everything = [self.seen(send) for send in self.outputs]
        self.recorder.poll("dirty", self.recorder.now(), everything)
        self.recorder.poll("clean", self.recorder.now(), [each for each in everything if " t2" not in str(each.value)])
        self.recorder.committed_read(GROUP, self.recorder.now(), {"in-0": 4}, stable=True)

    def _tick(self) -> float:
        self.time += 1.0
        return self.time

    def transaction(self, name: str, first_input: int, offset: int) -> Transaction:
        begun = self.recorder.begin("copier", name)
        for output, source in zip(OUTPUTS, (first_input, first_input + 1), strict=True):
            value = f"copy of {source} by {name}"
            send = self.recorder.send("copier", output, value, transaction=begun, source=Source("in-0", source))
            self.recorder.acked(send, offset)
        self.recorder.commit("copier", GROUP, {"in-0": first_input + 2}, transaction=begun)
        return begun

    def asking_commits(self, transaction: Transaction) -> None:
        self.recorder.committing(transaction)
        self.recorder.ended(transaction, committed=True)

    @property
    def history(self) -> History:
        return self.recorder.history

    @property
    def outputs(self) -> list[Send]:
        return [send for send in self.history.sends if send.source is not None]

    @staticmethod
    def seen(send: Send) -> Seen:
        assert send.offset is not None
        return Seen(send.partition, send.offset, send.value)

    def of(self, transaction: str) -> list[Seen]:
        return [self.seen(send) for send in self.outputs if send.transaction == transaction]


Plant = Callable[[], Planted]


def aborted_data_is_read() -> Planted:
    planted = Planted()
    planted.recorder.assigned("new", dict.fromkeys(OUTPUTS), committed_only=True)
    planted.recorder.poll("new", planted.recorder.now(), planted.of("t2"))
    return planted


def data_of_a_dead_client_is_read() -> Planted:
    """No one asked to commit t3."""
    return Planted(Fate.OPEN)


def read_before_the_commit() -> Planted:
    planted = Planted()
    planted.t1.commit_invoked_at = planted.recorder.now()
    return planted


def committed_write_lost() -> Planted:
    planted = Planted()
    rewrite(planted.history, lambda records: [each for each in records if " t1" not in str(each.value)], "clean")
    return planted


def committed_tail_lost() -> Planted:
    planted = Planted()
    rewrite(planted.history, lambda records: [each for each in records if " t3" not in str(each.value)], "clean")
    return planted


def committed_without_acknowledgement_lost() -> Planted:
    """The commit's response tells that everything before it was written."""
    planted = Planted()
    for send in planted.outputs:
        planted.history.sends[planted.history.sends.index(send)] = Send(
            send.producer, send.partition, send.value, send.invoked_at, transaction=send.transaction, source=send.source
        )
    rewrite(planted.history, lambda records: [each for each in records if " t1" not in str(each.value)])
    return planted


def consumer_passes_over_what_another_got() -> Planted:
    """The fate is unknown to the client; the first consumer's poll tells it."""
    planted = Planted(Fate.UNKNOWN)
    planted.recorder.assigned("other", {"out-0": 0}, committed_only=True)
    planted.recorder.acked(planted.recorder.send("p", "out-0", "plain"), 6)
    last = [Seen("out-0", 0, "copy of 0 by t1"), Seen("out-0", 6, "plain")]
    planted.recorder.poll("other", planted.recorder.now(), last)
    return planted


def duplicate_in_a_transaction() -> Planted:
    planted = Planted()
    rewrite(planted.history, lambda records: [*records, Seen("out-0", 6, "copy of 2 by t3")], "clean")
    return planted


def half_of_an_unknown_transaction() -> Planted:
    planted = Planted(Fate.UNKNOWN)
    rewrite(planted.history, lambda records: [each for each in records if each.value != "copy of 3 by t3"], "clean")
    return planted


def half_of_an_aborted_transaction() -> Planted:
    planted = Planted()
    rewrite(planted.history, lambda records: [*records[:2], planted.of("t2")[0], *records[2:]], "clean")
    return planted


def records_without_their_offsets() -> Planted:
    planted = Planted(Fate.UNKNOWN)
    planted.history.committed_reads.clear()
    planted.recorder.committed_read(GROUP, planted.recorder.now(), {"in-0": 2}, stable=True)
    return planted


def offsets_without_their_records() -> Planted:
    planted = Planted(Fate.UNKNOWN)
    rewrite(planted.history, lambda records: [each for each in records if " t3" not in str(each.value)], "clean")
    return planted


def offsets_of_an_aborted_transaction() -> Planted:
    planted = Planted(Fate.OPEN)
    rewrite(planted.history, lambda records: [each for each in records if " t3" not in str(each.value)], "clean")
    return planted


def offsets_before_the_commit() -> Planted:
    planted = Planted()
    read = planted.history.committed_reads[0]
    read.invoked_at = read.finished_at = 0.5
    for commit in planted.history.commits:
        commit.invoked_at = 0.25
    return planted


def transactional_commit_lost() -> Planted:
    planted = Planted()
    planted.recorder.committed_read(GROUP, planted.recorder.now(), {"in-0": 2}, stable=True)
    return planted


def copied_twice() -> Planted:
    """Two transactions, both committed, with the same inputs: offsets and output did not go together."""
    planted = Planted()
    planted.t2.fate, planted.t2.commit_invoked_at = Fate.COMMITTED, planted.t2.began_at
    rewrite(planted.history, lambda records: [planted.seen(send) for send in planted.outputs], "clean")
    return planted


def copies_in_the_wrong_order() -> Planted:
    planted = Planted()
    for send in planted.outputs:
        assert send.source is not None
        send.source = Source("in-0", send.source.offset ^ 2)
    return planted


def an_input_skipped() -> Planted:
    planted = Planted()
    for send in planted.outputs:
        if send.source == Source("in-0", 1):
            send.source = None
    return planted


def copied_beyond_the_offset() -> Planted:
    planted = Planted()
    for each in planted.history.commits:
        each.offsets = {"in-0": min(each.offsets["in-0"], 3)}
    planted.history.committed_reads[0].offsets = {"in-0": 3}
    return planted


def stable_end_goes_back() -> Planted:
    planted = Planted()
    planted.recorder.end_read("ends", "out-0", planted.recorder.now(), 3, committed_only=True)
    return planted


def last_of_a_key_lost_by_compaction() -> Planted:
    planted = compacted()
    rewrite(planted.history, lambda records: [each for each in records if each.offset != 8])
    return planted


def compacted() -> Planted:
    """Two keys, of which the first record of one is gone."""
    planted = Planted()
    planted.recorder.compacted("out-0")
    for offset, key in ((6, "a"), (7, "b"), (8, "a"), (9, "c")):
        planted.recorder.acked(planted.recorder.send("p", "out-0", f"{key} {offset}", key=key), offset)
    planted.recorder.assigned("late", {"out-0": 6}, committed_only=True)
    records = [Seen("out-0", 7, "b 7"), Seen("out-0", 8, "a 8"), Seen("out-0", 9, "c 9")]
    planted.recorder.poll("late", planted.recorder.now(), records)
    return planted


ANOMALIES: list[tuple[Plant, set[Kind]]] = [
    (aborted_data_is_read, {Kind.ABORTED_READ, Kind.POLL_SKIP, Kind.COPIED_TWICE}),
    (data_of_a_dead_client_is_read, {Kind.ABORTED_READ, Kind.DIRTY_OFFSETS}),
    (read_before_the_commit, {Kind.DIRTY_READ}),
    (committed_write_lost, {Kind.LOST_WRITE, Kind.POLL_SKIP, Kind.OFFSETS_DISAGREE}),
    (committed_tail_lost, {Kind.UNSEEN_TAIL, Kind.OFFSETS_DISAGREE}),
    (committed_without_acknowledgement_lost, {Kind.LOST_WRITE, Kind.OFFSETS_DISAGREE}),
    (consumer_passes_over_what_another_got, {Kind.POLL_SKIP}),
    (duplicate_in_a_transaction, {Kind.DUPLICATE}),
    (half_of_an_unknown_transaction, {Kind.TORN_TRANSACTION, Kind.OFFSETS_DISAGREE}),
    (half_of_an_aborted_transaction, {Kind.TORN_TRANSACTION, Kind.ABORTED_READ, Kind.COPIED_TWICE}),
    (records_without_their_offsets, {Kind.TORN_TRANSACTION, Kind.OFFSETS_DISAGREE}),
    (offsets_without_their_records, {Kind.DIRTY_OFFSETS, Kind.OFFSETS_DISAGREE}),
    (offsets_of_an_aborted_transaction, {Kind.DIRTY_OFFSETS, Kind.OFFSETS_DISAGREE}),
    (offsets_before_the_commit, {Kind.DIRTY_OFFSETS}),
    (transactional_commit_lost, {Kind.LOST_COMMIT, Kind.OFFSETS_DISAGREE}),
    (copied_twice, {Kind.COPIED_TWICE}),
    (copies_in_the_wrong_order, {Kind.REORDERED}),
    (an_input_skipped, {Kind.OFFSETS_DISAGREE}),
    (copied_beyond_the_offset, {Kind.OFFSETS_DISAGREE}),
    (stable_end_goes_back, {Kind.STALE_READ}),
    (last_of_a_key_lost_by_compaction, {Kind.LOST_WRITE, Kind.POLL_SKIP}),
]


@pytest.mark.parametrize("fate", (Fate.COMMITTED, Fate.UNKNOWN))
def test_what_the_anomalies_are_planted_in_is_clean(fate: Fate) -> None:
    report = check(Planted(fate).history)
    assert report.clean, str(report)


def test_what_compaction_may_remove_is_not_missed() -> None:
    report = check(compacted().history)
    assert report.clean, str(report)


@pytest.mark.parametrize(("plant", "expected"), ANOMALIES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_anomaly_is_caught(plant: Plant, expected: set[Kind]) -> None:
    report = check(plant().history)
    assert kinds(report) == expected, str(report)
    assert all(kind.name in str(report) for kind in expected)


def test_a_transaction_of_unknown_fate_may_be_there_or_not() -> None:
    planted = Planted(Fate.UNKNOWN)
    rewrite(planted.history, lambda records: [each for each in records if " t3" not in str(each.value)], "clean")
    planted.history.committed_reads[0].offsets = {"in-0": 2}
    report = check(planted.history)
    assert report.clean, str(report)
    assert report.fates == {Fate.COMMITTED: 1, Fate.ABORTED: 1, Fate.UNKNOWN: 1}
    assert "3 transactions: 1 committed, 1 aborted, 1 unknown" in str(report)


def test_an_unread_part_is_not_torn_when_no_one_read_to_the_end() -> None:
    planted = Planted(Fate.UNKNOWN)
    rewrite(planted.history, lambda records: [each for each in records if each.value != "copy of 3 by t3"], "clean")
    assert check(planted.history, read_to_end=False).clean
