"""Leaders: what is committed, who is served what, and when to go."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.events import HighWatermarkAdvanced, Leading, LostLeadership, Responded
from millstream.node.consensus.raft.leader import FORGET_OBSERVER_MS, MAX_REMEMBERED
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    LogPosition,
    Parked,
    QuorumEpochResponse,
)
from millstream.node.consensus.raft.roles import Role
from millstream.node.consensus.raft.voter_set import ReplicaKey
from tests.unit.node.consensus.raft.bench import SETTINGS, Bench
from tests.unit.node.consensus.raft.cluster import key_of
from tests.unit.node.consensus.raft.memory import Entry, MemoryLog


def response_of(fetched: FetchResponse | Parked) -> FetchResponse:
    assert isinstance(fetched, FetchResponse)
    return fetched


def parked(fetched: FetchResponse | Parked) -> int:
    assert isinstance(fetched, Parked)
    return fetched.token


def test_committed_is_what_a_majority_has_on_disk() -> None:
    bench = Bench().elect()
    bench.fetched(2)
    assert bench.replica.high_watermark == 0, "the leader's own disk is no exception"
    bench.flush()
    assert bench.replica.high_watermark == 1
    assert bench.replica.append(["a", "b"], bench.now) == 2
    bench.fetched(2)
    bench.fetched(3, offset=2)
    assert bench.replica.high_watermark == 2, "two followers are a majority without the leader's disk"
    bench.flush()
    assert bench.replica.high_watermark == 3
    assert bench.events(HighWatermarkAdvanced) == [HighWatermarkAdvanced(n) for n in (1, 2, 3)]


def test_nothing_of_earlier_epochs_is_committed_by_counting() -> None:
    bench = Bench(log_epochs=(1, 1)).elect()
    bench.flush()
    bench.fetched(2, offset=2, epoch=1)
    assert bench.replica.high_watermark == 0
    assert bench.events(Leading) == []
    bench.fetched(2)
    assert bench.replica.high_watermark == 3
    assert bench.events(Leading) == [Leading(2, 3)]


def test_observers_do_not_count() -> None:
    bench = Bench().elect()
    bench.flush()
    bench.fetched(7)
    bench.fetched(8)
    assert bench.replica.high_watermark == 0


def test_a_late_fetch_takes_nothing_back() -> None:
    bench = Bench().lead(2, 3)
    bench.replica.append(["a"], bench.now)
    bench.flush()
    bench.fetched(2)
    assert bench.replica.high_watermark == 2
    bench.fetched(2, offset=0, epoch=0)
    assert bench.replica.high_watermark == 2


def test_only_the_leader_of_this_epoch_is_asked() -> None:
    bench = Bench().lead()
    assert response_of(bench.fetched(2, leader_epoch=0)).error == ErrorCode.FENCED_LEADER_EPOCH
    assert response_of(bench.fetched(2, leader_epoch=2)).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert response_of(bench.fetched(2, leader_epoch=0)).leader_id == 1
    follower = Bench()
    follower.follow(leader_id=3)
    response = response_of(follower.fetched(2))
    assert (response.error, response.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
    assert response.leader_endpoints[0].host == "node3"


def test_nonsense_is_refused() -> None:
    bench = Bench().lead()
    assert response_of(bench.fetched(2, offset=-1)).error == ErrorCode.INVALID_REQUEST
    assert response_of(bench.fetched(2, epoch=9)).error == ErrorCode.INVALID_REQUEST
    assert response_of(bench.fetched(1, key=key_of(1, generation=1))).error == ErrorCode.INCONSISTENT_VOTER_SET


def test_a_fetch_is_held_until_there_is_something() -> None:
    bench = Bench().lead()
    bench.fetched(2)
    token = parked(bench.fetched(2, max_wait_ms=500))
    bench.replica.append(["a"], bench.now)
    (event,) = bench.events(Responded)
    assert event.token == token
    assert isinstance(event.response, FetchResponse) and event.response.records


def test_a_log_that_cannot_be_read_fails_the_fetch_and_not_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is appended is in the log, whether or not it can be sent."""
    bench = Bench().lead()
    bench.fetched(2)
    token = parked(bench.fetched(2, max_wait_ms=500))

    def fails(self: MemoryLog, offset: int, max_bytes: int, *, below: int) -> bytes:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "input/output error")

    monkeypatch.setattr(MemoryLog, "read", fails)
    assert bench.replica.append(["a"], bench.now) == 1
    (event,) = bench.events(Responded)
    assert event.token == token
    assert isinstance(event.response, FetchResponse) and event.response.error == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_higher_watermark_is_something() -> None:
    bench = Bench().lead(2, 3)
    bench.replica.append(["a"], bench.now)
    token = parked(bench.fetched(3, max_wait_ms=500))
    bench.fetched(2)
    bench.flush()
    (event,) = bench.events(Responded)
    assert event.token == token
    assert isinstance(event.response, FetchResponse) and event.response.high_watermark == 2


def test_a_held_fetch_gets_its_response_in_time() -> None:
    bench = Bench().lead(2, 3)
    token = parked(bench.fetched(2, max_wait_ms=500))
    assert bench.replica.next_deadline_ms <= bench.now + 500
    bench.after(500)
    assert [event.token for event in bench.events(Responded)] == [token]


def test_a_held_fetch_can_be_forgotten() -> None:
    bench = Bench().lead()
    bench.replica.cancel(parked(bench.fetched(2, max_wait_ms=500)))
    bench.after(500)
    assert bench.events(Responded) == []


def test_a_log_that_differs_is_told_where() -> None:
    bench = Bench(log_epochs=(1, 1, 3)).elect()
    assert response_of(bench.fetched(2, offset=4, epoch=1)).diverging == LogPosition(2, 1)
    assert response_of(bench.fetched(2, offset=2, epoch=2)).diverging == LogPosition(2, 1)
    assert response_of(bench.fetched(2, offset=2, epoch=1)).diverging is None
    assert response_of(bench.fetched(2, offset=9, epoch=4)).diverging == LogPosition(4, 4)
    assert response_of(bench.fetched(2, offset=0, epoch=0)).diverging is None
    assert bench.replica.high_watermark == 0


def test_who_is_behind_the_log_is_sent_to_the_snapshot() -> None:
    log = MemoryLog()
    log.entries = [Entry(1, "a"), Entry(1, "b"), Entry(2, "c"), Entry(2, "d")]
    log.flush()
    log.take_snapshot(3)
    bench = Bench(log=log)
    assert bench.replica.high_watermark == 3
    bench.elect()
    snapshot = LogPosition(3, 2)
    for offset, epoch in [(0, 0), (2, 1), (3, 1), (4, 1)]:
        assert response_of(bench.fetched(2, offset=offset, epoch=epoch)).snapshot == snapshot
    assert response_of(bench.fetched(2, offset=3, epoch=2)).snapshot is None
    response = bench.replica.fetch_snapshot(
        FetchSnapshot(
            cluster_id="c", replica=key_of(2), current_leader_epoch=3, snapshot=snapshot, position=0, max_bytes=10
        ),
        bench.now,
    )
    assert response.size > len(response.chunk) > 0
    for position, error, asked in [
        (response.size, ErrorCode.POSITION_OUT_OF_RANGE, snapshot),
        (0, ErrorCode.SNAPSHOT_NOT_FOUND, LogPosition(2, 1)),
    ]:
        request = FetchSnapshot(
            cluster_id="c", replica=key_of(2), current_leader_epoch=3, snapshot=asked, position=position, max_bytes=10
        )
        assert bench.replica.fetch_snapshot(request, bench.now).error == error


def test_who_is_no_replica_sees_what_is_committed() -> None:
    bench = Bench().lead()
    bench.replica.append(["a"], bench.now)

    def consume(offset: int) -> FetchResponse | Parked:
        return bench.replica.fetch(
            Fetch(
                cluster_id=None,
                replica=ReplicaKey(-1),
                current_leader_epoch=-1,
                offset=offset,
                last_fetched_epoch=-1,
                high_watermark=-1,
                max_wait_ms=0,
                max_bytes=100,
            ),
            bench.now,
        )

    assert response_of(consume(0)).records
    assert not response_of(consume(1)).records
    assert response_of(consume(2)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(bench.replica.describe_quorum(bench.now).observers) == 0


def test_a_leader_without_a_majority_gives_up() -> None:
    bench = Bench().lead()
    bench.after(SETTINGS.fetch_timeout_ms)
    bench.fetched(3)
    bench.after(SETTINGS.fetch_timeout_ms * 3 // 2 - 1)
    assert bench.replica.is_leader
    bench.after(1)
    assert bench.replica.role == Role.RESIGNED
    assert bench.events(LostLeadership) == [LostLeadership(1)]
    assert bench.replica.leader_id is None


def test_a_quorum_of_one_never_gives_up() -> None:
    bench = Bench(voters=1)
    bench.after(10_000_000)
    assert bench.replica.is_leader


def test_voters_are_told_until_they_fetch() -> None:
    bench = Bench().elect()
    told = bench.sends(BeginQuorumEpoch)
    assert [send.peer.id for send in told] == [2, 3]
    bench.respond(told[0], QuorumEpochResponse(leader_id=1, leader_epoch=1))
    bench.replica.on_request_failed(told[1], refused=False, now_ms=bench.now)
    bench.after(SETTINGS.retry_backoff_ms)
    assert [send.peer.id for send in bench.sends(BeginQuorumEpoch)] == [3]
    bench.fetched(2)
    bench.fetched(3)
    bench.after(SETTINGS.fetch_timeout_ms - 1)
    assert bench.sends(BeginQuorumEpoch) == []


def test_going_is_told_with_the_longest_log_first() -> None:
    bench = Bench().lead(2, 3)
    bench.replica.append(["a"], bench.now)
    bench.fetched(3)
    token = parked(bench.fetched(3, max_wait_ms=500))
    bench.replica.resign(bench.now)
    assert bench.replica.role == Role.RESIGNED
    farewells = bench.sends(EndQuorumEpoch)
    assert [send.peer.id for send in farewells] == [3, 2]
    request = farewells[0].request
    assert isinstance(request, EndQuorumEpoch)
    assert [key.id for key in request.preferred_candidates] == [3, 2]
    (event,) = bench.events(Responded)
    assert event.token == token and event.response.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.respond(farewells[0], QuorumEpochResponse(leader_epoch=1))
    bench.replica.on_request_failed(farewells[1], refused=False, now_ms=bench.now)
    bench.after(SETTINGS.retry_backoff_ms)
    assert [send.peer.id for send in bench.sends(EndQuorumEpoch)] == [2]


def test_a_resigned_leader_takes_part_again_after_a_while() -> None:
    bench = Bench().lead()
    bench.replica.resign(bench.now)
    bench.after(2 * SETTINGS.election_timeout_ms)
    assert bench.replica.role == Role.UNATTACHED
    bench.elect()
    assert bench.replica.epoch == 2


def test_who_stops_asks_for_no_votes() -> None:
    for bench in (Bench().lead(), Bench()):
        bench.replica.shutdown(bench.now)
        bench.after(1_000_000)
        assert bench.replica.role in (Role.RESIGNED, Role.UNATTACHED)
        assert bench.replica.epoch <= 1


def test_only_leaders_append() -> None:
    bench = Bench()
    try:
        bench.replica.append(["a"], bench.now)
    except KafkaError as error:
        assert error.code == ErrorCode.NOT_CONTROLLER
    else:
        raise AssertionError("a follower appended")


def test_the_quorum_is_described() -> None:
    bench = Bench().lead(2)
    bench.replica.append(["a"], bench.now)
    bench.after(10)
    bench.fetched(7, offset=0, epoch=0)
    described = bench.replica.describe_quorum(bench.now)
    assert (described.leader_id, described.leader_epoch, described.high_watermark) == (1, 1, 1)
    assert [(v.replica.id, v.log_end_offset) for v in described.voters] == [(1, 2), (2, 1), (3, -1)]
    assert described.voters[1].last_caught_up_ms == described.voters[1].last_fetch_ms == bench.now - 10
    (observer,) = described.observers
    assert (observer.replica, observer.log_end_offset, observer.last_caught_up_ms) == (key_of(7), 0, -1)
    assert Bench().replica.describe_quorum(0).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_has_what_was_there_at_its_last_fetch_was_caught_up_then() -> None:
    bench = Bench().lead(2, 3)
    bench.replica.append(["a"], bench.now)
    bench.fetched(2, offset=1)
    first_ms = bench.now
    bench.after(100)
    bench.replica.append(["b"], bench.now)
    bench.fetched(2, offset=2)
    assert bench.replica.describe_quorum(bench.now).voters[1].last_caught_up_ms == first_ms


def test_an_observer_that_is_gone_is_forgotten() -> None:
    bench = Bench(voters=1)
    bench.flush()
    bench.fetched(7)
    bench.after(299_000)
    assert len(bench.replica.describe_quorum(bench.now).observers) == 1
    bench.after(2_000)
    assert bench.replica.describe_quorum(bench.now).observers == ()


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("offset", [None, 999])
def test_only_so_many_replicas_are_remembered(is_static: bool, offset: int | None) -> None:
    """The id and the directory in a fetch are what its sender says; here it says another one each time."""
    bench = Bench().lead(2, 3)
    bench.fetched(7)
    for number in range(MAX_REMEMBERED + 100):
        key = key_of(3, generation=number + 1) if is_static else key_of(100 + number)
        bench.fetched(key.id, offset, key=key)
    leader = bench.replica.leader
    assert leader is not None
    assert len(leader.progress) == MAX_REMEMBERED and {key_of(2), key_of(7)} <= leader.progress.keys()
    for _ in range(FORGET_OBSERVER_MS // SETTINGS.fetch_timeout_ms + 1):
        bench.after(SETTINGS.fetch_timeout_ms)
        for node_id in (2, 3, 7):
            bench.fetched(node_id)
    assert leader.progress.keys() == {key_of(2), key_of(3), key_of(7)}


def test_two_live_nodes_with_one_id_are_noticed() -> None:
    bench = Bench().lead(2, 3)
    newcomer = key_of(3, generation=1)
    bench.after(10)
    assert response_of(bench.fetched(3, key=newcomer)).error == ErrorCode.NONE, "it may have been given a new disk"
    bench.after(10)
    bench.fetched(3)
    assert response_of(bench.fetched(3, key=newcomer)).error == ErrorCode.INCONSISTENT_VOTER_SET
    assert response_of(bench.fetched(3)).error == ErrorCode.NONE


def test_until_when_a_leader_knew_all_is_when_a_majority_fetched() -> None:
    """Behind that another may lead: the leader itself proves nothing."""
    bench = Bench(voters=5).after(0)
    bench.after(2 * SETTINGS.election_timeout_ms)
    bench.grant(by=(2, 3))
    bench.grant(by=(2, 3))
    bench.flush()
    began = bench.now
    bench.after(300).fetched(2)
    assert bench.replica.current_as_of_ms(bench.now) == began, "two of five are no majority"
    bench.after(300).fetched(3)
    assert bench.replica.current_as_of_ms(bench.now) == began + 300
    alone = Bench(voters=1)
    assert alone.replica.is_leader and alone.replica.current_as_of_ms(alone.now + 5000) == alone.now + 5000
