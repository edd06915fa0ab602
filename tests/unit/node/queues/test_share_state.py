"""What is kept of a share-partition: snapshots, updates, and that replaying them gives the same again."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import CoordinatorRecord, CoordinatorResult, record_type
from millstream.node.queues.core.runs import RecordState, RunList, StateBatch
from millstream.node.queues.core.state import SNAPSHOT, UNINITIALIZED, ShareKey, ShareStateShard, next_epoch

KEY = ShareKey("group", UUID(int=1), 3)
ACKED = RecordState.ACKNOWLEDGED


class Kept:
    """A shard and its log."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.shard = ShareStateShard(updates_per_snapshot)
        self.log: list[CoordinatorRecord] = []

    def run(self, outcome: "CoordinatorResult[Any]") -> None:
        for record in outcome.records:
            self.log.append(record)
            self.shard.replay(*record)

    def write(self, start: int, *batches: StateBatch, state_epoch: int = 0, leader_epoch: int = 0) -> None:
        self.run(
            self.shard.write(
                KEY,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start,
                complete_count=0,
                batches=batches,
                now_ms=7,
            )
        )

    def names(self) -> list[str]:
        return ["share_snapshot" if record_type(key) == SNAPSHOT else "share_update" for key, _ in self.log]

    def again(self) -> ShareStateShard:
        shard = ShareStateShard()
        for record in self.log:
            shard.replay(*record)
        return shard


@pytest.fixture
def kept() -> Kept:
    made = Kept()
    made.run(made.shard.initialize(KEY, 0, UNINITIALIZED, 5))
    return made


def test_updates_build_on_a_snapshot(kept: Kept) -> None:
    kept.write(3, StateBatch(5, 9, ACKED, 1))
    kept.write(UNINITIALIZED, StateBatch(7, 7, RecordState.AVAILABLE, 2))
    state = kept.again().states[KEY]
    assert kept.names() == ["share_snapshot", "share_update", "share_update"]
    assert state.start_offset == 3
    assert state.batches == [
        StateBatch(5, 6, ACKED, 1),
        StateBatch(7, 7, RecordState.AVAILABLE, 2),
        StateBatch(8, 9, ACKED, 1),
    ]


def test_the_start_takes_what_lies_before_it_along(kept: Kept) -> None:
    kept.write(0, StateBatch(5, 9, ACKED, 1))
    kept.write(8)
    assert kept.again().states[KEY].batches == [StateBatch(8, 9, ACKED, 1)]


def test_a_snapshot_comes_after_so_many_updates() -> None:
    kept = Kept(updates_per_snapshot=2)
    kept.run(kept.shard.initialize(KEY, 0, 0, 5))
    for start in range(1, 7):
        kept.write(start)
    assert kept.names() == ["share_snapshot", *(["share_update"] * 2 + ["share_snapshot"]) * 2]
    state = kept.again().states[KEY]
    assert (state.start_offset, state.snapshot_epoch, state.create_timestamp) == (6, 2, 5)


def test_old_leaders_and_old_states_are_refused(kept: Kept) -> None:
    kept.run(kept.shard.read(KEY, 4, 7))
    with pytest.raises(KafkaError) as refused:
        kept.write(1, leader_epoch=3)
    assert refused.value.code == ErrorCode.FENCED_LEADER_EPOCH
    assert kept.again().states[KEY].leader_epoch == 4
    kept.run(kept.shard.initialize(KEY, 2, 0, 5))
    with pytest.raises(KafkaError) as refused:
        kept.write(1, state_epoch=1, leader_epoch=4)
    assert refused.value.code == ErrorCode.FENCED_STATE_EPOCH


def test_an_epoch_that_no_state_has_is_refused(kept: Kept) -> None:
    """It would be kept, and then the writes of the real leader would be refused."""
    for state_epoch in (1, 2**31 - 1):
        with pytest.raises(KafkaError) as refused:
            kept.write(1, state_epoch=state_epoch)
        assert refused.value.code == ErrorCode.INVALID_REQUEST
    kept.write(1)
    assert (kept.again().states[KEY].state_epoch, kept.again().states[KEY].start_offset) == (0, 1)


def test_a_state_in_the_largest_epoch_can_be_replaced(kept: Kept) -> None:
    assert next_epoch(4) == 5
    for start in (3, 4):
        kept.run(kept.shard.initialize(KEY, next_epoch(2**31 - 2), start, 5))
        assert next_epoch(kept.shard.states[KEY].state_epoch) == kept.shard.states[KEY].state_epoch
    assert kept.again().states[KEY].start_offset == 4


def test_a_deleted_state_is_gone(kept: Kept) -> None:
    kept.run(kept.shard.delete(KEY))
    assert kept.again().states == {}
    assert kept.shard.delete(KEY).records == []
    with pytest.raises(KafkaError) as refused:
        kept.write(1)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_a_checkpoint_makes_what_is_before_it_redundant(kept: Kept) -> None:
    kept.write(3, StateBatch(5, 9, ACKED, 1))
    before = len(kept.log)
    kept.run(kept.shard.checkpoint(8))
    kept.write(4)
    whole = kept.again().states[KEY]
    del kept.log[:before]
    rest = kept.again().states[KEY]
    assert (rest.start_offset, rest.batches, rest.snapshot_epoch) == (4, whole.batches, whole.snapshot_epoch)


RANGES = st.tuples(
    st.integers(0, 30), st.integers(0, 8), st.sampled_from((RecordState.AVAILABLE, ACKED, RecordState.ARCHIVED))
)


@given(st.lists(RANGES, max_size=30))
def test_runs_are_what_was_put_last(puts: list[tuple[int, int, RecordState]]) -> None:
    runs = RunList()
    model: dict[int, RecordState] = {}
    for first, length, state in puts:
        runs.put(StateBatch(first, first + length, state, 1))
        model.update(dict.fromkeys(range(first, first + length + 1), state))
        assert {at: run.state for run in runs for at in range(run.first, run.last + 1)} == model
        assert all(left.last < right.first for left, right in zip(runs.runs, runs.runs[1:], strict=False))
