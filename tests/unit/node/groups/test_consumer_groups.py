"""The consumer protocol, rule by rule, on a shard without a broker."""

from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import record_type
from millstream.node.groups.core.consumer.group import GroupState, MemberState
from millstream.node.groups.core.records import RecordType, group_record
from tests.unit.node.coordination.consumer_run import REBALANCE_MS, ConsumerRun
from tests.unit.node.coordination.shard_run import message

SESSION_MS = 45_000


def refused(code: ErrorCode) -> Any:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


@pytest.fixture
def run() -> ConsumerRun:
    made = ConsumerRun()
    made.topics.add("t", 4)
    made.topics.add("u", 2)
    return made


def rows(response: dict[str, Any]) -> dict[UUID, list[int]]:
    return {row["topic_id"]: row["partitions"] for row in response["assignment"]["topic_partitions"]}


def test_the_first_member_gets_everything_at_once(run: ConsumerRun) -> None:
    response = run.join_consumer("a", "t")
    topic = run.topics.get("t")
    assert topic is not None
    assert response["member_id"] == "a"
    assert response["member_epoch"] == 1
    assert response["heartbeat_interval_ms"] == 5000
    assert rows(response) == {topic.id: [0, 1, 2, 3]}
    assert run.group.state is GroupState.STABLE


def test_a_heartbeat_that_changes_nothing_writes_nothing(run: ConsumerRun) -> None:
    run.join_consumer("a", "t")
    before = len(run.log)
    response = run.beat("a", 1)
    assert response["member_epoch"] == 1
    assert "assignment" not in response
    assert len(run.log) == before


def test_a_full_heartbeat_is_told_everything(run: ConsumerRun) -> None:
    first = run.join_consumer("a", "t")
    owned = first["assignment"]["topic_partitions"]
    response = run.beat("a", 1, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["t"], topic_partitions=owned)
    assert response["assignment"] == first["assignment"]


def test_the_server_makes_an_id_for_old_clients(run: ConsumerRun) -> None:
    response = run.join_consumer("", "t", version=0)
    assert len(response["member_id"]) == 22
    assert list(run.group.members) == [response["member_id"]]


def test_a_partition_is_given_only_when_its_owner_has_let_go(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    a.beat()
    response = b.beat()
    assert b.owned == frozenset()
    assert b.epoch == 2
    assert response["heartbeat_interval_ms"] == 1000, "who waits comes again soon"
    assert run.group.members["b"].state is MemberState.UNRELEASED
    assert run.group.state is GroupState.RECONCILING
    a.beat(revoke=False)
    assert a.epoch == 1, "it stays in its epoch until it has given up"
    assert run.group.members["a"].state is MemberState.UNREVOKED
    b.beat()
    assert b.owned == frozenset()
    a.follow()
    a.beat()
    assert a.epoch == 2
    b.beat()
    assert len(a.owned) == len(b.owned) == 2
    assert not a.owned & b.owned
    assert run.group.state is GroupState.STABLE


def test_a_member_that_leaves_frees_its_partitions(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    run.settle([a, b])
    assert b.leave() == {"member_id": "b", "member_epoch": -1}
    a.beat()
    assert len(a.owned) == 4
    a.leave()
    assert run.group.state is GroupState.EMPTY


def test_a_silent_member_is_out_after_its_session(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    run.settle([a, b])
    run.advance(SESSION_MS - 1)
    a.beat()
    run.advance(1)
    assert set(run.group.members) == {"a"}
    a.beat()
    assert len(a.owned) == 4


def test_a_member_that_does_not_let_go_in_time_is_out(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    a.beat()
    b.beat()
    a.beat(revoke=False)
    for _ in range(6):
        run.advance(REBALANCE_MS // 6)
        if "a" in run.group.members:
            a.beat(revoke=False)
        b.beat()
    assert set(run.group.members) == {"b"}
    assert len(b.owned) == 4


def test_sessions_go_on_after_a_restart(run: ConsumerRun) -> None:
    a = run.consumer("a", "t")
    a.beat()
    run.advance(SESSION_MS // 2)
    run.restart()
    run.advance(SESSION_MS - 1)
    assert set(run.group.members) == {"a"}
    run.advance(1)
    assert run.group.is_empty


def test_settings_of_the_group_count(run: ConsumerRun) -> None:
    own = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    run.shard.group_settings = lambda group_id: own
    assert run.join_consumer("a", "t")["heartbeat_interval_ms"] == 7000
    run.advance(49_999)
    assert not run.group.is_empty
    run.advance(1)
    assert run.group.is_empty


# Epochs


@pytest.mark.parametrize("epoch", [1, 3, 7])
def test_another_epoch_is_fenced(run: ConsumerRun, epoch: int) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    run.settle([a, b])
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        run.beat("b", epoch)


def test_the_epoch_before_is_taken_if_only_our_response_was_lost(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    run.settle([a, b])
    b.leave()
    a.beat(response_lost=True)
    assert run.group.members["a"].epoch == a.epoch + 1
    a.beat()
    assert len(a.owned) == 4
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        run.beat("a", a.epoch - 1)  # it does not say what it has


def test_a_fenced_member_begins_again_under_its_id(run: ConsumerRun) -> None:
    run.join_consumer("a", "t")
    response = run.join_consumer("a", "t")
    assert response["member_epoch"] == 1
    assert len(next(iter(rows(response).values()))) == 4


def test_unknown_members_and_groups(run: ConsumerRun) -> None:
    for epoch in (1, -1):
        with refused(ErrorCode.GROUP_ID_NOT_FOUND):
            run.beat("a", epoch)
    run.join_consumer("a", "t")
    for epoch in (1, -1):
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            run.beat("b", epoch)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member": ""}, ErrorCode.INVALID_REQUEST),
        ({"group": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1, "member": "", "version": 0}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(a)\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_bad_heartbeats_are_refused(run: ConsumerRun, fields: dict[str, Any], code: ErrorCode) -> None:
    given: dict[str, Any] = {
        "member": "a",
        "epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    with refused(code):
        run.beat(**{**given, **fields})
    assert run.log == []


def test_a_full_group_takes_no_one_else() -> None:
    run = ConsumerRun(group_consumer_max_size=1)
    run.topics.add("t", 1)
    run.join_consumer("a", "t")
    run.join_consumer("a", "t")
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        run.join_consumer("b", "t")


def test_nothing_changes_if_it_cannot_be_written(run: ConsumerRun) -> None:
    run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no disk")
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        run.join_consumer("a", "t")
    assert run.shard.groups == {}
    run.fail_writes = None
    run.join_consumer("a", "t")
    run.topics.add("t", 5)
    run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no disk")
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        run.beat("a", 1)
    run.fail_writes = None
    assert run.beat("a", 1)["member_epoch"] == 2, "the change of topics was not forgotten"


# Static members


def test_a_static_member_that_comes_back_keeps_its_partitions(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t", instance="one"), run.consumer("b", "t")
    run.settle([a, b])
    had, epoch = a.owned, run.group.epoch
    assert a.leave(-2) == {"member_id": "a", "member_epoch": -2}
    b.beat()
    assert not b.owned & had
    back = run.consumer("z", "t", instance="one")
    back.beat()
    assert back.owned == had
    assert run.group.epoch == epoch, "nothing had to be assigned"
    assert set(run.group.members) == {"z", "b"}
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        run.beat("a", 1, instance_id="one")
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        run.beat("a", -2, instance_id="one")


def test_a_static_member_that_stays_away_is_out(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t", instance="one"), run.consumer("b", "t")
    run.settle([a, b])
    a.leave(-2)
    run.advance(SESSION_MS - 1000)
    b.beat()
    run.advance(1000)
    b.beat()
    assert len(b.owned) == 4


def test_an_instance_can_be_there_only_once(run: ConsumerRun) -> None:
    run.join_consumer("a", "t", instance_id="one")
    with refused(ErrorCode.UNRELEASED_INSTANCE_ID):
        run.join_consumer("b", "t", instance_id="one")
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        run.beat("c", 1, instance_id="two")
    assert run.join_consumer("a", "t", instance_id="one")["member_epoch"] == 1


def test_a_static_member_can_leave_for_good(run: ConsumerRun) -> None:
    run.join_consumer("a", "t", instance_id="one")
    run.beat("a", -1, instance_id="one")
    assert run.group.is_empty
    assert run.group.static_members == {}


# Subscriptions


def test_new_partitions_are_assigned(run: ConsumerRun) -> None:
    a = run.consumer("a", "t")
    a.beat()
    run.topics.add("t", 6)
    a.beat()
    assert a.epoch == 2
    assert len(a.owned) == 6


def test_another_topic_that_no_one_reads_changes_nothing(run: ConsumerRun) -> None:
    a = run.consumer("a", "t")
    a.beat()
    run.topics.add("v", 6)
    a.beat()
    assert a.epoch == 1


def test_a_topic_may_come_later_and_go_again(run: ConsumerRun) -> None:
    a = run.consumer("a", "later")
    a.beat()
    assert a.owned == frozenset()
    run.topics.add("later", 2)
    a.beat()
    assert a.owned == {("later", 0), ("later", 1)}
    run.topics.remove("later")
    run.settle([a])
    assert a.owned == frozenset()
    run.topics.add("later", 1, UUID(int=77))
    run.settle([a])
    assert a.owned == {("later", 0)}


def test_what_is_no_longer_read_is_taken_away(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t", "u"), run.consumer("b", "t", "u")
    run.settle([a, b])
    b.topics, b.must_say = ["u"], True
    run.settle([a, b])
    assert a.owned >= {("t", n) for n in range(4)}
    assert {topic for topic, _ in b.owned} == {"u"}


def test_a_pattern_reads_what_it_matches_now_and_later(run: ConsumerRun) -> None:
    a = run.consumer("a", pattern="log-.*")
    a.beat()
    assert a.owned == frozenset()
    for name in ("log-1", "log-2", "xlog-3"):
        run.topics.add(name, 1)
    a.beat()
    assert a.owned == {("log-1", 0), ("log-2", 0)}
    assert run.group.patterns == {"log-.*": frozenset({"log-1", "log-2"})}
    run.topics.remove("log-1")
    run.settle([a])
    assert a.owned == {("log-2", 0)}
    a.pattern, a.topics, a.must_say = "", ["t"], True
    run.settle([a])
    assert {topic for topic, _ in a.owned} == {"t"}
    assert run.group.patterns == {}


def test_topics_are_matched_while_a_shard_is_loaded(run: ConsumerRun) -> None:
    a = run.consumer("a", pattern="t|log-.*")
    run.settle([a])
    run.restart()
    assert run.shard.consumer.patterns.get("t|log-.*").unknown(run.topics) == []
    run.topics.add("log-1", 1)
    run.settle([a])
    assert {topic for topic, _ in a.owned} == {"t", "log-1"}


def test_a_pattern_matches_internal_topics_as_with_kafka(run: ConsumerRun) -> None:
    run.topics.add("__consumer_offsets", 50)
    a = run.consumer("a", pattern=".*")
    run.settle([a])
    assert {topic for topic, _ in a.owned} == {"t", "u", "__consumer_offsets"}


def test_names_and_pattern_together(run: ConsumerRun) -> None:
    a = run.consumer("a", "t", pattern="u")
    a.beat()
    assert {topic for topic, _ in a.owned} == {"t", "u"}


def test_the_assignor_that_most_ask_for(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t", "u", assignor="range"), run.consumer("b", "t", "u")
    run.settle([a, b])
    assert a.owned == {("t", 0), ("t", 1), ("u", 0)}
    described = run.shard.consumer.describe("g")
    assert described["assignor_name"] == "range"
    a.assignor, b.assignor = "uniform", "uniform"
    a.must_say = b.must_say = True
    run.settle([a, b])
    assert run.shard.consumer.describe("g")["assignor_name"] == "uniform"


# Assigning not too often


def test_many_who_come_at_once_are_assigned_once() -> None:
    run = ConsumerRun(group_consumer_assignment_interval_ms=1000)
    run.topics.add("t", 20)
    consumers = [run.consumer(f"m{n}", "t") for n in range(10)]
    for each in consumers:
        response = each.beat()
    assert run.group.state is GroupState.ASSIGNING
    assert response["heartbeat_interval_ms"] == 1000
    assert (run.group.epoch, run.group.assignment_epoch) == (10, 1)
    run.advance(1000)
    run.settle(consumers)
    assert {len(each.owned) for each in consumers} == {2}
    assert run.group.epoch == run.group.assignment_epoch == 10


def test_a_member_alone_does_not_wait() -> None:
    run = ConsumerRun(group_consumer_assignment_interval_ms=1000)
    run.topics.add("t", 2)
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    a.beat()
    a.leave()
    b.beat()
    assert len(b.owned) == 2


# Offsets


def test_commits_and_fetches_know_the_member_epoch(run: ConsumerRun) -> None:
    a, b = run.consumer("a", "t"), run.consumer("b", "t")
    run.settle([a, b])

    def commit(member: str, epoch: int, version: int = 9) -> int:
        return run.commit({("t", 0): 5}, member=member, generation=epoch, version=version)["t", 0]

    assert commit("a", 2) == ErrorCode.NONE
    assert commit("a", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit("a", 1) == ErrorCode.NONE, "it has had the partition since then"
    assert commit("a", 1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit("b", 1) == commit("a", 0) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("a", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("c", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert run.committed() == {("t", 0): 5}

    def fetch(member: str | None, epoch: int) -> int:
        row = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": None}
        (wanted,) = message("offset_fetch", groups=[row]).groups
        return int(run.shard.offsets.fetch(wanted, 9)["error_code"])

    assert fetch("a", 2) == fetch(None, -1) == ErrorCode.NONE
    assert fetch("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("c", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    a.leave()
    b.leave()
    assert commit("", -1) == ErrorCode.NONE, "an admin may, once the group is empty"


def test_a_group_of_offsets_alone_becomes_a_consumer_group(run: ConsumerRun) -> None:
    assert run.commit({("t", 1): 7})["t", 1] == ErrorCode.NONE
    run.join_consumer("a", "t")
    assert run.committed() == {("t", 1): 7}
    run.restart()
    assert run.group.members
    assert run.committed() == {("t", 1): 7}


def test_offsets_of_a_topic_that_is_read_are_not_deleted(run: ConsumerRun) -> None:
    run.join_consumer("a", "t", subscribed_topic_regex="u")
    assert run.group.is_subscribed_to("t")
    assert run.group.is_subscribed_to("u")
    assert not run.group.is_subscribed_to("v")


def test_a_group_is_deleted_when_it_is_empty(run: ConsumerRun) -> None:
    a = run.consumer("a", "t", pattern="u")
    a.beat()
    run.commit({("t", 1): 7}, member="a", generation=1)
    with refused(ErrorCode.NON_EMPTY_GROUP):
        run.run(lambda shard, now_ms: shard.delete_group("g", now_ms))
    a.leave()
    run.run(lambda shard, now_ms: shard.delete_group("g", now_ms))
    assert run.shard.groups == {}
    run.compact()
    assert all(value is None for _, value in run.log)
    run.restart()
    assert run.shard.groups == {}
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        run.shard.consumer.describe("g")


# Views


def test_describe_shows_members_and_assignments(run: ConsumerRun) -> None:
    topic = run.topics.get("t")
    assert topic is not None
    run.join_consumer("a", "t", instance_id="one", rack_id="r", subscribed_topic_regex="nothing")
    partitions = {"topic_partitions": [{"topic_id": topic.id, "topic_name": "t", "partitions": [0, 1, 2, 3]}]}
    assert run.shard.consumer.describe("g") == {
        "group_id": "g",
        "group_state": "Stable",
        "group_epoch": 1,
        "assignment_epoch": 1,
        "assignor_name": "uniform",
        "members": [
            {
                "member_id": "a",
                "instance_id": "one",
                "rack_id": "r",
                "member_epoch": 1,
                "client_id": "client",
                "client_host": "/127.0.0.1",
                "subscribed_topic_names": ["t"],
                "subscribed_topic_regex": "nothing",
                "assignment": partitions,
                "target_assignment": partitions,
                "member_type": 1,
            }
        ],
    }
    row = {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "group_type": "consumer"}
    assert run.shard.list_groups() == [row]
    assert run.shard.list_groups(types=["classic"]) == run.shard.list_groups(states=["empty"]) == []


# Logs that others wrote


def test_the_record_of_topics_that_older_kafka_wrote_is_taken_back(run: ConsumerRun) -> None:
    key: dict[str, Any] = {"group_id": "g"}
    run.log.append(group_record(RecordType.CONSUMER_GROUP_METADATA, key, {"epoch": 5}))
    run.log.append(group_record(RecordType.CONSUMER_GROUP_PARTITION_METADATA, key, {"topics": []}))
    run.restart()
    assert run.join_consumer("a", "t")["member_epoch"] == 6
    last = {record_type(key): value for key, value in run.log}
    assert last[RecordType.CONSUMER_GROUP_PARTITION_METADATA] is None
    assert not run.group.has_old_partition_metadata


def test_a_state_of_a_newer_version_is_fenced(run: ConsumerRun) -> None:
    run.join_consumer("a", "t")
    member = run.group.members["a"].assignment_value() | {"state": 99}
    key = {"group_id": "g", "member_id": "a"}
    run.log.append(group_record(RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key, member))
    run.restart()
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        run.beat("a", 1)
    run.join_consumer("a", "t")
    assert run.group.state is GroupState.STABLE
