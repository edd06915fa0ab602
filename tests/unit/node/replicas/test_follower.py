"""A follower of one partition, step by step: where it cuts its log back, and what it takes to be committed."""

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.replicas.core.follower import PartitionFollower, Reaction
from tests.unit.node.replicas.memory_log import MemoryLog


def log_of(*epochs: int, start: int = 0) -> MemoryLog:
    """One record for each epoch given."""
    log = MemoryLog()
    log.log_start_offset = start
    for number, epoch in enumerate(epochs):
        log.append(epoch, f"{epoch}.{number}")
    return log


def follower_of(log: MemoryLog, *, epoch: int = 9, committed: int = 0) -> PartitionFollower:
    return PartitionFollower(log, 1, epoch, committed)


def test_a_follower_fetches_from_the_end_of_its_log() -> None:
    assert follower_of(log_of()).position() == (9, 0, -1, 0)
    assert follower_of(log_of(1, 1, 4, start=5)).position() == (9, 8, 4, 5)


@pytest.mark.parametrize(
    ("own", "epoch", "end", "left"),
    [
        ((1, 1, 1, 1), 1, 2, 2),  # the leader's epoch ends earlier than ours
        ((1, 1, 1, 3, 3), 2, 7, 3),  # we never had its epoch 2: back to where our last older one ends
        ((1, 1, 3, 3), 1, 4, 2),  # its epoch 1 goes on longer than ours
        ((2, 2, 2), 1, 1, 0),  # all we have is newer
        ((1, 1), 1, 0, 0),
    ],
)
def test_a_diverging_log_is_truncated_where_it_diverges(own: tuple[int, ...], epoch: int, end: int, left: int) -> None:
    log = log_of(*own)
    follower = follower_of(log, committed=len(own))
    assert follower.diverged(epoch, end) == left
    assert log.log_end_offset == left and follower.high_watermark == left
    assert follower.position().last_fetched_epoch == (own[left - 1] if left else -1)


def test_an_epoch_that_the_leader_cannot_place_leaves_what_is_committed() -> None:
    log = log_of(1, 1, 2, 2)
    assert follower_of(log, committed=3).diverged(-1, -1) == 3


def test_a_leader_with_less_than_we_have() -> None:
    log = log_of(1, 1, 1, 1)
    follower = follower_of(log, committed=2)
    assert follower.refused(ErrorCode.OFFSET_OUT_OF_RANGE) is Reaction.REQUEST_RANGE
    assert follower.leader_range(0, 3, 0) == 3
    assert log.log_end_offset == 3


def test_a_leader_whose_log_begins_after_our_end() -> None:
    log = log_of(1, 1)
    follower = follower_of(log, committed=2)
    assert follower.leader_range(50, 70, 0) == 50
    assert (log.log_start_offset, log.log_end_offset, follower.high_watermark) == (50, 50, 50)
    assert follower.position().last_fetched_epoch == -1


def test_a_range_that_holds_our_end_changes_nothing() -> None:
    log = log_of(1, 1)
    assert follower_of(log).leader_range(1, 5, 0) == 2
    assert len(log.records) == 2


def test_the_high_watermark_is_ours_and_the_leaders() -> None:
    log = log_of(1, 1, 1)
    follower = follower_of(log)
    assert follower.advanced(10, 0) and follower.high_watermark == 3
    assert not follower.advanced(2, 0) and follower.high_watermark == 3


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
def test_other_errors_make_a_follower_wait(error: ErrorCode) -> None:
    assert follower_of(log_of(1)).refused(error) is Reaction.BACK_OFF


def test_a_response_to_an_older_request_is_not_used() -> None:
    log = log_of(1, 1)
    follower = follower_of(log)
    asked = follower.position()
    assert follower.is_current(asked)
    log.append(9, "x")
    assert not follower.is_current(asked)
    log.truncate_to(1)
    log.append(9, "y")
    assert log.log_end_offset == asked.offset and not follower.is_current(asked), "the same end, another record"
    assert not PartitionFollower(log_of(1, 1), 1, 10, 0).is_current(asked), "another leadership"
