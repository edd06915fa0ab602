"""The classic protocol, request by request."""

from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import DeferredResponse
from millstream.node.groups.core.classic.group import ClassicGroup, GroupState
from tests.unit.node.coordination.shard_run import ShardRun

DELAY_MS = 3000
SUBSCRIBED_TO_T = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"


def value(waiting: Any) -> dict[str, Any]:
    """What a deferred response was resolved with."""
    assert isinstance(waiting, DeferredResponse) and waiting.resolved and waiting.value is not None
    response: dict[str, Any] = waiting.value
    return response


def group_of(run: ShardRun, group_id: str = "g") -> ClassicGroup:
    group = run.shard.groups[group_id]
    assert isinstance(group, ClassicGroup)
    return group


def stable_group(run: ShardRun, count: int = 1, **options: Any) -> list[str]:
    """A group with so many members, each assigned its own number; returns their ids, the leader's first."""
    joins = [run.join_fully(**options) for _ in range(count)]
    while not joins[0].resolved:
        run.advance(DELAY_MS)
    responses = [value(waiting) for waiting in joins]
    ids = [response["member_id"] for response in responses]
    leader, generation = responses[0]["leader"], responses[0]["generation_id"]
    syncing = {member: run.sync(member, generation) for member in ids if member != leader}
    run.sync(leader, generation, {member: b"%d" % at for at, member in enumerate(ids)})
    assert all(waiting.resolved for waiting in syncing.values())
    assert group_of(run).state is GroupState.STABLE
    return [leader, *(member for member in ids if member != leader)]


def refused(call: Any, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        call()
    assert caught.value.code == code


def test_first_join_needs_a_member_id() -> None:
    run = ShardRun()
    first = run.join()
    assert first["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    assert first["member_id"].startswith("client-")
    waiting = run.join(member=first["member_id"])
    assert not waiting.resolved
    run.advance(DELAY_MS)
    response = value(waiting)
    assert response["generation_id"] == 1 and response["leader"] == response["member_id"] == first["member_id"]
    assert [row["member_id"] for row in response["members"]] == [first["member_id"]]


def test_old_versions_join_at_once() -> None:
    run = ShardRun()
    waiting = run.join(version=3)
    run.advance(DELAY_MS)
    assert value(waiting)["error_code"] == ErrorCode.NONE


def test_a_member_id_that_no_one_joins_with_is_forgotten() -> None:
    run = ShardRun()
    first = run.join(session_ms=10_000)
    assert "g" in run.shard.groups
    run.advance(10_000)
    assert "g" not in run.shard.groups and not run.log
    refused(lambda: run.join(member=first["member_id"]), ErrorCode.UNKNOWN_MEMBER_ID)


def test_the_first_rebalance_waits_for_more_and_not_forever() -> None:
    run = ShardRun()
    joins = [run.join_fully(rebalance_ms=10_000)]
    for _ in range(6):
        run.advance(2000)
        if not joins[0].resolved:
            joins.append(run.join_fully(rebalance_ms=10_000))
    run.advance(DELAY_MS)
    assert all(waiting.resolved for waiting in joins)
    assert {value(waiting)["generation_id"] for waiting in joins} == {1}
    assert len(joins) == 5  # after ten seconds it was over, although more kept coming


def test_a_hundred_members_at_once_are_one_generation() -> None:
    run = ShardRun()
    assert len(stable_group(run, 100)) == 100
    assert group_of(run).generation == 1


def test_a_hundred_members_at_once_without_delay_are_two_generations() -> None:
    run = ShardRun(group_initial_rebalance_delay_ms=0)
    (first,) = stable_group(run)
    joins = [run.join_fully() for _ in range(99)]
    refused(lambda: run.heartbeat(first, 1), ErrorCode.REBALANCE_IN_PROGRESS)
    run.join(member=first)
    assert {value(waiting)["generation_id"] for waiting in joins} == {2}


def test_a_slow_member_does_not_stop_heartbeats_of_others() -> None:
    run = ShardRun()
    leader, other = stable_group(run, 2, session_ms=10_000, rebalance_ms=60_000)
    new = run.join_fully(rebalance_ms=60_000)
    for _ in range(10):  # `other` processes a batch, and only its heartbeats go on
        run.advance(5000)
        refused(lambda: run.heartbeat(other, 1), ErrorCode.REBALANCE_IN_PROGRESS)
        refused(lambda: run.heartbeat(leader, 1), ErrorCode.REBALANCE_IN_PROGRESS)
    assert {leader, other} < set(group_of(run).members)
    joined = run.join(member=leader)
    run.advance(10_000)  # the rebalance time-out is over: `other` is out, the rest goes on
    assert value(joined)["generation_id"] == value(new)["generation_id"] == 2
    assert other not in group_of(run).members


def test_assignments_reach_those_who_ask_later() -> None:
    run = ShardRun()
    leader, other = stable_group(run, 2)
    assert run.sync(other, 1)["assignment"] in (b"0", b"1")
    assert run.heartbeat(leader, 1)["error_code"] == ErrorCode.NONE


def test_members_the_leader_forgot_get_nothing() -> None:
    run = ShardRun()
    joins = [run.join_fully(), run.join_fully()]
    run.advance(DELAY_MS * 2)
    leader = value(joins[0])["leader"]
    (other,) = {value(waiting)["member_id"] for waiting in joins} - {leader}
    waiting = run.sync(other, 1)
    run.sync(leader, 1, {leader: b"all", "stranger": b"x"})
    assert value(waiting)["assignment"] == b""


def test_rejoining_unchanged_moves_nothing_unless_it_is_the_leader() -> None:
    run = ShardRun()
    leader, other = stable_group(run, 2)
    response = run.join(member=other)
    assert response["generation_id"] == 1 and response["members"] == [] and response["leader"] == leader
    assert group_of(run).state is GroupState.STABLE
    run.join(member=leader)
    assert group_of(run).state is GroupState.PREPARING_REBALANCE


def test_rejoining_with_other_metadata_rebalances() -> None:
    run = ShardRun()
    leader, other = stable_group(run, 2)
    waiting = run.join(member=other, protocols=[("range", b"other topics")])
    assert group_of(run).state is GroupState.PREPARING_REBALANCE
    run.join(member=leader)
    assert value(waiting)["generation_id"] == 2


def test_joining_again_before_the_assignment_gets_the_same_response() -> None:
    run = ShardRun()
    joins = [run.join_fully(), run.join_fully()]
    run.advance(DELAY_MS * 2)
    leader = value(joins[0])["leader"]
    again = run.join(member=leader)
    assert again["generation_id"] == 1 and len(again["members"]) == 2
    assert group_of(run).state is GroupState.COMPLETING_REBALANCE


def test_one_who_joins_before_the_assignment_sends_all_back() -> None:
    run = ShardRun()
    joins = [run.join_fully(), run.join_fully()]
    run.advance(DELAY_MS * 2)
    leader = value(joins[0])["leader"]
    (other,) = {value(waiting)["member_id"] for waiting in joins} - {leader}
    waiting = run.sync(other, 1)
    run.join_fully()
    assert value(waiting)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    refused(lambda: run.sync(leader, 1, {}), ErrorCode.REBALANCE_IN_PROGRESS)


def test_members_that_never_ask_for_their_assignment_are_put_out() -> None:
    run = ShardRun()
    joins = [run.join_fully(session_ms=60_000, rebalance_ms=5000) for _ in range(2)]
    run.advance(DELAY_MS * 2)
    leader = value(joins[0])["leader"]
    (other,) = {value(waiting)["member_id"] for waiting in joins} - {leader}
    run.sync(leader, 1, {leader: b"x"})
    run.advance(5000)
    assert other not in group_of(run).members
    assert group_of(run).state is GroupState.PREPARING_REBALANCE


def test_sessions_end_and_the_group_goes_on() -> None:
    run = ShardRun()
    _, other = stable_group(run, 2, session_ms=10_000)
    run.advance(6000)
    run.heartbeat(other, 1)
    run.advance(6000)
    assert list(group_of(run).members) == [other]
    assert group_of(run).state is GroupState.PREPARING_REBALANCE
    response = run.join(member=other)
    assert response["leader"] == other and response["generation_id"] == 2


def test_a_commit_is_a_sign_of_life() -> None:
    run = ShardRun()
    run.topics.add("t", 1)
    (member,) = stable_group(run, session_ms=10_000)
    for _ in range(5):
        run.advance(6000)
        assert run.commit({("t", 0): 1}, member=member, generation=1) == {("t", 0): ErrorCode.NONE}
    assert member in group_of(run).members


def test_when_all_leave_the_group_is_empty_and_remembers_its_generation() -> None:
    run = ShardRun()
    leader, other = stable_group(run, 2)
    rows = run.leave((leader, None), (other, None), ("stranger", None))
    assert [row["error_code"] for row in rows] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert group_of(run).state is GroupState.EMPTY and group_of(run).generation == 2
    run.restart()
    assert group_of(run).state is GroupState.EMPTY and group_of(run).generation == 2
    assert group_of(run).protocol_type == "consumer"


def test_a_stable_group_survives_a_restart() -> None:
    run = ShardRun()
    leader, other = stable_group(run, 2, session_ms=10_000)
    run.restart()
    assert run.sync(other, 1)["assignment"] == run.sync(other, 1)["assignment"] != b""
    assert run.heartbeat(leader, 1)["error_code"] == ErrorCode.NONE
    run.advance(9000)
    run.heartbeat(leader, 1)
    run.advance(2000)
    assert list(group_of(run).members) == [leader]


def test_a_write_that_fails_sends_everyone_back() -> None:
    run = ShardRun()
    joins = [run.join_fully(), run.join_fully()]
    run.advance(DELAY_MS * 2)
    leader = value(joins[0])["leader"]
    (other,) = {value(waiting)["member_id"] for waiting in joins} - {leader}
    waiting = run.sync(other, 1)
    run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "disk full")
    with pytest.raises(KafkaError):
        run.sync(leader, 1, {leader: b"x"})
    assert value(waiting)["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(run).state is GroupState.PREPARING_REBALANCE
    run.fail_writes = None
    rejoined = run.join(member=leader)
    assert run.join(member=other)["generation_id"] == value(rejoined)["generation_id"] == 2


# Protocols


def test_the_protocol_most_like_best_wins() -> None:
    run = ShardRun()
    joins = [
        run.join_fully(protocols=[("a", b"1"), ("b", b"2")]),
        run.join_fully(protocols=[("b", b"3"), ("a", b"4"), ("c", b"")]),
        run.join_fully(protocols=[("b", b"5"), ("a", b"6")]),
    ]
    run.advance(DELAY_MS * 2)
    leader = next(value(waiting) for waiting in joins if value(waiting)["members"])
    assert leader["protocol_name"] == "b"
    assert sorted(row["metadata"] for row in leader["members"]) == [b"2", b"3", b"5"]


def test_protocols_must_fit() -> None:
    run = ShardRun()
    stable_group(run, protocols=[("a", b""), ("b", b"")])
    refused(lambda: run.join(protocols=[("c", b"")]), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    refused(lambda: run.join(protocols=[("a", b"")], kind="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    refused(lambda: run.join("new", protocols=[]), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    refused(lambda: run.join("new", kind=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert "new" not in run.shard.groups


def test_sync_with_another_protocol_is_refused() -> None:
    run = ShardRun()
    (member,) = stable_group(run)
    refused(lambda: run.sync(member, 1, protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    refused(lambda: run.sync(member, 1, protocol_name="sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


# Limits


@pytest.mark.parametrize("session_ms", [5999, 1_800_001, -1])
def test_session_timeouts_have_bounds(session_ms: int) -> None:
    refused(lambda: ShardRun().join(session_ms=session_ms), ErrorCode.INVALID_SESSION_TIMEOUT)


def test_a_full_group_takes_no_more() -> None:
    run = ShardRun(group_max_size=2)
    members = stable_group(run, 2)
    refused(run.join, ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert run.join(member=members[1])["error_code"] == ErrorCode.NONE


def test_a_group_that_is_too_large_after_a_restart_shrinks() -> None:
    run = ShardRun()
    members = stable_group(run, 3)
    smaller = ShardRun(group_max_size=2)
    smaller.log = run.log
    smaller.restart()
    assert group_of(smaller).state is GroupState.PREPARING_REBALANCE
    smaller.join(member=members[0])
    smaller.join(member=members[1])
    refused(lambda: smaller.join(member=members[2]), ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert set(group_of(smaller).members) == set(members[:2])


def test_names_must_fit_into_the_record() -> None:
    run = ShardRun()
    refused(lambda: run.join(instance="x" * 9000), ErrorCode.INVALID_REQUEST)
    refused(lambda: run.join(protocols=[("x" * 9000, b"")]), ErrorCode.INVALID_REQUEST)
    refused(lambda: run.join(kind="x" * 9000), ErrorCode.INVALID_REQUEST)
    long_name = "\U0001f40b" * 8000
    (member,) = stable_group(run, client_id=long_name, protocols=[(long_name, b"")], kind=long_name)
    assert len(member) < 300
    run.restart()
    assert group_of(run).members[member].client.client_id == long_name


# Static members


def static_group(run: ShardRun, **options: Any) -> tuple[str, str]:
    """Two static members, "one" (the leader) and "two"; their member ids."""
    joins = [run.join(instance="one", **options), run.join(instance="two", **options)]
    run.advance(DELAY_MS * 2)
    one, two = (value(waiting)["member_id"] for waiting in joins)
    waiting = run.sync(two, 1, group_instance_id="two")
    run.sync(one, 1, {one: b"1", two: b"2"}, group_instance_id="one")
    assert value(waiting)["assignment"] == b"2"
    return one, two


def test_a_static_member_that_returns_moves_nothing() -> None:
    run = ShardRun()
    one, two = static_group(run)
    written = len(run.log)
    response = run.join(instance="two")
    assert response["error_code"] == ErrorCode.NONE and response["generation_id"] == 1 and response["member_id"] != two
    assert response["leader"] == one and response["members"] == []
    assert group_of(run).state is GroupState.STABLE
    assert run.sync(response["member_id"], 1, group_instance_id="two")["assignment"] == b"2"
    assert len(run.log) == written + 1
    run.restart()
    assert run.sync(response["member_id"], 1, group_instance_id="two")["assignment"] == b"2"
    assert run.heartbeat(one, 1, instance="one")["error_code"] == ErrorCode.NONE


def test_a_static_leader_that_returns_does_not_assign_again() -> None:
    run = ShardRun()
    static_group(run)
    response = run.join(instance="one")
    assert (
        response["skip_assignment"] is True
        and response["leader"] == response["member_id"]
        and len(response["members"]) == 2
    )
    again = run.join(instance="one", version=8)
    assert again["leader"] == response["member_id"] != again["member_id"] and again["members"] == []


def test_whoever_uses_the_old_member_id_is_fenced() -> None:
    run = ShardRun()
    _, two = static_group(run)
    new = run.join(instance="two")["member_id"]
    refused(lambda: run.heartbeat(two, 1, instance="two"), ErrorCode.FENCED_INSTANCE_ID)
    refused(lambda: run.sync(two, 1, group_instance_id="two"), ErrorCode.FENCED_INSTANCE_ID)
    refused(lambda: run.join(member=two, instance="two"), ErrorCode.FENCED_INSTANCE_ID)
    refused(lambda: run.heartbeat(two, 1), ErrorCode.UNKNOWN_MEMBER_ID)
    run.topics.add("t", 1)
    codes = run.commit({("t", 0): 1}, member=two, generation=1, instance="two")
    assert codes == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}
    assert run.leave((two, "two"))[0]["error_code"] == ErrorCode.FENCED_INSTANCE_ID
    assert run.heartbeat(new, 1, instance="two")["error_code"] == ErrorCode.NONE


def test_a_static_member_that_waits_is_told_when_another_takes_over() -> None:
    run = ShardRun()
    first = run.join(instance="one")
    second = run.join(instance="one")
    assert value(first)["error_code"] == ErrorCode.FENCED_INSTANCE_ID
    run.advance(DELAY_MS * 2)
    assert value(second)["error_code"] == ErrorCode.NONE


def test_a_static_member_is_out_when_its_session_ends() -> None:
    run = ShardRun()
    one, _ = static_group(run, session_ms=10_000)
    run.advance(6000)
    run.heartbeat(one, 1, instance="one")
    run.advance(6000)
    assert list(group_of(run).static_members) == ["one"]
    assert group_of(run).state is GroupState.PREPARING_REBALANCE


def test_static_members_stay_through_a_rebalance_they_miss() -> None:
    run = ShardRun()
    one, two = static_group(run, session_ms=60_000, rebalance_ms=5000)
    run.join(member=one, instance="one", session_ms=60_000, rebalance_ms=5000)
    run.advance(5000)
    assert group_of(run).generation == 2 and set(group_of(run).members) == {one, two}


def test_leaving_by_instance_id() -> None:
    run = ShardRun()
    one, _ = static_group(run)
    rows = run.leave(("", "two"), ("", "three"), ("", None))
    assert [row["error_code"] for row in rows] == [0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(group_of(run).members) == [one]


def test_a_returning_static_member_with_another_protocol_rebalances() -> None:
    run = ShardRun()
    one, _ = static_group(run, protocols=[("a", b""), ("b", b"")])
    waiting = run.join(instance="two", protocols=[("b", b"")])
    assert isinstance(waiting, DeferredResponse) and group_of(run).state is GroupState.PREPARING_REBALANCE
    run.join(member=one, instance="one", protocols=[("a", b""), ("b", b"")])
    assert value(waiting)["protocol_name"] == "b"


# Seen from outside


def test_groups_are_described_and_listed() -> None:
    run = ShardRun()
    run.topics.add("t", 1)
    run.commit({("t", 0): 1}, group="simple")
    (member,) = stable_group(run)
    described = run.shard.classic.describe("g", 6)
    assert described["group_state"] == "Stable" and described["protocol_data"] == "range"
    assert [row["member_id"] for row in described["members"]] == [member]
    assert run.shard.classic.describe("simple", 6)["group_state"] == "Empty"
    assert run.shard.classic.describe("none", 5) == {"group_id": "none", "group_state": "Dead"}
    assert run.shard.classic.describe("none", 6)["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert [row["group_id"] for row in run.shard.list_groups({"stable"})] == ["g"]
    assert [row["group_id"] for row in run.shard.list_groups((), {"classic"})] == ["simple", "g"]
    assert run.shard.list_groups((), {"consumer"}) == []


def test_groups_with_members_cannot_be_deleted() -> None:
    run = ShardRun()
    run.topics.add("t", 1)
    (member,) = stable_group(run)
    run.commit({("t", 0): 1}, member=member, generation=1)
    refused(lambda: run.run(lambda shard, now: shard.delete_group("g", now)), ErrorCode.NON_EMPTY_GROUP)
    run.leave((member, None))
    run.run(lambda shard, now: shard.delete_group("g", now))
    assert not run.shard.groups and not run.committed()
    refused(lambda: run.run(lambda shard, now: shard.delete_group("g", now)), ErrorCode.GROUP_ID_NOT_FOUND)
    run.restart()
    assert not run.shard.groups
