"""How a mirrored partition follows its source: each response, and what is done with it."""

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import Record, build_batch
from millstream.node.mirror.core.partition import (
    Position,
    Step,
    diverged,
    is_current,
    position,
    received,
    refused,
    source_range,
)
from millstream.node.storage.log.leader_epochs import LeaderEpochs


class FakeLog:
    def __init__(self, epochs: list[tuple[int, int]], start: int, end: int) -> None:
        self._epochs = LeaderEpochs(epochs)
        self.log_start_offset, self.log_end_offset = start, end

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset(epoch, self.log_end_offset)


def batch(offset: int, epoch: int = 3, producer_id: int = -1, count: int = 2) -> bytearray:
    made = build_batch([Record(b"k", b"v")] * count, base_offset=offset, leader_epoch=epoch)
    made[43:51] = producer_id.to_bytes(8, "big", signed=True)
    return made


LOG = FakeLog([(3, 0), (5, 80)], 10, 100)


def test_the_position_has_the_epoch_of_the_last_record() -> None:
    assert position(LOG) == Position(100, 5, 10)
    assert is_current(LOG, Position(100, 5, 0))
    assert not is_current(LOG, Position(99, 5, 10))
    assert not is_current(LOG, Position(100, 4, 10))


def test_batches_are_appended_up_to_the_last_whole_one() -> None:
    whole = batch(100, 5) + batch(102, 5)
    decision = received(whole + batch(104, 5)[:30], LOG, leader_epoch=5, next_producer_id=1 << 40)
    assert (decision.step, decision.whole_bytes) == (Step.APPEND, len(whole))
    assert received(b"", LOG, 5, 0).step is Step.WAIT
    assert received(batch(100)[:50], LOG, 5, 0).step is Step.WAIT


def test_epochs_and_producer_ids_are_raised_before_the_append() -> None:
    decision = received(batch(100, 7), LOG, leader_epoch=6, next_producer_id=0)
    assert (decision.step, decision.number) == (Step.RAISE_EPOCH, 7)
    decision = received(batch(100, 5, producer_id=12), LOG, leader_epoch=6, next_producer_id=12)
    assert (decision.step, decision.number) == (Step.RAISE_PRODUCER_IDS, 12)
    decision = received(batch(100, 5, producer_id=(1 << 63) - 1), LOG, leader_epoch=6, next_producer_id=12)
    assert decision.step is Step.REFUSE, "the controller cannot raise its ids above it: it would be asked without end"
    assert received(batch(100, 5, producer_id=11), LOG, leader_epoch=6, next_producer_id=12).step is Step.APPEND


def test_an_old_batch_format_is_refused_with_the_way_out() -> None:
    old = batch(100, 5)
    old[16] = 1
    decision = received(old, LOG, 5, 0)
    assert decision.step is Step.REFUSE
    assert "MirrorMaker" in decision.reason


def test_a_log_that_ends_within_a_batch_is_cut_before_it() -> None:
    decision = received(batch(99, 5, count=5), LOG, 5, 0)
    assert (decision.step, decision.offset) == (Step.TRUNCATE, 99)
    empty = FakeLog([], 100, 100)
    assert received(batch(99, 5, count=5), empty, 5, 0).step is Step.APPEND


@pytest.mark.parametrize(
    ("epoch", "end", "offset"),
    [
        (5, 90, 90),  # the source has less of the last epoch
        (3, 60, 60),  # the source has another epoch from 60 on
        (4, 85, 80),  # an epoch that is not here: the one before it ends at 80
        (2, 30, 10),  # older than all epochs here: the first of them begins at 0, and the log at 10
    ],
)
def test_divergence_is_cut_at_the_common_offset(epoch: int, end: int, offset: int) -> None:
    decision = diverged(LOG, epoch, end)
    if decision.step is Step.RESTART:
        assert decision.offset < LOG.log_start_offset
    else:
        assert (decision.step, decision.offset) == (Step.TRUNCATE, offset)


def test_the_range_of_the_source() -> None:
    assert source_range(LOG, 150, 200).step is Step.RESTART
    assert source_range(LOG, 150, 200).offset == 150
    assert (source_range(LOG, 0, 95).step, source_range(LOG, 0, 95).offset) == (Step.TRUNCATE, 95)
    assert source_range(LOG, 0, 5).step is Step.RESTART
    unknown = source_range(LOG, 0, 100)  # the offset is there, the epoch is not known
    assert (unknown.step, unknown.offset) == (Step.TRUNCATE, 80)
    assert source_range(FakeLog([], 0, 0), 0, 10).step is Step.WAIT


def test_errors_of_the_source() -> None:
    assert refused(ErrorCode.OFFSET_OUT_OF_RANGE).step is Step.FIND_RANGE
    assert refused(ErrorCode.NOT_LEADER_OR_FOLLOWER).step is Step.REFRESH
    assert "NOT_LEADER" in refused(ErrorCode.NOT_LEADER_OR_FOLLOWER).reason
    assert "9999" in refused(9999).reason
