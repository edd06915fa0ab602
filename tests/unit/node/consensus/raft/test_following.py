"""Followers: finding the leader, fetching, agreeing with its log, snapshots, and noticing its end."""

import pickle

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.events import (
    HighWatermarkAdvanced,
    LeaderChanged,
    Refused,
    SnapshotInstalled,
    Truncated,
    VotersChanged,
)
from millstream.node.consensus.raft.log import KRaftVersionRecord, LeaderChangeRecord, QuorumState, VotersRecord
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    QuorumEpochResponse,
    Send,
    UpdateVoter,
    UpdateVoterResponse,
    Vote,
    VoteResponse,
)
from millstream.node.consensus.raft.replica import CommittedLostError
from millstream.node.consensus.raft.roles import Role
from millstream.node.consensus.raft.voter_set import Voter, VoterSet
from tests.unit.node.consensus.raft.bench import SETTINGS, Bench
from tests.unit.node.consensus.raft.cluster import endpoint_of, key_of
from tests.unit.node.consensus.raft.memory import Entry, MemoryLog


def records(offset: int, *entries: Entry) -> bytes:
    return pickle.dumps((offset, list(entries)))


def brought(bench: Bench, *entries: Entry, high_watermark: int = -1) -> FetchResponse:
    return FetchResponse(
        leader_id=2,
        leader_epoch=bench.replica.epoch,
        high_watermark=high_watermark,
        records=records(bench.log.end.offset, *entries),
    )


def begin(bench: Bench, leader_id: int, epoch: int) -> QuorumEpochResponse:
    return bench.replica.begin_quorum_epoch(
        BeginQuorumEpoch(
            cluster_id="c",
            voter=bench.replica.key,
            leader_id=leader_id,
            epoch=epoch,
            leader_endpoints=endpoint_of(leader_id),
        ),
        bench.now,
    )


def end(bench: Bench, *preferred: int, leader_id: int = 2, epoch: int = 1) -> QuorumEpochResponse:
    return bench.replica.end_quorum_epoch(
        EndQuorumEpoch(
            cluster_id="c",
            leader_id=leader_id,
            epoch=epoch,
            preferred_candidates=tuple(key_of(i) for i in preferred),
            leader_endpoints=endpoint_of(leader_id),
        ),
        bench.now,
    )


def test_who_has_no_leader_asks_the_voters_for_it() -> None:
    bench = Bench(node_id=9, may_vote=False)
    asked = bench.sends(Fetch)
    assert [send.peer.id for send in asked] == [1, 2, 3]
    bench.respond(
        asked[0],
        FetchResponse(
            error=ErrorCode.FENCED_LEADER_EPOCH, leader_id=3, leader_epoch=5, leader_endpoints=endpoint_of(3)
        ),
    )
    assert (bench.replica.role, bench.replica.leader_id, bench.replica.epoch) == (Role.FOLLOWER, 3, 5)
    assert [send.peer.id for send in bench.sends(Fetch)] == [3]
    assert bench.events(LeaderChanged) == [LeaderChanged(3, 5, endpoint_of(3))]
    assert bench.store.saved == QuorumState(epoch=5, leader_id=3)


def test_without_voters_the_bootstrap_servers_are_asked() -> None:
    bench = Bench(node_id=9, bootstrap=True)
    (asked, _) = bench.sends(Fetch)
    assert asked.peer.id == -2
    response = FetchResponse(leader_id=2, leader_epoch=1, leader_endpoints=endpoint_of(2))
    bench.respond(asked, response)
    assert bench.sends(Fetch)[0].peer.endpoints == endpoint_of(2)


def test_a_fetch_says_where_the_log_ends() -> None:
    bench = Bench(log_epochs=(1, 1))
    request = bench.follow(epoch=2).request
    assert isinstance(request, Fetch)
    assert (request.offset, request.last_fetched_epoch, request.current_leader_epoch) == (2, 1, 2)


def test_a_fetch_waits_until_what_it_acknowledges_is_on_disk() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, brought(bench, Entry(1, "a"), high_watermark=0))
    assert bench.sends(Fetch) == []
    bench.flush()
    request = bench.sends(Fetch)[0].request
    assert isinstance(request, Fetch) and request.offset == 1


def test_the_high_watermark_is_no_higher_than_the_log() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, brought(bench, Entry(1, "a"), high_watermark=7))
    assert bench.events(HighWatermarkAdvanced) == [HighWatermarkAdvanced(1)]


def test_a_late_or_repeated_response_appends_nothing() -> None:
    bench = Bench()
    fetch = bench.follow()
    response = brought(bench, Entry(1, "a"))
    bench.respond(fetch, response)
    bench.respond(fetch, response)
    bench.flush()
    bench.respond(fetch, response)
    assert bench.log.end.offset == 1


def test_broken_records_are_fetched_again() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, FetchResponse(leader_id=2, leader_epoch=1, records=records(5, Entry(1, "a"))))
    assert bench.log.end.offset == 0
    assert bench.sends(Fetch) == []
    bench.after(SETTINGS.retry_backoff_ms)
    assert len(bench.sends(Fetch)) == 1


@pytest.mark.parametrize(
    ("diverging", "kept"),
    [
        ((2, 1), 2),  # the leader's epoch 1 ended earlier
        ((9, 1), 3),  # it ended later there, and there was no epoch 3
        ((5, 3), 5),  # epoch 3 ended earlier
        ((4, 2), 3),  # an epoch that is not here
    ],
)
def test_a_log_that_differs_is_cut_to_where_both_agree(diverging: tuple[int, int], kept: int) -> None:
    bench = Bench(log_epochs=(1, 1, 1, 3, 3, 3))
    fetch = bench.follow(epoch=4)
    bench.respond(fetch, FetchResponse(leader_id=2, leader_epoch=4, diverging=LogPosition(*diverging)))
    assert bench.log.end.offset == kept
    assert bench.events(Truncated) == [Truncated(kept)]
    assert len(bench.sends(Fetch)) == 1


def test_what_is_committed_is_never_cut() -> None:
    bench = Bench(log_epochs=(1, 1, 1))
    fetch = bench.follow(epoch=2)
    bench.respond(fetch, bench.nothing_new(high_watermark=2))
    (fetch,) = bench.sends(Fetch)
    with pytest.raises(CommittedLostError):
        bench.respond(fetch, FetchResponse(leader_id=2, leader_epoch=2, diverging=LogPosition(1, 1)))
    assert bench.log.end.offset == 3


def test_truncation_brings_the_earlier_voters_back() -> None:
    bench = Bench(log_epochs=(1,))
    fetch = bench.follow(epoch=2)
    voters = VoterSet(tuple(Voter(key_of(i), endpoint_of(i)) for i in (1, 2)))
    bench.respond(fetch, brought(bench, Entry(2, KRaftVersionRecord(1)), Entry(2, VotersRecord(voters))))
    assert (bench.replica.voters, bench.replica.kraft_version) == (voters, 1)
    assert bench.events(VotersChanged) == [VotersChanged(voters)]
    assert bench.replica.voters_at(2).ids == (1, 2, 3)
    bench.flush()
    begin(bench, 3, 3)
    fetch = bench.sends(Fetch)[-1]
    assert fetch.peer.id == 3
    bench.respond(fetch, FetchResponse(leader_id=3, leader_epoch=3, diverging=LogPosition(1, 1)))
    assert (bench.replica.voters.ids, bench.replica.kraft_version) == ((1, 2, 3), 0)


def test_a_snapshot_is_fetched_in_pieces_and_replaces_the_log() -> None:
    leader_log = MemoryLog()
    voters = VoterSet((Voter(key_of(1), endpoint_of(1)), Voter(key_of(2), endpoint_of(2))))
    leader_log.entries = [
        Entry(1, "a"),
        Entry(1, KRaftVersionRecord(1)),
        Entry(2, VotersRecord(voters)),
        Entry(2, "b"),
    ]
    leader_log.take_snapshot(4)
    snapshot = LogPosition(4, 2)
    bench = Bench(log_epochs=(1,))
    fetch = bench.follow(epoch=2)
    bench.respond(fetch, FetchResponse(leader_id=2, leader_epoch=2, high_watermark=4, snapshot=snapshot))
    pieces = 0
    while sends := bench.sends(FetchSnapshot):
        request = sends[0].request
        assert isinstance(request, FetchSnapshot)
        found = leader_log.read_snapshot(request.snapshot, request.position, 1000)
        assert found is not None
        bench.respond(
            sends[0],
            FetchSnapshotResponse(
                leader_id=2,
                leader_epoch=2,
                snapshot=snapshot,
                size=found[0],
                position=request.position,
                chunk=found[1],
            ),
        )
        pieces += 1
    assert pieces > 1
    assert bench.events(SnapshotInstalled) == [SnapshotInstalled(snapshot)]
    assert (bench.log.start, bench.log.end, bench.replica.high_watermark) == (snapshot, snapshot, 4)
    assert bench.replica.voters == voters
    bench.after(0)
    assert bench.replica.role == Role.FOLLOWER


def test_a_snapshot_that_is_gone_is_asked_for_by_a_fetch() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, FetchResponse(leader_id=2, leader_epoch=1, snapshot=LogPosition(4, 1)))
    (asked,) = bench.sends(FetchSnapshot)
    bench.respond(
        asked,
        FetchSnapshotResponse(
            error=ErrorCode.SNAPSHOT_NOT_FOUND, leader_id=2, leader_epoch=1, snapshot=LogPosition(4, 1)
        ),
    )
    assert len(bench.sends(Fetch)) == 1


def test_silence_of_the_leader_ends_in_a_pre_vote() -> None:
    bench = Bench()
    bench.follow()
    bench.after(SETTINGS.fetch_timeout_ms - 1)
    assert bench.replica.role == Role.FOLLOWER
    bench.after(1)
    assert bench.replica.role == Role.PROSPECTIVE
    assert bench.replica.leader_id == 2, "others may still have it"
    for send in bench.sends(Vote):
        bench.respond(send, VoteResponse(leader_id=2, leader_epoch=1, granted=False))
    assert bench.replica.role == Role.FOLLOWER


def test_an_observer_whose_leader_is_silent_looks_for_another() -> None:
    bench = Bench(node_id=9, may_vote=False)
    bench.respond(bench.sends(Fetch)[0], FetchResponse(leader_id=2, leader_epoch=1))
    bench.replica.drain_sends()
    bench.after(SETTINGS.fetch_timeout_ms)
    assert (bench.replica.role, bench.replica.leader_id) == (Role.UNATTACHED, None)
    assert len(bench.sends(Fetch)) > 0


def test_a_refused_connection_is_not_waited_out() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.replica.on_request_failed(fetch, refused=True, now_ms=bench.now)
    bench.after(SETTINGS.refused_election_delay_ms)
    assert bench.replica.role == Role.PROSPECTIVE


def test_a_broken_connection_is_only_tried_again() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.replica.on_request_failed(fetch, refused=False, now_ms=bench.now)
    bench.after(SETTINGS.refused_election_delay_ms)
    assert bench.replica.role == Role.FOLLOWER
    assert len(bench.sends(Fetch)) == 1


def test_a_leader_that_comes_back_in_time_is_followed_on() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.replica.on_request_failed(fetch, refused=True, now_ms=bench.now)
    begin_response = begin(bench, 2, 1)
    assert begin_response.error == ErrorCode.NONE
    bench.after(SETTINGS.refused_election_delay_ms)
    assert bench.replica.role == Role.PROSPECTIVE
    begin(bench, 2, 1)
    assert bench.replica.role == Role.FOLLOWER, "the leader itself says that it is alive"


def test_a_leader_that_says_it_no_longer_leads_is_not_waited_for() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, FetchResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=1))
    bench.after(SETTINGS.refused_election_delay_ms)
    assert bench.replica.role == Role.PROSPECTIVE


def test_begin_quorum_epoch_of_an_old_epoch_is_fenced() -> None:
    bench = Bench()
    bench.follow(epoch=3)
    response = begin(bench, 3, 2)
    assert (response.error, response.leader_id, response.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 2, 3)


def test_two_leaders_of_one_epoch_are_not_believed() -> None:
    bench = Bench()
    bench.follow(leader_id=2, epoch=3)
    assert begin(bench, 3, 3).error == ErrorCode.INVALID_REQUEST
    assert bench.replica.leader_id == 2


def test_the_preferred_successor_asks_for_votes_first() -> None:
    first, second = Bench(), Bench(node_id=3)
    for bench in (first, second):
        bench.follow()
        end(bench, 1, 3)
    assert first.replica.next_deadline_ms < second.replica.next_deadline_ms
    first.after(SETTINGS.retry_backoff_ms)
    assert first.replica.role == Role.PROSPECTIVE


def test_the_end_of_an_old_epoch_is_no_news() -> None:
    bench = Bench()
    bench.follow(epoch=3)
    assert end(bench, 1, leader_id=3, epoch=2).error == ErrorCode.FENCED_LEADER_EPOCH
    bench.after(SETTINGS.election_timeout_ms)
    assert bench.replica.role == Role.FOLLOWER


def test_a_voter_introduces_itself_once() -> None:
    bench = Bench()
    bench.replica.drain_sends()
    begin(bench, 2, 1)
    (fetch,) = bench.sends(Fetch)
    bench.respond(fetch, bench.nothing_new())
    (update,) = bench.sends(UpdateVoter)
    assert isinstance(update.request, UpdateVoter) and update.request.endpoints == endpoint_of(1)
    bench.respond(update, UpdateVoterResponse(error=ErrorCode.REQUEST_TIMED_OUT, leader_id=2, leader_epoch=1))
    bench.after(SETTINGS.retry_backoff_ms)
    (update,) = bench.sends(UpdateVoter)
    bench.respond(update, UpdateVoterResponse(leader_id=2, leader_epoch=1))
    bench.after(SETTINGS.fetch_timeout_ms // 2)
    assert bench.sends(UpdateVoter) == []


def test_static_voters_that_differ_from_the_leaders_are_told() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, brought(bench, Entry(1, LeaderChangeRecord(2, (1, 2, 3, 4), (2, 3, 4)))))
    assert bench.events(Refused) == [Refused(ErrorCode.INCONSISTENT_VOTER_SET, 2)]


def test_the_same_static_voters_are_no_news() -> None:
    bench = Bench()
    fetch = bench.follow()
    bench.respond(fetch, brought(bench, Entry(1, LeaderChangeRecord(2, (1, 2, 3), (2, 3)))))
    assert bench.events(Refused) == []


def test_a_restart_goes_on_with_the_leader_it_had() -> None:
    bench = Bench(saved=QuorumState(epoch=3, leader_id=2, voted=key_of(2)))
    (fetch,) = bench.sends(Fetch)
    assert isinstance(fetch, Send) and fetch.peer.id == 2
    assert bench.asked(3, candidate=3, pre_vote=True).granted, "it has not heard that leader yet"


def test_until_when_a_follower_knew_all_counts_from_when_it_asked() -> None:
    """A response may wait unread while the process does not run: then it is older than it looks."""
    bench = Bench()
    assert bench.replica.current_as_of_ms(bench.now) is None
    fetch = bench.follow()
    asked = bench.now
    bench.after(700)
    bench.respond(fetch, bench.nothing_new())
    assert bench.replica.current_as_of_ms(bench.now) == asked
    (fetch,) = bench.sends(Fetch)
    bench.respond(fetch, FetchResponse(leader_id=2, leader_epoch=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.replica.current_as_of_ms(bench.now) == asked, "it was refused"
