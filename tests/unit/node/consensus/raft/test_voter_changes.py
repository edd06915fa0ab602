"""Changes of the voters: one at a time, in force when appended, and only by a leader that has committed something."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.events import Responded, VotersChanged
from millstream.node.consensus.raft.log import KRaftVersionRecord, QuorumState, VotersRecord
from millstream.node.consensus.raft.messages import (
    AddVoter,
    ChangeVotersResponse,
    EndQuorumEpoch,
    Fetch,
    Parked,
    RemoveVoter,
    UpdateVoter,
    UpdateVoterResponse,
    Vote,
)
from millstream.node.consensus.raft.roles import Role
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter, VoterSet
from tests.unit.node.consensus.raft.bench import SETTINGS, Bench
from tests.unit.node.consensus.raft.cluster import endpoint_of, key_of
from tests.unit.node.consensus.raft.memory import Entry, MemoryLog


def voters_of(*ids: int) -> VoterSet:
    return VoterSet(tuple(Voter(key_of(i), endpoint_of(i)) for i in ids))


def dynamic_log(*ids: int) -> MemoryLog:
    log = MemoryLog()
    log.entries = [Entry(1, KRaftVersionRecord(1)), Entry(1, VotersRecord(voters_of(*ids)))]
    log.flush()
    return log


def leader(*ids: int) -> Bench:
    """Node 1 leads these voters, which are in its log, and has committed something."""
    bench = Bench(log=dynamic_log(*(ids or (1, 2, 3))))
    return bench.lead()


def add(bench: Bench, node_id: int, **changed: object) -> ChangeVotersResponse | Parked:
    fields: dict[str, object] = {
        "cluster_id": "c",
        "voter": key_of(node_id),
        "endpoints": endpoint_of(node_id),
        "timeout_ms": 1000,
    }
    return bench.replica.add_voter(AddVoter(**{**fields, **changed}), bench.now)  # type: ignore[arg-type]


def remove(bench: Bench, node_id: int, key: ReplicaKey | None = None) -> ChangeVotersResponse | Parked:
    return bench.replica.remove_voter(RemoveVoter(cluster_id="c", voter=key or key_of(node_id)), bench.now)


def update(bench: Bench, node_id: int, host: str = "elsewhere", **changed: object) -> UpdateVoterResponse | Parked:
    fields: dict[str, object] = {
        "cluster_id": "c",
        "current_leader_epoch": bench.replica.epoch,
        "voter": key_of(node_id),
        "endpoints": (endpoint_of(node_id)[0].__class__("CONTROLLER", host, 1),),
        "min_kraft_version": 0,
        "max_kraft_version": 1,
    }
    return bench.replica.update_voter(UpdateVoter(**{**fields, **changed}), bench.now)  # type: ignore[arg-type]


def error(response: ChangeVotersResponse | UpdateVoterResponse | Parked) -> ErrorCode:
    assert not isinstance(response, Parked)
    return response.error


def token(response: ChangeVotersResponse | UpdateVoterResponse | Parked) -> int:
    assert isinstance(response, Parked)
    return response.token


def test_a_caught_up_observer_becomes_a_voter() -> None:
    bench = leader()
    bench.fetched(4)
    waiting = token(add(bench, 4))
    assert bench.replica.voters.ids == (1, 2, 3, 4), "in force when appended"
    assert bench.events(VotersChanged)[-1].voters.ids == (1, 2, 3, 4)
    bench.flush()
    bench.fetched(2)
    assert bench.events(Responded) == [], "two of four are no majority"
    bench.fetched(4)
    assert bench.events(Responded) == [Responded(waiting, ChangeVotersResponse())]


def test_a_response_may_come_before_the_commit() -> None:
    bench = leader()
    bench.fetched(4)
    assert error(add(bench, 4, ack_when_committed=False)) == ErrorCode.NONE


def test_an_observer_that_is_behind_is_waited_for() -> None:
    bench = leader()
    waiting = token(add(bench, 4))
    bench.fetched(4, offset=0, epoch=0)
    assert bench.replica.voters.ids == (1, 2, 3)
    bench.fetched(4)
    assert bench.replica.voters.ids == (1, 2, 3, 4)
    bench.flush()
    bench.fetched(4)
    bench.fetched(2)
    assert bench.events(Responded) == [Responded(waiting, ChangeVotersResponse())]


def test_an_observer_that_never_comes_is_not_waited_for_long() -> None:
    bench = leader()
    waiting = token(add(bench, 4))
    bench.fetched(2)
    bench.after(1000)
    (event,) = bench.events(Responded)
    assert (event.token, event.response.error) == (waiting, ErrorCode.REQUEST_TIMED_OUT)
    assert bench.replica.voters.ids == (1, 2, 3)


def test_who_waits_is_told_when_leadership_is_lost() -> None:
    bench = leader()
    waiting = [token(add(bench, 4)), token(remove(bench, 3))]
    bench.asked(bench.replica.epoch + 1)
    events = bench.events(Responded)
    assert sorted(event.token for event in events) == waiting
    assert {event.response.error for event in events} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_one_change_at_a_time() -> None:
    bench = leader()
    bench.fetched(4)
    add(bench, 4)
    assert error(remove(bench, 2)) == ErrorCode.REQUEST_TIMED_OUT
    assert error(update(bench, 2)) == ErrorCode.REQUEST_TIMED_OUT
    bench.flush()
    bench.fetched(2)
    bench.fetched(4)
    token(remove(bench, 2))


def test_no_change_before_the_leader_has_committed_something() -> None:
    bench = Bench(log=dynamic_log(1, 2, 3)).elect()
    bench.fetched(4)
    assert error(add(bench, 4)) == ErrorCode.REQUEST_TIMED_OUT
    assert error(remove(bench, 2)) == ErrorCode.REQUEST_TIMED_OUT


def test_wrong_voters_are_not_added() -> None:
    bench = leader()
    assert error(add(bench, 2)) == ErrorCode.DUPLICATE_VOTER
    assert error(add(bench, 2, voter=key_of(2, 1))) == ErrorCode.DUPLICATE_VOTER
    assert error(add(bench, 4, endpoints=())) == ErrorCode.INVALID_REQUEST
    assert error(add(bench, 4, voter=ReplicaKey(4))) == ErrorCode.INVALID_REQUEST
    assert error(add(bench, 4, max_kraft_version=0)) == ErrorCode.INVALID_REQUEST
    assert error(add(bench, 4, cluster_id="other")) == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert error(add(bench, 4, timeout_ms=0)) == ErrorCode.REQUEST_TIMED_OUT
    assert error(add(Bench(), 4)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_static_voters_do_not_change() -> None:
    bench = Bench().lead()
    assert error(add(bench, 4)) == ErrorCode.UNSUPPORTED_VERSION
    assert error(remove(bench, 2)) == ErrorCode.UNSUPPORTED_VERSION


def test_a_voter_is_removed() -> None:
    bench = leader()
    waiting = token(remove(bench, 3))
    assert bench.replica.voters.ids == (1, 2)
    bench.flush()
    bench.fetched(3)
    assert bench.events(Responded) == [], "a voter that is removed does not count"
    bench.fetched(2)
    assert bench.events(Responded) == [Responded(waiting, ChangeVotersResponse())]
    assert [observer.replica.id for observer in bench.replica.describe_quorum(bench.now).observers] == [3]


def test_wrong_voters_are_not_removed() -> None:
    bench = leader()
    assert error(remove(bench, 9)) == ErrorCode.VOTER_NOT_FOUND
    assert error(remove(bench, 3, key_of(3, 1))) == ErrorCode.VOTER_NOT_FOUND
    alone = Bench(log=dynamic_log(1))
    alone.flush()
    assert error(remove(alone, 1)) == ErrorCode.VOTER_NOT_FOUND


def test_a_leader_removes_itself_and_goes_once_that_is_committed() -> None:
    bench = leader()
    waiting = token(remove(bench, 1))
    bench.flush()
    bench.fetched(2)
    assert bench.replica.is_leader, "its own copy does not count any more"
    bench.fetched(3)
    assert bench.events(Responded) == [Responded(waiting, ChangeVotersResponse())]
    assert bench.replica.role == Role.RESIGNED
    assert [send.peer.id for send in bench.sends(EndQuorumEpoch)] == [2, 3]
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.after(60_000)
    assert bench.sends(Vote) == [], "it is an observer now"


def test_a_change_is_given_up_when_it_takes_too_long() -> None:
    bench = leader()
    waiting = token(remove(bench, 3))
    for _ in range(20):
        bench.after(1500)
        bench.fetched(2, offset=3)
    (event,) = bench.events(Responded)
    assert (event.token, event.response.error) == (waiting, ErrorCode.REQUEST_TIMED_OUT)
    assert bench.replica.voters.ids == (1, 2), "appended is appended"


def test_a_voter_moves() -> None:
    bench = leader()
    waiting = token(update(bench, 2))
    assert bench.replica.voters.by_id[2].endpoints[0].host == "elsewhere"
    bench.flush()
    bench.fetched(2)
    (event,) = bench.events(Responded)
    assert (event.token, event.response.error) == (waiting, ErrorCode.NONE)
    assert error(update(bench, 2)) == ErrorCode.NONE, "nothing changes any more"


def test_wrong_voters_are_not_updated() -> None:
    bench = leader()
    assert error(update(bench, 2, current_leader_epoch=0)) == ErrorCode.FENCED_LEADER_EPOCH
    assert error(update(bench, 2, current_leader_epoch=9)) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(update(bench, 2, endpoints=())) == ErrorCode.INVALID_REQUEST
    assert error(update(bench, 2, max_kraft_version=0)) == ErrorCode.INVALID_REQUEST
    assert error(update(bench, 2, voter=key_of(2, 1))) == ErrorCode.VOTER_NOT_FOUND
    assert error(update(bench, 9)) == ErrorCode.VOTER_NOT_FOUND


def test_static_voters_move_into_the_log_once_all_are_known() -> None:
    bench = Bench().lead(2, 3)
    with pytest.raises(KafkaError) as refused:
        bench.replica.upgrade_kraft_version(1, bench.now)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    for node_id in (2, 3):
        assert error(update(bench, node_id)) == ErrorCode.NONE
    last = bench.replica.upgrade_kraft_version(1, bench.now)
    assert [entry.value for entry in bench.log.entries[-2:]] == [
        KRaftVersionRecord(1),
        VotersRecord(bench.replica.voters),
    ]
    assert last == bench.log.end.offset - 1
    assert [voter.key for voter in bench.replica.voters] == [key_of(1), key_of(2), key_of(3)]
    assert bench.replica.kraft_version == 1
    with pytest.raises(KafkaError):
        bench.replica.upgrade_kraft_version(2, bench.now)
    with pytest.raises(KafkaError):
        bench.replica.upgrade_kraft_version(0, bench.now)


def test_one_whose_removal_is_not_committed_may_be_needed_as_leader() -> None:
    """It alone may have the longest log, and no one else could be elected before it gives that away."""
    log = dynamic_log(1, 2)
    log.entries.append(Entry(1, VotersRecord(voters_of(2))))
    log.flush()
    bench = Bench(log=log, saved=QuorumState(epoch=1))
    assert not bench.replica.is_voter
    bench.after(2 * SETTINGS.election_timeout_ms)
    assert [send.peer.id for send in bench.sends(Vote)] == [2]
    assert bench.replica.role == Role.PROSPECTIVE, "its own vote does not count"


def test_one_whose_removal_is_committed_is_an_observer() -> None:
    log = dynamic_log(1, 2)
    log.entries.append(Entry(1, VotersRecord(voters_of(2))))
    log.flush()
    log.take_snapshot(3)
    bench = Bench(log=log, saved=QuorumState(epoch=1))
    bench.after(60_000)
    assert bench.sends(Vote) == []
    assert bench.replica.role == Role.UNATTACHED


def test_a_removed_voter_goes_on_fetching() -> None:
    bench = Bench(log=dynamic_log(2, 3))
    assert [send.peer.id for send in bench.sends(Fetch)] == [2, 3]
