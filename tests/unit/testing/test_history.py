"""The history checker: it accepts whatever a correct log can do, and catches every kind of anomaly that is planted."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.simulator.history import Assigned, History, Kind, Outcome, Poll, Recorder, Report, Seen, Send, check
from millstream.simulator.history.operations import load, save
from tests.unit.testing import test_transaction_history

PARTITIONS = ("log-0", "log-1")
GROUP = "readers"


class IdealLog:
    """A correct log and its clients: everything that may happen to them happens by chance, from one source of it.

    Sends are pipelined and applied in order; some time out and are applied later, or never; some fail. Consumers go on
    from where they are, seek, and hand partitions over within a group that commits what it got.
    """

    def __init__(self, seed: int, steps: int = 120) -> None:
        self.random = random.Random(seed)
        self.time = 0.0
        self.recorder = Recorder(self._tick)
        self.logs: dict[str, list[int]] = {name: [] for name in PARTITIONS}
        self.under_way: dict[str, list[Send]] = {"p0": [], "p1": [], "p2": []}
        self.positions: dict[str, dict[str, int]] = {"c0": {}, "c1": {}}
        self.group_positions: dict[str, dict[str, int]] = {"g0": {}, "g1": {}}
        self.committed: dict[str, int] = {}
        self.next_value = 0
        for consumer in self.positions:
            self.seek(consumer)
        self.rebalance()
        actions = (self.send, self.send, self.send, self.finish, self.finish, self.poll, self.group_poll, self.end)
        for _ in range(steps):
            self.random.choice((*actions, self.commit, self.seek_somebody, self.rebalance))()
        while any(self.under_way.values()):
            self.finish()
        self.read_to_end()

    def _tick(self) -> float:
        self.time += 1.0
        return self.time

    def send(self) -> None:
        producer = self.random.choice(sorted(self.under_way))
        self.next_value += 1
        operation = self.recorder.send(producer, self.random.choice(PARTITIONS), self.next_value)
        self.under_way[producer].append(operation)

    def finish(self) -> None:
        """The oldest send of someone is applied, or not; and its client learns of it, or not."""
        waiting = [sends for _, sends in sorted(self.under_way.items()) if sends]
        if not waiting:
            return
        operation = self.random.choice(waiting).pop(0)
        chance = self.random.random()
        if chance < 0.1:
            self.recorder.failed(operation)
            return
        if chance < 0.2:
            return  # timed out, and never applied
        log = self.logs[operation.partition]
        log.append(int(operation.value))
        if chance > 0.3:
            self.recorder.acked(operation, len(log) - 1 if chance > 0.4 else None)

    def seek_somebody(self) -> None:
        self.seek(self.random.choice(sorted(self.positions)))

    def seek(self, consumer: str) -> None:
        wanted = self.random.sample(PARTITIONS, self.random.randint(1, len(PARTITIONS)))
        self.positions[consumer] = {name: self.random.randint(0, len(self.logs[name])) for name in wanted}
        told: dict[str, int | None] = dict(self.positions[consumer])
        if self.random.random() < 0.3:
            told = dict.fromkeys(told)
        self.recorder.assigned(consumer, told)

    def poll(self) -> None:
        consumer = self.random.choice(sorted(self.positions))
        self.take(consumer, self.positions[consumer], self.random.randint(0, 4))

    def take(self, consumer: str, positions: dict[str, int], count: int) -> None:
        invoked_at = self.recorder.now()
        records = []
        for name in positions:
            for offset in range(positions[name], min(positions[name] + count, len(self.logs[name]))):
                records.append(Seen(name, offset, self.logs[name][offset]))
                positions[name] = offset + 1
        self.recorder.poll(consumer, invoked_at, records)

    def rebalance(self) -> None:
        """What was got and not committed is got again by someone."""
        invoked_at = self.recorder.now()
        self.recorder.committed_read(GROUP, invoked_at, {name: self.committed.get(name) for name in PARTITIONS})
        members = sorted(self.group_positions)
        self.group_positions = {member: {} for member in members}
        for name in PARTITIONS:
            self.group_positions[self.random.choice(members)][name] = self.committed.get(name, 0)
        for member, positions in self.group_positions.items():
            self.recorder.assigned(member, dict(positions), GROUP)

    def group_poll(self) -> None:
        member = self.random.choice(sorted(self.group_positions))
        self.take(member, self.group_positions[member], self.random.randint(0, 4))

    def commit(self) -> None:
        member = self.random.choice(sorted(self.group_positions))
        operation = self.recorder.commit(member, GROUP, self.group_positions[member])
        chance = self.random.random()
        if chance < 0.1:
            self.recorder.failed(operation)
        elif chance > 0.2:
            self.committed |= operation.offsets
            self.recorder.committed(operation)
        elif chance > 0.15:
            self.committed |= operation.offsets

    def end(self) -> None:
        name = self.random.choice(PARTITIONS)
        invoked_at = self.recorder.now()
        self.recorder.end_read("ends", name, invoked_at, len(self.logs[name]))

    def read_to_end(self) -> None:
        self.recorder.assigned("final", dict.fromkeys(PARTITIONS, 0))
        self.take("final", dict.fromkeys(PARTITIONS, 0), 1_000_000)


@given(st.integers(min_value=0))
def test_whatever_a_correct_log_does_is_accepted(seed: int) -> None:
    report = check(IdealLog(seed).recorder.history)
    assert report.clean, str(report)
    assert report.sends == report.acked + report.failed + report.unknown


@given(st.integers(min_value=0, max_value=1000))
def test_a_saved_history_is_the_same_history(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    history = IdealLog(seed, steps=40).recorder.history
    path = tmp_path_factory.getbasetemp() / "history.jsonl"
    save(history, path)
    assert load(path) == history


# Planted anomalies


class Planted:
    """A clean history of one producer, one consumer that read all, and a group; each test spoils it in one way."""

    COUNT = 10

    def __init__(self) -> None:
        self.time = 0.0
        self.recorder = Recorder(self._tick)
        for value in range(self.COUNT):
            self.send(value)
            self.recorder.acked(self.history.sends[-1], value)
        self.recorder.end_read("ends", "log-0", self.recorder.now(), self.COUNT)
        self.recorder.assigned("c", {"log-0": 0})
        self.recorder.poll("c", self.recorder.now(), [self.seen(value) for value in range(self.COUNT)])
        self.recorder.assigned("g", {"log-0": 0}, GROUP)
        self.recorder.poll("g", self.recorder.now(), [self.seen(value) for value in range(self.COUNT)])

    def _tick(self) -> float:
        self.time += 1.0
        return self.time

    @property
    def history(self) -> History:
        return self.recorder.history

    @staticmethod
    def seen(value: int, offset: int | None = None) -> Seen:
        return Seen("log-0", value if offset is None else offset, value)

    def send(self, value: int) -> Send:
        return self.recorder.send("p", "log-0", value)

    def rewrite(self, change: Callable[[list[Seen]], list[Seen]], *consumers: str) -> None:
        """What these consumers got; all of them when none is named."""
        for each in self.history.reading:
            if isinstance(each, Poll) and (not consumers or each.consumer in consumers):
                each.records = tuple(change(list(each.records)))


def without(*offsets: int) -> Callable[[list[Seen]], list[Seen]]:
    return lambda records: [each for each in records if each.offset not in offsets]


def kinds(report: Report) -> set[Kind]:
    return {anomaly.kind for anomaly in report.anomalies}


def lost_write(planted: Planted) -> None:
    planted.rewrite(without(4))


def lost_write_without_offset(planted: Planted) -> None:
    planted.history.sends[4].offset = None
    planted.rewrite(lambda records: [*records[:4], *(Seen(p, o - 1, v) for p, o, v in records[5:])])
    for send in planted.history.sends[5:]:
        send.offset = (send.offset or 0) - 1
    planted.history.end_reads.clear()


def unseen_tail(planted: Planted) -> None:
    planted.rewrite(without(8, 9))


def acked_and_nothing_read(planted: Planted) -> None:
    planted.rewrite(lambda records: [])


def duplicate(planted: Planted) -> None:
    planted.rewrite(lambda records: [*records, planted.seen(3, offset=10)])


def duplicate_of_an_unknown(planted: Planted) -> None:
    planted.send(10)
    planted.rewrite(lambda records: [*records, planted.seen(10), planted.seen(10, offset=11)])


def two_values_for_two_consumers(planted: Planted) -> None:
    planted.send(77)
    planted.rewrite(lambda records: [planted.seen(77, 6) if each.offset == 6 else each for each in records], "g")


def acked_elsewhere(planted: Planted) -> None:
    """The acknowledgement said 5, the log says 10."""
    planted.rewrite(lambda records: [*without(5)(records), planted.seen(5, offset=10)])
    planted.send(99)
    planted.rewrite(lambda records: [*records[:5], planted.seen(99, 5), *records[5:]])


def pipelined_and_reordered(planted: Planted) -> None:
    first, second = planted.send(10), planted.send(11)
    planted.recorder.acked(second, 10)
    planted.recorder.acked(first, 11)
    planted.rewrite(lambda records: [*records, planted.seen(11, 10), planted.seen(10, 11)])


def reordered_with_unknown_outcome(planted: Planted) -> None:
    planted.send(10)
    planted.recorder.acked(planted.send(11), 10)
    planted.rewrite(lambda records: [*records, planted.seen(11, 10), planted.seen(10, 11)])


def later_send_at_a_lower_offset(planted: Planted) -> None:
    """Two producers: the one that came after the other's acknowledgement is before it in the log."""
    planted.recorder.acked(planted.send(11), 11)
    planted.recorder.acked(planted.recorder.send("q", "log-0", 10), 10)
    planted.rewrite(lambda records: [*records, planted.seen(10), planted.seen(11)])


def consumer_goes_back(planted: Planted) -> None:
    planted.recorder.poll("c", planted.recorder.now(), [planted.seen(4)])


def consumer_gets_one_twice(planted: Planted) -> None:
    planted.rewrite(lambda records: [*records, records[-1]], "c")


def consumer_begins_before_its_position(planted: Planted) -> None:
    planted.recorder.assigned("c", {"log-0": 5})
    planted.recorder.poll("c", planted.recorder.now(), [planted.seen(4)])


def consumer_passes_over(planted: Planted) -> None:
    planted.rewrite(without(4, 5), "c")


def consumer_begins_after_its_position(planted: Planted) -> None:
    planted.recorder.assigned("c", {"log-0": 5})
    planted.recorder.poll("c", planted.recorder.now(), [planted.seen(6)])


def group_passes_over(planted: Planted) -> None:
    """Each member's own run is without fault; between them a record fell through."""
    planted.rewrite(lambda records: records[:4], "g")
    planted.recorder.assigned("h", {"log-0": 5}, GROUP)
    planted.recorder.poll("h", planted.recorder.now(), [planted.seen(value) for value in range(5, 10)])


def hole_in_the_log(planted: Planted) -> None:
    for at, value in ((11, 10), (12, 11)):
        planted.recorder.acked(planted.send(value), at)
    planted.rewrite(lambda records: [*records, planted.seen(10, 11), planted.seen(11, 12)])


def hole_at_the_beginning(planted: Planted) -> None:
    planted.history.sends = [send for send in planted.history.sends if send.value != 0]
    planted.rewrite(without(0))


def never_sent(planted: Planted) -> None:
    planted.rewrite(lambda records: [*records, planted.seen(10)])


def sent_elsewhere(planted: Planted) -> None:
    planted.recorder.acked(planted.recorder.send("p", "log-1", 10), None)
    planted.rewrite(lambda records: [*records, planted.seen(10), Seen("log-1", 0, 10)])


def failed_and_there(planted: Planted) -> None:
    planted.recorder.failed(planted.send(10))
    planted.rewrite(lambda records: [*records, planted.seen(10)])


def end_before_what_was_acked(planted: Planted) -> None:
    planted.recorder.acked(planted.send(10), 10)
    planted.recorder.end_read("ends", "log-0", planted.recorder.now(), 10)
    planted.rewrite(lambda records: [*records, planted.seen(10)])


def end_goes_back(planted: Planted) -> None:
    planted.recorder.send("p", "log-1", 100)
    planted.recorder.end_read("ends", "log-1", planted.recorder.now(), 1)
    planted.recorder.end_read("ends", "log-1", planted.recorder.now(), 0)


def commit_lost(planted: Planted) -> None:
    planted.recorder.committed(planted.recorder.commit("g", GROUP, {"log-0": 8}))
    planted.recorder.committed_read(GROUP, planted.recorder.now(), {"log-0": None})


def commit_goes_back(planted: Planted) -> None:
    planted.recorder.committed(planted.recorder.commit("g", GROUP, {"log-0": 8}))
    planted.recorder.committed_read(GROUP, planted.recorder.now(), {"log-0": 7})


ANOMALIES: list[tuple[Callable[[Planted], None], set[Kind]]] = [
    (lost_write, {Kind.LOST_WRITE}),
    (lost_write_without_offset, {Kind.LOST_WRITE}),
    (unseen_tail, {Kind.UNSEEN_TAIL}),
    (acked_and_nothing_read, {Kind.UNSEEN_TAIL}),
    (duplicate, {Kind.DUPLICATE}),
    (duplicate_of_an_unknown, {Kind.DUPLICATE}),
    (two_values_for_two_consumers, {Kind.INCONSISTENT_OFFSET}),
    (acked_elsewhere, {Kind.DUPLICATE, Kind.INCONSISTENT_OFFSET}),
    (pipelined_and_reordered, {Kind.REORDERED}),
    (reordered_with_unknown_outcome, {Kind.REORDERED}),
    (later_send_at_a_lower_offset, {Kind.NON_MONOTONIC_SEND}),
    (consumer_goes_back, {Kind.NON_MONOTONIC_POLL}),
    (consumer_gets_one_twice, {Kind.NON_MONOTONIC_POLL}),
    (consumer_begins_before_its_position, {Kind.NON_MONOTONIC_POLL}),
    (consumer_passes_over, {Kind.POLL_SKIP}),
    (consumer_begins_after_its_position, {Kind.POLL_SKIP}),
    (group_passes_over, {Kind.GROUP_SKIP}),
    (hole_in_the_log, {Kind.GAP}),
    (hole_at_the_beginning, {Kind.GAP}),
    (never_sent, {Kind.PHANTOM}),
    (sent_elsewhere, {Kind.PHANTOM}),
    (failed_and_there, {Kind.PHANTOM}),
    (end_before_what_was_acked, {Kind.STALE_READ}),
    (end_goes_back, {Kind.STALE_READ}),
    (commit_lost, {Kind.LOST_COMMIT}),
    (commit_goes_back, {Kind.LOST_COMMIT}),
]


def test_what_the_anomalies_are_planted_in_is_clean() -> None:
    assert check(Planted().history).clean


@pytest.mark.parametrize(("plant", "expected"), ANOMALIES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_anomaly_is_caught(plant: Callable[[Planted], None], expected: set[Kind]) -> None:
    planted = Planted()
    plant(planted)
    report = check(planted.history)
    assert expected <= kinds(report), str(report)
    assert all(kind.name in str(report) for kind in expected)


def test_every_kind_is_planted() -> None:
    """Those of transactions in the test beside this one."""
    planted = [expected for _, expected in (*ANOMALIES, *test_transaction_history.ANOMALIES)]
    assert set().union(*planted) == set(Kind)


@given(st.integers(min_value=0), st.data())
def test_an_acked_record_taken_out_of_any_history_is_missed(seed: int, data: st.DataObject) -> None:
    history = IdealLog(seed).recorder.history
    acked = [send for send in history.sends if send.outcome is Outcome.ACKED]
    if not acked:
        return
    lost = data.draw(st.sampled_from(acked))
    for each in history.reading:
        if isinstance(each, Poll):
            each.records = tuple(seen for seen in each.records if seen.value != lost.value)
    assert kinds(check(history)) & {Kind.LOST_WRITE, Kind.UNSEEN_TAIL}


@given(st.integers(min_value=0), st.data())
def test_two_neighbours_that_swap_places_are_noticed(seed: int, data: st.DataObject) -> None:
    history = IdealLog(seed).recorder.history
    final = history.reading[-1]
    assert isinstance(final, Poll)
    pairs = [
        at for at in range(len(final.records) - 1) if final.records[at].partition == final.records[at + 1].partition
    ]
    others = [each for each in history.reading[:-2] if isinstance(each, Poll) and each.records]
    if not pairs or not others:
        return
    at = data.draw(st.sampled_from(pairs))
    one, two = final.records[at], final.records[at + 1]
    known = {send.value for send in history.sends if send.offset is not None}
    known |= {seen.value for poll in others for seen in poll.records}
    if one.value in known or two.value in known:
        swapped = (one._replace(value=two.value), two._replace(value=one.value))
        final.records = (*final.records[:at], *swapped, *final.records[at + 2 :])
        assert kinds(check(history)) & {Kind.INCONSISTENT_OFFSET, Kind.DUPLICATE}


# What is not held against the log


def test_a_send_without_a_response_may_appear_or_not() -> None:
    for appears in (True, False):
        planted = Planted()
        planted.send(10)
        if appears:
            planted.rewrite(lambda records: [*records, Planted.seen(10)])
        report = check(planted.history)
        assert report.clean
        assert (report.unknown, report.unknown_seen) == (1, int(appears))


def test_an_unread_end_is_no_anomaly_when_no_one_read_to_the_end() -> None:
    planted = Planted()
    unseen_tail(planted)
    assert check(planted.history, read_to_end=False).clean


def test_a_stale_position_is_excused_where_that_was_said() -> None:
    planted = Planted()
    began = planted.recorder.now()
    end_before_what_was_acked(planted)
    commit_lost(planted)
    assert kinds(check(planted.history)) == {Kind.STALE_READ, Kind.LOST_COMMIT}
    planted.recorder.stale_allowed(began, planted.recorder.now(), "the leader is cut off")
    assert check(planted.history).clean


def test_a_consumer_that_was_told_to_may_go_back() -> None:
    planted = Planted()
    planted.history.reading.append(Assigned("c", planted.recorder.now(), {"log-0": 2}))
    planted.recorder.poll("c", planted.recorder.now(), [planted.seen(2), planted.seen(3)])
    assert check(planted.history).clean


def test_a_report_shows_a_few_of_each_kind_and_counts_the_rest(tmp_path: Path) -> None:
    planted = Planted()
    planted.rewrite(lambda records: [*records, *(planted.seen(value) for value in range(10, 30))])
    text = str(check(planted.history))
    assert text.count("PHANTOM log-0") == 5
    assert "and 15 more PHANTOM" in text
