"""Votes: who asks, who is given one, and what is on disk before it is said."""

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.elections import ELECTION_BACKOFF_MS
from millstream.node.consensus.raft.events import BecameLeader, LeaderChanged, Refused
from millstream.node.consensus.raft.log import LeaderChangeRecord, QuorumState
from millstream.node.consensus.raft.messages import NO_LEADER, Fetch, FetchResponse, LogPosition, Vote, VoteResponse
from millstream.node.consensus.raft.roles import Role
from millstream.node.consensus.raft.voter_set import ReplicaKey
from tests.unit.node.consensus.raft.bench import SETTINGS, Bench
from tests.unit.node.consensus.raft.cluster import key_of


def test_a_quorum_of_one_elects_itself_at_once() -> None:
    bench = Bench(voters=1)
    assert bench.replica.is_leader
    assert bench.replica.drain_sends() == []
    assert bench.log.entries[0].value == LeaderChangeRecord(1, (1,), (1,))
    assert bench.replica.high_watermark == 0, "not on disk yet"
    bench.flush()
    assert bench.replica.high_watermark == 1


def test_no_one_asks_before_the_election_timeout() -> None:
    bench = Bench()
    bench.after(SETTINGS.election_timeout_ms - 1)
    assert bench.sends(Vote) == []
    bench.after(SETTINGS.election_timeout_ms + 1)
    asked = bench.sends(Vote)
    assert [send.peer.id for send in asked] == [2, 3]
    assert all(isinstance(send.request, Vote) and send.request.pre_vote for send in asked)


def test_a_pre_vote_changes_no_epoch_and_saves_nothing() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    assert bench.replica.role == Role.PROSPECTIVE
    assert (bench.replica.epoch, bench.store.saves) == (0, [])
    other = Bench(node_id=2)
    assert other.asked(0, candidate=1, pre_vote=True).granted
    assert other.asked(0, candidate=3, pre_vote=True).granted, "a pre-vote may be given to many"
    assert other.store.saves == []


def test_a_candidate_has_its_own_vote_on_disk_before_it_asks() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.grant()
    assert bench.replica.role == Role.CANDIDATE
    assert bench.store.saved == QuorumState(epoch=1, voted=key_of(1))
    asked = bench.sends(Vote)
    assert all(isinstance(s.request, Vote) and not s.request.pre_vote and s.request.epoch == 1 for s in asked)


def test_a_majority_elects_and_the_epoch_opens_with_a_leader_change() -> None:
    bench = Bench().elect()
    assert bench.events(BecameLeader) == [BecameLeader(1, 0)]
    assert bench.log.entries[0].value == LeaderChangeRecord(1, (1, 2, 3), (1, 2))
    assert bench.events(LeaderChanged)[-1].leader_id == 1


def test_a_refused_pre_vote_disturbs_no_one() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    for send in bench.sends(Vote):
        bench.respond(send, VoteResponse(leader_epoch=0, granted=False))
    assert bench.replica.role == Role.UNATTACHED
    assert bench.replica.epoch == 0


def test_a_lost_election_is_tried_again_after_a_pause_with_a_pre_vote() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.grant()
    for send in bench.sends(Vote):
        bench.respond(send, VoteResponse(leader_epoch=1, granted=False))
    assert bench.replica.role == Role.CANDIDATE
    assert bench.replica.next_deadline_ms > bench.now
    bench.after(SETTINGS.election_backoff_max_ms + 1)
    assert (bench.replica.role, bench.replica.epoch) == (Role.PROSPECTIVE, 1)


def test_an_undecided_election_ends_by_timeout() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.grant()
    bench.after(2 * SETTINGS.election_timeout_ms)
    assert bench.replica.role == Role.PROSPECTIVE


def test_votes_without_a_response_are_requested_again() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    for send in bench.sends(Vote):
        bench.replica.on_request_failed(send, refused=True, now_ms=bench.now)
    assert bench.sends(Vote) == []
    bench.after(SETTINGS.retry_backoff_ms)
    assert len(bench.sends(Vote)) == 2


def test_one_vote_per_epoch() -> None:
    bench = Bench()
    assert bench.asked(1, candidate=2).granted
    assert bench.store.saved == QuorumState(epoch=1, voted=key_of(2))
    assert bench.asked(1, candidate=2).granted, "the same again, if the response was lost"
    assert not bench.asked(1, candidate=3).granted
    assert not bench.asked(1, candidate=2, generation=1).granted, "another disk is another replica"
    assert bench.asked(2, candidate=3).granted


def test_a_vote_survives_a_restart() -> None:
    bench = Bench(saved=QuorumState(epoch=4, voted=key_of(2)))
    assert not bench.asked(4, candidate=3).granted
    assert bench.asked(4, candidate=2).granted


def test_an_old_epoch_is_fenced() -> None:
    bench = Bench(saved=QuorumState(epoch=4))
    response = bench.asked(3)
    assert (response.error, response.leader_epoch, response.granted) == (ErrorCode.FENCED_LEADER_EPOCH, 4, False)


def test_a_vote_goes_only_to_a_log_that_is_not_behind() -> None:
    for log_end, granted in [((2, 1), False), ((3, 1), False), ((1, 2), False), ((2, 2), True), ((1, 3), True)]:
        bench = Bench(log_epochs=(1, 2))
        assert bench.asked(5, log_end=log_end).granted is granted, log_end
        bench = Bench(log_epochs=(1, 2))
        assert bench.asked(5, log_end=log_end, pre_vote=True).granted is granted, log_end


def test_the_epoch_of_the_log_is_never_below_the_saved_one() -> None:
    assert Bench(log_epochs=(1, 7)).replica.epoch == 7


def test_a_follower_that_hears_its_leader_refuses_pre_votes() -> None:
    bench = Bench()
    bench.follow(leader_id=2)
    response = bench.asked(1, candidate=3, pre_vote=True)
    assert (response.granted, response.leader_id) == (False, 2)


def test_a_follower_that_lost_its_leader_grants_them() -> None:
    bench = Bench()
    fetch = bench.follow(leader_id=2)
    bench.replica.on_request_failed(fetch, refused=True, now_ms=bench.now)
    assert bench.asked(1, candidate=3, pre_vote=True).granted


def test_a_follower_grants_no_vote_in_its_leaders_epoch() -> None:
    bench = Bench()
    bench.follow(leader_id=2)
    assert not bench.asked(1, candidate=3).granted


def test_a_leader_refuses_pre_votes_of_its_epoch_and_steps_down_for_a_higher_one() -> None:
    bench = Bench().lead()
    assert not bench.asked(1, candidate=3, pre_vote=True).granted
    assert bench.replica.is_leader
    bench.asked(2, candidate=3)
    assert (bench.replica.role, bench.replica.epoch) == (Role.UNATTACHED, 2)


def test_an_observer_without_the_controller_role_never_votes() -> None:
    bench = Bench(node_id=9, may_vote=False)
    response = bench.asked(1)
    assert (response.granted, response.error) == (False, ErrorCode.INVALID_VOTER_KEY)
    bench.after(60_000)
    assert bench.sends(Vote) == []


def test_a_replica_outside_its_own_voter_set_may_vote_but_does_not_campaign() -> None:
    bench = Bench(node_id=4)
    assert bench.asked(1, candidate=2).granted, "its voter set may be behind"
    bench.after(60_000)
    assert bench.sends(Vote) == []


def test_a_vote_for_another_disk_is_refused() -> None:
    bench = Bench()
    assert bench.asked(1, voter=key_of(1, generation=1)).error == ErrorCode.INVALID_VOTER_KEY
    assert bench.asked(1, voter=ReplicaKey(2)).error == ErrorCode.INVALID_VOTER_KEY
    assert bench.asked(1, voter=ReplicaKey(1)).granted, "static voters name no directory"


def test_another_cluster_is_refused() -> None:
    bench = Bench()
    assert bench.asked(1, cluster_id="other").error == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert bench.replica.epoch == 0
    assert bench.asked(1, cluster_id=None).granted, "a node that has no id yet"


def test_being_refused_as_another_cluster_is_told() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    (send, _) = bench.sends(Vote)
    bench.respond(send, VoteResponse(error=ErrorCode.INCONSISTENT_CLUSTER_ID, leader_epoch=0))
    assert bench.events(Refused) == [Refused(ErrorCode.INCONSISTENT_CLUSTER_ID, 2)]


def test_a_node_with_our_id_is_refused() -> None:
    assert Bench().asked(1, candidate=1, generation=1).error == ErrorCode.INCONSISTENT_VOTER_SET


def test_a_candidate_follows_whoever_won() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.grant()
    (send, _) = bench.sends(Vote)
    bench.respond(send, VoteResponse(leader_id=3, leader_epoch=1))
    assert (bench.replica.role, bench.replica.leader_id) == (Role.FOLLOWER, 3)
    assert bench.store.saved == QuorumState(epoch=1, leader_id=3, voted=key_of(1)), "the vote is not forgotten"


def test_votes_that_come_late_do_not_count() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    pre_votes = bench.sends(Vote)
    bench.respond(pre_votes[0], VoteResponse(leader_epoch=0, granted=True))
    assert bench.replica.role == Role.CANDIDATE
    bench.respond(pre_votes[1], VoteResponse(leader_epoch=0, granted=True))
    assert bench.replica.role == Role.CANDIDATE, "a pre-vote is no vote"


def test_a_leader_that_restarts_does_not_lead_its_epoch_again() -> None:
    bench = Bench(saved=QuorumState(epoch=3, leader_id=1, voted=key_of(1)), log_epochs=(1, 3))
    assert (bench.replica.role, bench.replica.leader_id) == (Role.UNATTACHED, None)
    response = bench.asked(3, candidate=2, pre_vote=True)
    assert (response.leader_id, response.granted) == (NO_LEADER, True)
    bench.elect()
    assert bench.replica.epoch == 4


def test_a_vote_names_the_end_of_the_log() -> None:
    bench = Bench(log_epochs=(1, 1, 2))
    bench.after(2 * SETTINGS.election_timeout_ms)
    request = bench.sends(Vote)[0].request
    assert isinstance(request, Vote)
    assert (request.log_end, request.epoch) == (LogPosition(3, 2), 2)


def test_a_split_vote_is_not_waited_out_when_the_dead_cannot_decide_it() -> None:
    bench = Bench()
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.grant()
    (second, dead) = bench.sends(Vote)
    bench.respond(second, VoteResponse(leader_epoch=1, granted=False))
    assert bench.replica.next_deadline_ms > bench.now
    bench.replica.on_request_failed(dead, refused=True, now_ms=bench.now)
    bench.after(100)
    assert bench.replica.role == Role.PROSPECTIVE


def test_a_candidate_that_is_not_in_the_voter_set_here_may_be_one_elsewhere() -> None:
    """This replica may not have seen yet that the voters changed."""
    assert Bench().asked(1, candidate=4).granted


def test_nothing_is_due_while_records_are_on_their_way_to_disk() -> None:
    bench = Bench()
    bench.log.append_records(0, ["a"], 0)
    bench.replica.drain_sends()
    bench.asked(1, candidate=2)
    assert bench.replica.role == Role.UNATTACHED
    assert bench.replica.next_deadline_ms > bench.now
    assert bench.sends(Fetch) == []


def test_a_forged_epoch_is_refused_and_not_saved() -> None:
    bench = Bench(node_id=2)
    response = bench.asked(2**31 - 1, candidate=1)
    assert (response.error, response.granted) == (ErrorCode.INVALID_REQUEST, False)
    assert (bench.replica.epoch, bench.store.saves) == (0, [])
    assert bench.asked(1, candidate=1).granted, "a real election goes on"


def split_vote_after_a_lost_leader(leader_vote: VoteResponse | None = None) -> Bench:
    """The leader, node 3, hangs; nodes 1 and 2 ask for votes at the same time, and each votes for itself."""
    bench = Bench(saved=QuorumState(epoch=1, leader_id=3))
    fetch = next(send for send in bench.sends(Fetch) if send.peer.id == 3)
    bench.respond(fetch, FetchResponse(leader_id=3, leader_epoch=1, high_watermark=0))
    bench.after(SETTINGS.fetch_timeout_ms + 1)
    assert bench.replica.role == Role.PROSPECTIVE
    bench.grant()
    assert bench.replica.role == Role.CANDIDATE
    for send in bench.sends(Vote):
        if send.peer.id == 2:
            bench.respond(send, VoteResponse(leader_epoch=2, granted=False))
        elif leader_vote is not None:
            bench.respond(send, leader_vote)
    return bench


def test_a_split_vote_is_not_left_to_a_leader_that_hangs() -> None:
    bench = split_vote_after_a_lost_leader()
    assert bench.replica.role == Role.CANDIDATE
    bench.after(2 * ELECTION_BACKOFF_MS + 1)
    assert bench.replica.role == Role.PROSPECTIVE, "it waited for the whole election timeout"


def test_the_vote_of_the_lost_leader_counts_if_it_comes() -> None:
    assert split_vote_after_a_lost_leader(VoteResponse(leader_epoch=2, granted=True)).replica.is_leader
