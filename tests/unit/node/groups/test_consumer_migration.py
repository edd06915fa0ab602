"""Groups that move between the classic and the consumer protocol while they run, in both directions."""

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.groups.core.classic.group import ClassicGroup
from millstream.node.groups.core.consumer.group import ConsumerGroup, GroupState
from tests.unit.node.coordination.classic_consumer import ClassicConsumer, assignment, partitions_of, subscription
from tests.unit.node.coordination.consumer_run import Consumer, ConsumerRun

Anyone = Consumer | ClassicConsumer
ALL = {("t", number) for number in range(6)}


def refused(code: ErrorCode) -> Any:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


@pytest.fixture
def run() -> ConsumerRun:
    made = ConsumerRun(group_initial_rebalance_delay_ms=0)
    made.topics.add("t", 6)
    return made


def turn(each: Anyone) -> None:
    if isinstance(each, Consumer):
        each.beat()
    else:
        each.turn()


def check_exclusive(everyone: Sequence[Anyone]) -> None:
    for one, other in combinations(everyone, 2):
        assert not one.owned & other.owned, (one.id, one.owned, other.id, other.owned)


def settle(run: ConsumerRun, *everyone: Anyone, rounds: int = 20) -> None:
    """All live on for a while; at no time do two read the same partition, and in the end all are read, evenly."""
    for _ in range(rounds):
        for each in everyone:
            turn(each)
            # A cooperative leader of ours trusts what members say they own; while a group changes its kind they may
            # not have said it yet. What counts is the broker's word, where the broker assigns.
            if isinstance(run.shard.groups.get("g"), ConsumerGroup):
                check_exclusive(everyone)
        run.advance(1000)
    check_exclusive(everyone)
    assert set().union(*(each.owned for each in everyone)) == ALL
    sizes = [len(each.owned) for each in everyone]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_group_goes_over_and_back_member_by_member(run: ConsumerRun, cooperative: bool) -> None:
    old = [ClassicConsumer(run, "t", cooperative=cooperative) for _ in range(3)]
    settle(run, *old)
    assert isinstance(run.shard.groups["g"], ClassicGroup)
    run.commit({("t", 0): 5}, member=old[0].id, generation=old[0].generation)
    new: list[Anyone] = [run.consumer(f"new{number}", "t") for number in range(3)]
    everyone: list[Anyone] = [*old]
    for leaving, coming in zip(old, new, strict=True):  # a rolling restart
        everyone.append(coming)
        settle(run, *everyone)
        assert run.group.state is GroupState.STABLE
        leaving.leave()
        everyone.remove(leaving)
        settle(run, *everyone)
    assert all(member.classic is None for member in run.group.members.values())
    run.restart()
    for number in range(3):
        back = ClassicConsumer(run, "t", cooperative=cooperative)
        everyone.append(back)
        settle(run, *everyone)
        gone = new[number]
        assert isinstance(gone, Consumer)
        gone.leave()
        everyone.remove(gone)
        settle(run, *everyone)
    assert isinstance(run.shard.groups["g"], ClassicGroup)
    assert run.committed() == {("t", 0): 5}
    run.restart()
    assert isinstance(run.shard.groups["g"], ClassicGroup)
    settle(run, *everyone)


def test_members_that_wait_are_told_to_come_again(run: ConsumerRun) -> None:
    first, second = ClassicConsumer(run, "t"), ClassicConsumer(run, "t")
    first.turn()
    run.advance(1)
    first.turn()
    second.turn()
    assert second.is_waiting
    new = run.consumer("new", "t")
    new.beat()
    second.turn()
    assert not second.is_waiting
    settle(run, first, second, new)


def test_who_waits_hears_of_the_change_only_when_it_is_written(run: ConsumerRun) -> None:
    first = run.join_fully(protocols=(("range", subscription("t")),))
    run.advance(1)
    member = first.value["member_id"]
    second = run.join_fully(protocols=(("range", subscription("t")),))  # waits for the first
    assert not second.resolved
    with refused(ErrorCode.INVALID_REGULAR_EXPRESSION):
        run.join_consumer("new", subscribed_topic_regex="(")
    assert not second.resolved
    run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "full")
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        run.join_consumer("new", "t")
    run.fail_writes = None
    group = run.shard.groups["g"]
    assert not second.resolved and isinstance(group, ClassicGroup) and member in group.members
    run.join_consumer("new", "t")
    assert second.value["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.value["member_id"] in run.group.members


def test_the_state_survives_a_restart_at_every_point(run: ConsumerRun) -> None:
    old, new = ClassicConsumer(run, "t", cooperative=True), run.consumer("new", "t")
    settle(run, old)
    for _ in range(8):
        turn(new)
        run.restart()
        turn(old)
        run.compact()
        run.restart()
        check_exclusive([old, new])
    settle(run, old, new)
    new.leave()
    run.restart()
    settle(run, old)
    assert isinstance(run.shard.groups["g"], ClassicGroup)


def test_the_last_new_member_that_dies_ends_the_consumer_group(run: ConsumerRun) -> None:
    old, new = ClassicConsumer(run, "t"), run.consumer("new", "t")
    settle(run, old)
    settle(run, old, new)
    for _ in range(60):  # it is silent for longer than its session
        turn(old)
        run.advance(1000)
    settle(run, old)
    assert isinstance(run.shard.groups["g"], ClassicGroup)


def test_a_classic_member_that_dies_is_out_after_its_own_session(run: ConsumerRun) -> None:
    old, new = ClassicConsumer(run, "t", session_ms=10_000), run.consumer("new", "t")
    settle(run, old)
    settle(run, old, new)
    for _ in range(11):
        turn(new)
        run.advance(1000)
    settle(run, new)
    assert set(run.group.members) == {"new"}


def test_a_classic_member_that_does_not_join_again_is_out(run: ConsumerRun) -> None:
    old, new = ClassicConsumer(run, "t"), run.consumer("new", "t")
    settle(run, old)
    new.beat()
    for _ in range(31):  # its rebalance time-out; its heartbeats go on all the while
        if old.id in run.group.members:
            with refused(ErrorCode.REBALANCE_IN_PROGRESS):
                run.heartbeat(old.id, old.generation)
        run.advance(1000)
        new.beat()
    assert set(run.group.members) == {"new"}
    settle(run, new)


def test_static_members_keep_their_partitions_over_the_change(run: ConsumerRun) -> None:
    old = [ClassicConsumer(run, "t", instance=f"i{number}") for number in range(2)]
    settle(run, *old)
    had = [each.owned for each in old]
    new = [run.consumer(f"new{number}", "t", instance=f"i{number}") for number in range(2)]
    new[0].beat()  # the old one does not leave: it is static, and its process was replaced
    assert new[0].owned == had[0]
    settle(run, new[0], old[1])
    new[1].beat()
    settle(run, *new)
    assert [each.owned for each in new] == had
    back = [ClassicConsumer(run, "t", instance=f"i{number}") for number in range(2)]
    new[0].leave(-2)
    settle(run, back[0], new[1])
    new[1].leave(-2)
    settle(run, *back)
    assert isinstance(run.shard.groups["g"], ClassicGroup), "the last one came back with the old protocol"
    run.restart()
    settle(run, *back)


def test_new_partitions_reach_classic_members(run: ConsumerRun) -> None:
    old, new = ClassicConsumer(run, "t"), run.consumer("new", "t")
    settle(run, old)
    settle(run, old, new)
    run.topics.add("t", 8)
    for _ in range(8):
        old.turn()
        new.beat()
    assert len(old.owned) == len(new.owned) == 4


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy_decides_which_migration_is_allowed(policy: str, up: bool, down: bool) -> None:
    run = ConsumerRun(group_initial_rebalance_delay_ms=0, group_consumer_migration_policy=policy)
    run.topics.add("t", 6)
    old = ClassicConsumer(run, "t")
    settle(run, old)
    if up:
        settle(run, old, run.consumer("new", "t"))
    else:
        with refused(ErrorCode.GROUP_ID_NOT_FOUND):
            run.join_consumer("new", "t")
    run = ConsumerRun(group_initial_rebalance_delay_ms=0, group_consumer_migration_policy=policy)
    run.topics.add("t", 6)
    new, old = run.consumer("new", "t"), ClassicConsumer(run, "t")
    settle(run, new)
    settle(run, new, old)
    new.leave()
    settle(run, old)
    assert isinstance(run.shard.groups["g"], ClassicGroup if down else ConsumerGroup)


def test_an_empty_group_takes_whatever_comes(run: ConsumerRun) -> None:
    run.commit({("t", 0): 5})
    for _ in range(2):
        old = ClassicConsumer(run, "t")
        settle(run, old)
        old.leave()
        new = run.consumer("new", "t")
        settle(run, new)
        assert isinstance(run.shard.groups["g"], ConsumerGroup)
        new.leave()
        run.restart()
    old = ClassicConsumer(run, "t")
    settle(run, old)
    assert isinstance(run.shard.groups["g"], ClassicGroup)
    assert run.committed() == {("t", 0): 5}
    run.compact()
    run.restart()
    assert isinstance(run.shard.groups["g"], ClassicGroup)


def test_groups_that_cannot_go_over(run: ConsumerRun) -> None:
    response = run.join_fully(kind="connect", protocols=(("default", b""),))
    assert not isinstance(response, dict)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        run.join_consumer("new", "t")
    run = ConsumerRun(group_initial_rebalance_delay_ms=0)
    run.join_fully(protocols=(("range", b"nonsense"),))
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        run.join_consumer("new", "t")


@pytest.mark.parametrize(("protocol", "may"), [("cooperative-sticky", True), ("stream", False)])
def test_what_an_own_assignor_tells_its_members_is_not_lost(run: ConsumerRun, protocol: str, may: bool) -> None:
    joining = run.join_fully(protocols=((protocol, subscription("t")),))
    run.advance(1)
    member = joining.value["member_id"]
    told = assignment(frozenset(ALL))[:-4] + b"\x00\x00\x00\x01x"
    run.sync(member, 1, {member: told})
    if may:
        assert run.join_consumer("new", "t")["member_epoch"] == 2
    else:
        with refused(ErrorCode.GROUP_ID_NOT_FOUND):
            run.join_consumer("new", "t")


def test_requests_of_the_old_protocol_are_checked(run: ConsumerRun) -> None:
    new, old = run.consumer("new", "t"), ClassicConsumer(run, "t")
    settle(run, new)
    settle(run, new, old)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        run.join(kind="connect")
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        run.join(protocols=(("another", subscription("t")),))
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        run.join(member="known", protocols=(("range", b""),))
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        run.join(member="x" * 40_000, protocols=(("range", subscription("t")),))
    for operation in (run.heartbeat, run.sync):
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            operation("nobody", 1)
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            operation("new", new.epoch)
        with refused(ErrorCode.ILLEGAL_GENERATION):
            operation(old.id, old.generation + 1)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        run.sync(old.id, old.generation, protocol_name="another")
    assert [row["error_code"] for row in run.leave(("nobody", None), ("new", None))] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    codes = run.commit({("t", 0): 5}, member=old.id, generation=old.generation - 1)
    assert codes["t", 0] == ErrorCode.ILLEGAL_GENERATION
    assert run.commit({("t", 0): 5}, member=old.id, generation=old.generation, version=8)["t", 0] == ErrorCode.NONE
    kinds = {row["member_id"]: row["member_type"] for row in run.shard.consumer.describe("g")["members"]}
    assert kinds == {"new": 1, old.id: 0}


def test_assignments_of_members_are_encoded_and_decoded() -> None:
    some = frozenset({("t", 1), ("t", 2), ("u", 0)})
    assert partitions_of(assignment(some)) == some


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_with_both_protocols(seed: int) -> None:
    """Members of both kinds come, go and die, the broker restarts; in the end everything is read by one of them."""
    random = Random(seed)
    run = ConsumerRun(seed, group_initial_rebalance_delay_ms=0)
    run.topics.add("t", 6)
    everyone: list[Anyone] = []
    cooperative = random.random() < 0.5
    for number in range(80):
        action = random.random()
        if action < 0.12 and len(everyone) < 4:
            if random.random() < 0.5:
                everyone.append(run.consumer(f"new{number}", "t"))
            else:
                everyone.append(ClassicConsumer(run, "t", cooperative=cooperative))
            turn(everyone[-1])
        elif action < 0.18 and everyone:
            gone = everyone.pop(random.randrange(len(everyone)))
            if gone.id in getattr(run.shard.groups["g"], "members", {}) and random.random() < 0.7:
                gone.leave()
        elif action < 0.22:
            if all(not isinstance(each, ClassicConsumer) or not each.is_waiting for each in everyone):
                run.compact()
                run.restart()
        else:
            for each in everyone:
                turn(each)
            run.advance(random.choice([100, 1000, 3000]))
        if isinstance(group := run.shard.groups.get("g"), ConsumerGroup):
            owners = [(t, n) for m in group.members.values() for t, ns in {**m.assigned}.items() for n in ns]
            assert len(owners) == len(set(owners))
    if everyone:
        for _ in range(70):  # the dead run out
            for each in everyone:
                turn(each)
            run.advance(1000)
        settle(run, *everyone)
