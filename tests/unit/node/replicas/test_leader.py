"""The leader of one partition, step by step: what is committed, who is in sync, what it asks of the controller."""

from dataclasses import dataclass, field

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.replicas.core.leader import Confirmed, NextStep, PartitionLeader, Proposal


@dataclass
class Log:
    log_start_offset: int = 0
    log_end_offset: int = 0


@dataclass
class ReplicaContext:
    log: Log
    eligible: set[tuple[int, int]] = field(default_factory=lambda: {(2, 20), (3, 30)})
    min_isr: int = 1
    flushed: int | None = None
    """Up to where the log is on disk, where that counts."""

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return (broker_id, broker_epoch) in self.eligible

    def is_alive(self, broker_id: int) -> bool:
        return any(broker == broker_id for broker, _ in self.eligible)

    def broker_epoch(self) -> int:
        return 10

    def lag_max_ms(self) -> int:
        return 1000

    def min_in_sync(self) -> int:
        return self.min_isr

    def own_end(self) -> int:
        return self.log.log_end_offset if self.flushed is None else self.flushed


class Case:
    """Broker 1 leads, 2 and 3 follow."""

    def __init__(self, *, isr: tuple[int, ...] = (1, 2, 3), end: int = 0, min_isr: int = 1, committed: int = 0) -> None:
        self.log = Log(log_end_offset=end)
        self.around = ReplicaContext(self.log, min_isr=min_isr)
        self.now_ms = 0
        self.leader = PartitionLeader(
            1,
            self.log,
            self.around,
            replicas=(1, 2, 3),
            isr=isr,
            leader_epoch=5,
            partition_epoch=9,
            high_watermark=committed,
            now_ms=0,
        )

    def append(self, count: int = 1) -> bool:
        self.log.log_end_offset += count
        return self.leader.appended(self.now_ms)

    def fetch(self, broker: int, offset: int, epoch: int | None = None, log_start: int = 0) -> bool:
        return self.leader.fetched(
            broker,
            offset=offset,
            log_start=log_start,
            broker_epoch=broker * 10 if epoch is None else epoch,
            now_ms=self.now_ms,
        )

    def propose(self) -> Proposal | None:
        return self.leader.propose(self.now_ms)

    def respond(self, proposal: Proposal, error: int = 0, isr: tuple[int, ...] | None = None) -> NextStep:
        confirmed = None if error else Confirmed(5, proposal.partition_epoch + 1, isr or proposal.members)
        return self.leader.on_response(proposal, error, confirmed, self.now_ms)


def test_a_record_is_committed_when_all_in_sync_have_it() -> None:
    case = Case()
    assert not case.append(10)
    assert not case.fetch(2, 10)
    assert case.fetch(3, 4)
    assert case.leader.high_watermark == 4
    assert case.fetch(3, 10)
    assert case.leader.high_watermark == 10


def test_a_follower_that_lost_its_tail_does_not_take_the_high_watermark_back() -> None:
    case = Case()
    case.append(10)
    case.fetch(2, 10)
    case.fetch(3, 10)
    assert not case.fetch(3, 2)
    assert case.leader.high_watermark == 10


def test_nothing_is_committed_before_every_member_was_heard_of() -> None:
    case = Case(end=10, committed=3)
    assert case.leader.high_watermark == 3
    case.fetch(2, 10)
    assert case.leader.high_watermark == 3
    case.fetch(3, 10)
    assert case.leader.high_watermark == 10


def test_alone_in_sync_commits_at_once() -> None:
    case = Case(isr=(1,))
    assert case.append(3)
    assert case.leader.high_watermark == 3


def test_a_silent_follower_counts_until_the_controller_has_let_it_go() -> None:
    case = Case()
    case.fetch(2, 0)
    case.fetch(3, 0)
    case.append(5)
    case.now_ms = 900
    case.fetch(2, 5)
    assert case.propose() is None
    case.now_ms = 1001
    proposal = case.propose()
    assert proposal is not None
    assert proposal == Proposal(((1, 10), (2, 20)), 5, 9)
    assert case.propose() is None, "one at a time"
    assert case.leader.high_watermark == 0
    assert case.respond(proposal) is NextStep.NOTHING
    assert case.leader.isr == {1, 2} and case.leader.high_watermark == 5


def test_a_follower_that_keeps_up_with_what_there_was_is_in_sync() -> None:
    case = Case()
    for step in range(20):
        case.append(5)
        case.now_ms += 600
        case.fetch(2, step * 5)  # always one fetch behind
        case.fetch(3, case.log.log_end_offset)
        assert case.propose() is None


def test_growth_needs_all_that_is_committed_and_the_start_of_the_epoch() -> None:
    case = Case(isr=(1, 2), end=10, committed=4)
    case.fetch(2, 10)
    case.fetch(3, 9)
    assert case.propose() is None, "it may lack what an earlier leader committed"
    case.fetch(3, 10)
    proposal = case.propose()
    assert proposal is not None and proposal.members == (1, 2, 3)
    # From now on it counts, confirmed or not.
    case.append(2)
    case.fetch(2, 12)
    assert case.leader.high_watermark == 10
    case.respond(proposal)
    assert case.leader.isr == {1, 2, 3}
    case.fetch(3, 12)
    assert case.leader.high_watermark == 12


@pytest.mark.parametrize("epoch", [-1, 29, 31])
def test_only_the_incarnation_that_is_registered_joins(epoch: int) -> None:
    case = Case(isr=(1, 2))
    case.fetch(3, 0, epoch)
    assert case.propose() is None


def test_a_refused_growth_is_off_after_the_second_time() -> None:
    case = Case(isr=(1, 2))
    case.fetch(3, 0)
    proposal = case.propose()
    assert proposal is not None
    assert case.respond(proposal, ErrorCode.INELIGIBLE_REPLICA) is NextStep.SEND_AGAIN
    assert 3 in case.leader.maximal_isr
    assert case.respond(proposal, ErrorCode.INELIGIBLE_REPLICA) is NextStep.NOTHING
    assert 3 not in case.leader.maximal_isr
    assert case.propose() is None, "not at once again"
    case.now_ms += 500
    assert case.propose() is not None


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_proposal_that_was_overtaken_counts_until_the_metadata_tells(error: ErrorCode) -> None:
    case = Case(isr=(1, 2))
    case.fetch(3, 0)
    proposal = case.propose()
    assert proposal is not None
    assert case.respond(proposal, error) is NextStep.NOTHING
    assert case.leader.maximal_isr == {1, 2, 3} and case.propose() is None
    case.leader.updated(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=10, now_ms=0)
    assert case.leader.maximal_isr == {1, 2} and case.leader.proposal is None


def test_a_proposal_is_sent_again_after_a_retriable_error() -> None:
    case = Case(isr=(1, 2))
    case.fetch(3, 0)
    proposal = case.propose()
    assert proposal is not None
    for error in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR):
        assert case.respond(proposal, error) is NextStep.SEND_AGAIN
    assert case.leader.proposal is proposal


def test_metadata_older_than_the_response_changes_nothing() -> None:
    case = Case(isr=(1, 2))
    case.fetch(3, 0)
    proposal = case.propose()
    assert proposal is not None
    case.respond(proposal)
    case.leader.updated(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=9, now_ms=0)
    assert case.leader.isr == {1, 2, 3}


def test_too_few_in_sync() -> None:
    case = Case(isr=(1,), min_isr=2)
    with pytest.raises(KafkaError) as refused:
        case.leader.check_enough_in_sync()
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    late = case.leader.not_enough_after_append()
    assert late is not None and late.code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert not case.append(3), "what too few have is not committed"
    case.around.min_isr = 1
    assert case.leader.settings_changed(0)
    case.leader.check_enough_in_sync()


def test_more_wanted_in_sync_than_there_are_replicas() -> None:
    case = Case(min_isr=9)
    assert case.leader.required_in_sync == 3
    case.leader.check_enough_in_sync()


def test_who_is_no_replica_or_was_one_in_an_earlier_life() -> None:
    case = Case()
    case.fetch(2, 0)
    with pytest.raises(KafkaError) as unknown:
        case.leader.follower(4, 40)
    assert unknown.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH
    with pytest.raises(KafkaError) as past:
        case.leader.follower(2, 19)
    assert past.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_records_are_gone_when_no_live_replica_has_them() -> None:
    case = Case(end=10)
    case.fetch(2, 10)
    case.fetch(3, 10)
    case.log.log_start_offset = 7
    assert case.leader.low_watermark == 0
    case.fetch(2, 10, log_start=7)
    case.around.eligible.discard((3, 30))
    assert case.leader.low_watermark == 7, "nobody waits for the dead"


def test_a_replica_near_the_end_is_waited_for() -> None:
    """Else it would run after the end for ever, and never be in sync."""
    case = Case(isr=(1, 2), end=10, committed=10)
    case.fetch(2, 10)
    case.fetch(3, 10)
    case.append(5)
    case.fetch(2, 15)
    assert case.leader.high_watermark == 10
    case.now_ms = 1001
    case.leader.settings_changed(case.now_ms)
    assert case.leader.high_watermark == 15, "but not for long"


def test_what_is_not_on_the_leaders_disk_is_not_committed_where_that_is_asked_for() -> None:
    case = Case()
    case.around.flushed = 0
    case.append(3)
    case.fetch(2, 3)
    assert not case.fetch(3, 3)
    assert case.leader.high_watermark == 0
    case.around.flushed = 2
    assert case.leader.appended(0)
    assert case.leader.high_watermark == 2
    case.around.flushed = None  # it is not asked for any more
    assert case.leader.settings_changed(0)
    assert case.leader.high_watermark == 3
