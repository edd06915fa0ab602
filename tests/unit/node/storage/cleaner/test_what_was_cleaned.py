"""What a cleaned log still has to know of its past after an unclean stop: transactions that are over, leader epochs."""

import asyncio
from collections.abc import Callable

from millstream.formats.records.record import Record, build_batch
from millstream.node.storage.cleaner.plan import CleaningAbortedError, Throttle
from millstream.node.storage.log.partition_log import PartitionLog
from tests.unit.node.storage.cleaner.compacted import (
    HOUR_MS,
    NOW,
    append,
    batches,
    begin_cleaning,
    clean,
    committed_records,
    config,
    end_transaction,
    table,
)
from tests.unit.node.storage.conftest import Node


def checkpoint(node: Node, log: PartitionLog) -> None:
    for job in (log.flush_job(), node.directory.checkpoint_job(NOW)):
        if job is not None:
            assert job.run() is None
            job.done(None)


def test_a_transaction_whose_marker_went_is_not_open_again(node: Node) -> None:
    log = node.log(config(delete_retention_ms=HOUR_MS))
    append(log, (b"a", b"1"), producer=(5, 0, 0), transactional=True)
    append(log, (b"first", b"x" * 700))
    log.roll(0)  # the snapshot says that the transaction is open
    second = log.segments.active.base_offset
    marker = end_transaction(log, 5, committed=True)
    append(log, (b"second", b"x" * 700))
    log.roll(0)
    append(log, (b"a", b"2"))
    log.producers.expire(NOW + HOUR_MS, HOUR_MS)  # else its last batch stays, and with it the marker
    for pass_at in (NOW, NOW, NOW + HOUR_MS):
        append(log, (b"z", b"x" * 700))
        log.roll(0)
        checkpoint(node, log)
        clean(log, pass_at)
    assert second in log.segments.bases
    assert marker not in [header.base_offset for header, _ in batches(log)]
    append(log, (b"last", b"1"))
    node.restart(clean=False)
    log = node.log(config())
    assert log.open_transactions() == {}
    assert log.last_stable_offset == log.log_end_offset


def test_leader_epochs_begin_where_they_began(node: Node) -> None:
    log = node.log(config())
    for number, epoch in enumerate((0, 0, 2, 2, 3, 4, 4)):
        key = b"kept" if number == 3 else b"a"
        batch = build_batch([Record(key, b"%d" % number, timestamp=NOW)])
        log.append(batch, leader_epoch=epoch, now_ms=NOW)
    log.roll(0)
    append(log, (b"z", b"1"))
    known = log.epochs.entries()
    assert known == [(0, 0), (2, 2), (3, 4), (4, 5)]
    checkpoint(node, log)
    clean(log)
    assert [header.base_offset for header, _ in batches(log)] == [3, 6, 7]
    append(log, (b"z", b"2"))
    node.restart(clean=False)
    log = node.log(config())
    # Of what an epoch wrote nothing need be left: then it gives way to the next. But none may seem to begin late: a
    # follower with records of the epoch before it, which were never committed, would keep them.
    assert log.epochs.entries() == [(2, 2), (4, 5)]
    assert [log.end_offset_of_epoch(epoch) for epoch in (0, 2, 3, 4)] == [(0, 2), (2, 5), (2, 5), (4, 9)]


class _Pauses(Throttle):
    """Has the cleaner wait after each piece; something happens to the log in one of the pauses."""

    def __init__(self, pause: int, act: Callable[[], object]) -> None:
        super().__init__()
        self.bytes_per_second = 1000.0
        self._left = pause
        self._act = act

    def delay_seconds(self, done_bytes: int, now: float) -> float:
        self._left -= 1
        if self._left == 0:
            asyncio.get_running_loop().call_soon(self._act)
        return 0.001


def test_a_log_that_changes_while_the_cleaner_waits(node: Node) -> None:
    log = node.log(config())

    def change() -> None:
        """The last segment that is being cleaned becomes another, and is sealed as before."""
        log.truncate_to(log.log_end_offset - 1)
        append(log, (b"new", b"9" * 300))
        log.roll(0)

    for pause in range(1, 99):
        log.truncate_to(0)
        append(log, (b"a", b"1"), (b"b", b"1"))
        append(log, (b"a", b"2" * 300))
        log.roll(0)
        cleaning = begin_cleaning(log, throttle=_Pauses(pause, change))
        before = log.truncations
        try:
            asyncio.run(cleaning.run())
        except CleaningAbortedError:
            pass
        if log.truncations == before:
            assert pause > 4  # it went through without so many pauses
            return
        assert table(committed_records(log)) == {b"a": b"1", b"b": b"1", b"new": b"9" * 300}
        assert log.failure is None
    raise AssertionError("a pass has no end")
