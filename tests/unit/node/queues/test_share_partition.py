"""The state machine of a shared partition, step by step."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.queues.core.in_flight import ShareLimits
from millstream.node.queues.core.partition import SharePartition, Transition
from millstream.node.queues.core.runs import Acknowledgement, Acquired, RecordState, StateBatch

ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    Acknowledgement.ACCEPT,
    Acknowledgement.RELEASE,
    Acknowledgement.REJECT,
    Acknowledgement.RENEW,
    Acknowledgement.GAP,
)


def partition(start: int = 0, batches: tuple[StateBatch, ...] = (), **limits: object) -> SharePartition:
    return SharePartition(start, batches, ShareLimits(**limits))  # type: ignore[arg-type]


def ordered(start: int = 0, batches: tuple[StateBatch, ...] = (), **limits: object) -> SharePartition:
    return SharePartition(start, batches, ShareLimits(**limits), key_order=True)  # type: ignore[arg-type]


def acknowledge(
    share: SharePartition, member: str, *ranges: tuple[int, int, Acknowledgement], now_ms: int = 0
) -> Transition:
    transition = share.acknowledge(member, ranges, now_ms)
    share.commit(transition, now_ms)
    return transition


def test_a_batch_is_acquired_whole() -> None:
    share = partition()
    assert share.next_offset(0) == 0
    assert share.acquire("a", [(0, 9), (10, 19), (20, 29)], 12, 0) == [Acquired(0, 19, 1)]
    assert share.next_offset(0) == 20
    assert share.locks == 20


def test_strict_gives_exactly_what_is_asked_for() -> None:
    share = partition()
    assert share.acquire("a", [(0, 9), (10, 19)], 12, 0, strict=True) == [Acquired(0, 11, 1)]
    assert share.acquire("b", [(10, 19)], 3, 0, strict=True) == [Acquired(12, 14, 1)]
    assert share.next_offset(0) == 15


def test_accepting_in_order_moves_the_start_and_persists_nothing_else() -> None:
    share = partition()
    share.acquire("a", [(0, 9)], 100, 0)
    transition = acknowledge(share, "a", (0, 4, ACCEPT))
    assert (transition.start, transition.batches, transition.complete_count) == (5, [], 0)
    assert share.start == 5 and share.locks == 5


def test_accepting_out_of_order_is_persisted_until_the_start_passes() -> None:
    share = partition()
    share.acquire("a", [(0, 9)], 100, 0)
    transition = acknowledge(share, "a", (5, 9, ACCEPT))
    assert transition.batches == [StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1)]
    assert (transition.start, transition.complete_count) == (0, 5)
    transition = acknowledge(share, "a", (0, 4, ACCEPT))
    assert (transition.start, transition.batches, transition.complete_count) == (10, [], 0)
    assert share.start == share.end == 10 and share.runs == []


def test_released_records_come_back_with_a_higher_count_until_the_limit() -> None:
    share = partition(delivery_count=3)
    for delivery in (1, 2, 3):
        assert share.next_offset(0) == 0
        assert share.acquire("a", [(0, 4)], 100, 0) == [Acquired(0, 4, delivery)]
        transition = acknowledge(share, "a", (0, 4, RELEASE))
    assert transition.start == 5 and share.next_offset(0) == 5


def test_reject_is_for_good() -> None:
    share = partition()
    share.acquire("a", [(0, 4)], 100, 0)
    acknowledge(share, "a", (0, 0, ACCEPT), (1, 1, REJECT), (2, 2, RELEASE), (3, 3, GAP))
    assert share.runs == [
        StateBatch(2, 2, RecordState.AVAILABLE, 1),
        StateBatch(3, 3, RecordState.ARCHIVED, 1),
        StateBatch(4, 4, RecordState.ACQUIRED, 1),
    ]
    assert share.acquire("b", [(0, 4)], 100, 0) == [Acquired(2, 2, 2)]


def test_nothing_changes_before_it_is_persisted() -> None:
    share = partition()
    share.acquire("a", [(0, 9)], 100, 0)
    transition = share.acknowledge("a", [(0, 9, RELEASE)], 0)
    assert share.acquire("b", [(0, 9)], 100, 0) == []
    with pytest.raises(KafkaError):
        share.acknowledge("a", [(0, 9, ACCEPT)], 0)
    share.roll_back(transition)
    assert acknowledge(share, "a", (0, 9, ACCEPT)).start == 10


def test_only_the_holder_may_acknowledge_and_all_or_nothing() -> None:
    share = partition()
    share.acquire("a", [(0, 4)], 100, 0)
    share.acquire("b", [(5, 9)], 100, 0)
    state, request = ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST
    for member, ranges, code in (
        ("b", [(0, 0, ACCEPT)], state),
        ("a", [(0, 9, ACCEPT)], state),
        ("a", [(0, 4, ACCEPT), (12, 12, ACCEPT)], request),
    ):
        with pytest.raises(KafkaError) as refused:
            share.acknowledge(member, ranges, 0)
        assert refused.value.code == code
    assert share.locks == 10
    acknowledge(share, "a", (0, 4, ACCEPT))
    assert share.acknowledge("a", [(0, 4, ACCEPT)], 0).runs == []  # before the start: done with


def test_locks_expire_unless_renewed() -> None:
    share = partition(lock_ms=100)
    share.acquire("a", [(0, 9)], 100, 0)
    assert share.next_alarm_ms == 100
    acknowledge(share, "a", (5, 9, RENEW), now_ms=60)
    expired = share.expire(100)
    assert expired.batches == [StateBatch(0, 4, RecordState.AVAILABLE, 1)]
    share.commit(expired, 100)
    assert share.next_alarm_ms == 160
    assert share.acquire("b", [(0, 9)], 100, 100) == [Acquired(0, 4, 2)]


def test_a_member_that_leaves_releases_what_it_holds() -> None:
    share = partition()
    share.acquire("a", [(0, 4)], 100, 0)
    share.acquire("b", [(5, 9)], 100, 0)
    share.commit(share.release_member("a"), 0)
    assert share.acquire("c", [(0, 9)], 100, 0) == [Acquired(0, 4, 2)]


def test_no_more_than_the_limit_is_in_flight() -> None:
    share = partition(max_locks=10)
    assert share.acquire("a", [(0, 3), (4, 7), (8, 11), (12, 15)], 100, 0) == [Acquired(0, 11, 1)]
    assert share.next_offset(0) is None
    acknowledge(share, "a", (0, 3, ACCEPT))
    assert share.next_offset(0) == 12


def test_absent_offsets_hold_no_one_up() -> None:
    share = partition()
    share.absent(0, 4, 0)
    assert share.acquire("a", [(5, 6)], 100, 0) == [Acquired(5, 6, 1)]
    share.absent(7, 7, 0)
    assert acknowledge(share, "a", (5, 6, ACCEPT)).start == 8


def test_the_log_is_cut_off() -> None:
    share = partition()
    share.acquire("a", [(0, 9)], 100, 0)
    share.log_starts_at(5, 0)
    assert (share.start, share.locks) == (5, 5)
    assert acknowledge(share, "a", (0, 9, ACCEPT)).start == 10
    share.log_starts_at(50, 0)
    assert share.next_offset(0) == 50


def test_restored_state_has_holes_that_are_read_again() -> None:
    share = partition(
        3,
        (
            StateBatch(5, 6, RecordState.ACKNOWLEDGED, 1),
            StateBatch(8, 8, RecordState.AVAILABLE, 2),
            StateBatch(0, 3, RecordState.ARCHIVED, 1),
        ),
    )
    assert (share.start, share.end) == (4, 9)
    assert share.acquire("a", [(0, 9), (10, 19)], 6, 0) == [
        Acquired(4, 4, 1),
        Acquired(7, 7, 1),
        Acquired(8, 8, 3),
        Acquired(9, 19, 1),
    ]


def test_dead_letters_are_archived_in_two_steps() -> None:
    share = partition(dead_letters=True, delivery_count=2)
    share.acquire("a", [(0, 4)], 100, 0)
    transition = acknowledge(share, "a", (0, 0, REJECT), (1, 1, ACCEPT))
    assert [(each.first, each.last) for each in transition.dead] == [(0, 0)]
    assert transition.batches[0] == StateBatch(0, 0, RecordState.ARCHIVING, 1)
    assert share.start == 0
    again = partition(0, tuple(transition.batches), dead_letters=True)
    assert [(each.first, each.last) for each in again.archiving()] == [(0, 0)]
    again.commit(again.finish_archiving(0, 0), 0)
    assert again.start == 2


def test_records_of_a_key_are_acquired_in_order() -> None:
    share = ordered()
    share.admit(0, 5, [(0, b"x", 0), (1, b"x", 0), (2, b"y", 0), (3, None, 0), (4, b"x", 0)], 0)
    assert share.acquire("a", [(0, 5)], 100, 0) == [Acquired(0, 0, 1), Acquired(2, 3, 1)]
    assert share.acquire("b", [(0, 5)], 100, 0) == []
    acknowledge(share, "a", (0, 0, RELEASE))
    assert share.acquire("b", [(0, 5)], 100, 0) == [Acquired(0, 0, 2)]
    acknowledge(share, "b", (0, 0, ACCEPT))
    assert share.acquire("b", [(0, 5)], 100, 0) == [Acquired(1, 1, 1)]
    acknowledge(share, "b", (1, 1, REJECT))
    assert share.acquire("b", [(0, 5)], 100, 0) == [Acquired(4, 4, 1)]


def test_delayed_records_wait_and_hold_back_only_their_key() -> None:
    share = ordered()
    share.admit(0, 3, [(0, b"x", 500), (1, b"x", 0), (2, b"y", 0), (3, b"z", 900)], 0)
    assert share.acquire("a", [(0, 3)], 100, 0) == [Acquired(2, 2, 1)]
    acknowledge(share, "a", (2, 2, ACCEPT))
    assert share.next_alarm_ms == 500
    assert share.next_offset(499) == 4  # more may be read meanwhile
    assert share.next_offset(500) == 0
    assert share.acquire("a", [(0, 3)], 100, 500) == [Acquired(0, 0, 1)]
    acknowledge(share, "a", (0, 0, ACCEPT), now_ms=500)
    assert share.acquire("a", [(0, 3)], 100, 500) == [Acquired(1, 1, 1)]


def test_restored_counts_survive_reading_again() -> None:
    share = ordered(0, (StateBatch(1, 1, RecordState.AVAILABLE, 3), StateBatch(2, 2, RecordState.ACKNOWLEDGED, 1)))
    assert share.next_unread() == 0
    share.admit(0, 2, [(0, b"x", 0), (1, b"x", 0), (2, b"x", 0)], 0)
    assert share.acquire("a", [(0, 2)], 100, 0) == [Acquired(0, 0, 1)]
    acknowledge(share, "a", (0, 0, ACCEPT))
    assert share.acquire("a", [(0, 2)], 100, 0) == [Acquired(1, 1, 4)]
