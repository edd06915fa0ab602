"""Streams groups, step by step: heartbeats, tasks, epochs, sessions, offsets, types of groups."""

from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import CoordinatorResult, Topic
from millstream.node.groups.core.records import RecordType, read_key
from millstream.node.groups.core.streams.group import GroupState, MemberState, StreamsGroup
from millstream.node.groups.core.streams.topology import StatusCode
from tests.unit.node.coordination.shard_run import message
from tests.unit.node.coordination.streams_run import (
    COUNTS,
    INTERNAL,
    REBALANCE_MS,
    StreamsMember,
    StreamsRun,
    subtopology,
    topology,
)

SESSION_MS = 45_000


@pytest.fixture
def run() -> StreamsRun:
    made = StreamsRun()
    for name in ("words", *INTERNAL):
        made.topics.add(name, 4)
    return made


def members(run: StreamsRun, *names: str) -> list[StreamsMember]:
    made = [StreamsMember(run, name) for name in names]
    run.settle(made)
    return made


def test_one_member_gets_all_tasks(run: StreamsRun) -> None:
    response = run.join_streams("m1").response
    assert response["member_epoch"] == 2, "as in Kafka, a group starts with epoch 1, and its first member with 2"
    assert [row["partitions"] for row in response["active_tasks"]] == [[0, 1, 2, 3]] * 2
    assert response["standby_tasks"] == response["warmup_tasks"] == response["status"] == []
    assert run.group.state is GroupState.STABLE
    assert run.beat("m1", 2).response["active_tasks"] is None


def test_tasks_are_revoked_before_another_member_gets_them(run: StreamsRun) -> None:
    first, second = StreamsMember(run, "m1"), StreamsMember(run, "m2")
    first.beat()
    second.beat()
    assert second.active == frozenset()
    assert run.group.members["m2"].state is MemberState.UNRELEASED
    first.beat(revoke=False)
    assert run.group.members["m1"].state is MemberState.UNREVOKED
    second.beat()
    assert second.active == frozenset()
    first.follow()
    first.beat()
    second.beat()
    assert len(first.active) == len(second.active) == 4
    assert not first.active & second.active


def test_a_member_that_does_not_revoke_in_time_is_removed(run: StreamsRun) -> None:
    first, second = StreamsMember(run, "m1"), StreamsMember(run, "m2")
    first.beat()
    second.beat()
    first.beat(revoke=False)
    for _ in range(4):
        run.advance(REBALANCE_MS // 3)
        second.beat()
    assert set(run.group.members) == {"m2"}


def test_a_silent_member_is_removed(run: StreamsRun) -> None:
    first, second = members(run, "m1", "m2")
    for _ in range(4):
        run.advance(SESSION_MS // 3)
        second.beat()
    assert set(run.group.members) == {"m2"}
    run.settle([second])
    assert len(second.active) == 8
    assert first.active


def test_internal_topics_that_are_missing() -> None:
    run = StreamsRun()
    run.topics.add("words", 2)
    result = run.join_streams("m1")
    assert [topic.name for topic in result.missing] == list(INTERNAL)
    assert [status["status_code"] for status in result.response["status"]] == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert result.response["active_tasks"] == []
    assert run.group.state is GroupState.NOT_READY
    run.make_internal_topics(result)
    result = run.beat("m1", result.response["member_epoch"])
    assert result.missing == ()
    assert [row["partitions"] for row in result.response["active_tasks"]] == [[0, 1]] * 2
    assert run.group.state is GroupState.STABLE


def test_a_topic_that_is_deleted_takes_the_tasks_with_it(run: StreamsRun) -> None:
    (member,) = members(run, "m1")
    run.topics.remove("words")
    run.settle([member])
    assert member.active == frozenset()
    assert member.statuses == [StatusCode.MISSING_SOURCE_TOPICS]


def test_a_new_group_waits_for_more_members(run: StreamsRun) -> None:
    slow = StreamsRun(group_streams_initial_rebalance_delay_ms=3000)
    for name in ("words", *INTERNAL):
        slow.topics.add(name, 4)
    first, second = StreamsMember(slow, "m1"), StreamsMember(slow, "m2")
    first.beat()
    second.beat()
    assert first.statuses == second.statuses == [StatusCode.ASSIGNMENT_DELAYED]
    assert first.epoch == second.epoch == 1
    slow.advance(3000)
    first.beat()
    second.beat()
    assert len(first.active) == len(second.active) == 4, "nothing moves: both got their share at once"


def test_assignments_have_an_interval(run: StreamsRun) -> None:
    rare = StreamsRun(group_streams_assignment_interval_ms=1000)
    for name in ("words", *INTERNAL):
        rare.topics.add(name, 4)
    first, second = StreamsMember(rare, "m1"), StreamsMember(rare, "m2")
    first.beat()
    second.beat()
    assert second.statuses == [StatusCode.ASSIGNMENT_DELAYED]
    rare.advance(1000)
    rare.settle([first, second])
    assert len(second.active) == 4


def test_standbys_are_in_other_processes() -> None:
    run = StreamsRun(group_streams_num_standby_replicas=1)
    for name in ("words", *INTERNAL):
        run.topics.add(name, 4)
    first, second = members(run, "m1", "m2")
    assert {task for task in first.active if task[0] == "1"} == second.standby
    assert {task for task in second.active if task[0] == "1"} == first.standby


def test_a_topology_that_differs(run: StreamsRun) -> None:
    run.join_streams("m1")
    other = topology(subtopology("0", "words"))
    with pytest.raises(KafkaError, match="Topology updates are not supported yet"):
        run.join_streams("m2", other)
    run.topics.add("more", 1)
    with pytest.raises(KafkaError, match="Topology updates are not supported yet"):
        run.join_streams("m2", {**COUNTS, "epoch": 1})


def test_a_stale_topology_has_a_status(run: StreamsRun) -> None:
    run.join_streams("m1", {**COUNTS, "epoch": 3})
    result = run.join_streams("m2", {**COUNTS, "epoch": 2})
    assert [status["status_code"] for status in result.response["status"]] == [StatusCode.STALE_TOPOLOGY]


def test_shutdown_of_the_application(run: StreamsRun) -> None:
    first, second = members(run, "m1", "m2")
    run.beat("m1", first.epoch, shutdown_application=True)
    second.beat()
    assert second.statuses == [StatusCode.SHUTDOWN_APPLICATION]
    first.leave()
    second.leave()
    third = StreamsMember(run, "m3")
    third.beat()
    assert third.statuses == []


def test_endpoints_for_interactive_queries(run: StreamsRun) -> None:
    run.join_streams("m1", user_endpoint={"host": "h1", "port": 8080})
    result = run.beat("m1", 2, endpoint_information_epoch=-1)
    (row,) = result.response["partitions_by_user_endpoint"]
    assert row["user_endpoint"] == {"host": "h1", "port": 8080}
    assert row["active_partitions"] == [
        {"topic": "words", "partitions": [0, 1, 2, 3]},
        {"topic": "app-by-word", "partitions": [0, 1, 2, 3]},
    ]
    epoch = result.response["endpoint_information_epoch"]
    assert run.beat("m1", 2, endpoint_information_epoch=epoch).response["partitions_by_user_endpoint"] is None
    StreamsMember(run, "m2").beat()
    moved = run.beat("m1", 2, endpoint_information_epoch=epoch).response
    assert moved["endpoint_information_epoch"] > epoch


def test_heartbeats_with_a_wrong_epoch_are_fenced(run: StreamsRun) -> None:
    (member,) = members(run, "m1")
    with pytest.raises(KafkaError) as fenced:
        run.beat("m1", member.epoch + 1)
    assert fenced.value.code == ErrorCode.FENCED_MEMBER_EPOCH
    with pytest.raises(KafkaError) as unknown:
        run.beat("m2", 2)
    assert unknown.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(KafkaError) as nowhere:
        run.beat("m1", 2, group_id="other")
    assert nowhere.value.code == ErrorCode.GROUP_ID_NOT_FOUND


REFUSED: dict[str, dict[str, Any]] = {
    "MemberId can't be empty.": {"member_id": " "},
    "GroupId can't be empty.": {"group_id": ""},
    "RackId can't be empty.": {"rack_id": ""},
    "Static membership is not yet supported.": {"instance_id": "i"},
    "TaskOffsets are not supported yet.": {"task_offsets": []},
    "TaskEndOffsets are not supported yet.": {"task_end_offsets": []},
    "WarmupTasks are not supported yet.": {"warmup_tasks": [{"subtopology_id": "0", "partitions": [0]}]},
    "RebalanceTimeoutMs must be provided in first request.": {"rebalance_timeout_ms": -1},
    "ActiveTasks must be empty when (re-)joining.": {"active_tasks": [{"subtopology_id": "0", "partitions": [0]}]},
    "StandbyTasks must be empty when (re-)joining.": {"standby_tasks": None},
    "Topology must be non-null when (re-)joining.": {"topology": None},
    "Topology can only be provided when (re-)joining.": {"member_epoch": 1},
    "MemberEpoch is -3, but must be greater than or equal to -2.": {"member_epoch": -3, "topology": None},
    "InstanceId can't be null.": {"member_epoch": -2, "topology": None},
    "If one task-type is non-null, all must be non-null.": {
        "member_epoch": 1,
        "topology": None,
        "active_tasks": None,
    },
    "A name is too long.": {"process_id": "x" * 8001},
    "Regular expressions for source topics are not supported yet.": {
        "topology": topology(subtopology("0", "words", source_topic_regex=["w.*"]))
    },
}


@pytest.mark.parametrize("problem", REFUSED)
def test_requests_that_are_refused(run: StreamsRun, problem: str) -> None:
    fields = {**REFUSED[problem]}
    with pytest.raises(KafkaError) as refused:
        run.join_streams(str(fields.pop("member_id", "m1")), **fields)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert refused.value.message == problem


def test_a_group_that_is_full(run: StreamsRun) -> None:
    small = StreamsRun(group_streams_max_size=1)
    small.topics.add("words", 1)
    small.join_streams("m1")
    small.join_streams("m1")
    with pytest.raises(KafkaError) as full:
        small.join_streams("m2")
    assert full.value.code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_commits_check_the_member_and_its_epoch(run: StreamsRun) -> None:
    first, second = members(run, "m1", "m2")
    group = run.group
    group.check_offset_commit("m1", None, first.epoch, 9)
    for member, epoch, version, code in (
        ("m1", first.epoch, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("m1", first.epoch - 1, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("m9", first.epoch, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as refused:
            group.check_offset_commit(member, None, epoch, version)
        assert refused.value.code == code
    words = run.topics.get("words")
    assert isinstance(words, Topic)
    kept = [number for name, number in first.active if name == "0"]
    assert all(group.may_commit_late("m1", first.epoch - 1, words, number) for number in kept)
    gained = [number for name, number in second.active if name == "0"]
    assert not any(group.may_commit_late("m2", 2, words, number) for number in gained)
    assert group.is_subscribed_to("words") and group.is_subscribed_to("app-by-word")
    assert not group.is_subscribed_to("app-changelog")
    with pytest.raises(KafkaError):
        group.check_deletion()


def test_an_empty_group_can_be_deleted(run: StreamsRun) -> None:
    (member,) = members(run, "m1")
    member.leave()
    assert run.group.state is GroupState.EMPTY
    assert run.run(lambda shard, now_ms: shard.delete_group("g", now_ms)) is True
    assert "g" not in run.shard.groups
    run.compact()
    assert all(value is None for _, value in run.log)
    run.restart()
    assert run.shard.groups == {}


def test_an_empty_classic_group_becomes_a_streams_group(run: StreamsRun) -> None:
    def add(shard: Any, now_ms: int) -> CoordinatorResult[None]:
        shard.classic.add_simple_group("g")
        return CoordinatorResult(None)

    run.run(add)
    run.join_streams("m1")
    assert isinstance(run.shard.groups["g"], StreamsGroup)
    with pytest.raises(KafkaError, match="not a consumer group"):
        run.shard.consumer.find("g")


def test_the_records_are_those_of_kafka(run: StreamsRun) -> None:
    run.join_streams("m1")
    kinds = [RecordType(int.from_bytes(key[:2])) for key, _ in run.log]
    assert kinds == [
        RecordType.STREAMS_GROUP_MEMBER_METADATA,
        RecordType.STREAMS_GROUP_TOPOLOGY,
        RecordType.STREAMS_GROUP_METADATA,
        RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    ]
    assert all(read_key(key).group_id == "g" for key, _ in run.log)


def test_a_change_of_the_settings_is_a_new_assignment(run: StreamsRun) -> None:
    first, second = members(run, "m1", "m2")
    run.shard.group_settings = lambda group_id: {"streams.num.standby.replicas": "1"}
    run.settle([first, second])
    assert first.standby and second.standby


def test_describe_shows_topology_and_tasks(run: StreamsRun) -> None:
    run.join_streams("m1")
    described = run.shard.streams.describe("g")
    assert described["group_state"] == "Stable"
    second = described["topology"]["subtopologies"][1]
    assert second["repartition_source_topics"][0]["partitions"] == 4
    (member,) = described["members"]
    assert member["assignment"] == member["target_assignment"]
    assert [row["partitions"] for row in member["assignment"]["active_tasks"]] == [[0, 1, 2, 3]] * 2


def test_an_empty_group_expires_with_its_offsets() -> None:
    run = StreamsRun(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1000)
    for name in ("words", *INTERNAL):
        run.topics.add(name, 4)
    (member,) = members(run, "m1")
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    request = message(
        "offset_commit",
        group_id="g",
        member_id="m1",
        generation_id_or_member_epoch=member.epoch,
        retention_time_ms=-1,
        topics=[{"name": "words", "partitions": [row]}],
    )
    committed = run.run(lambda shard, now_ms: shard.offsets.commit(request, 9, now_ms))
    assert committed["topics"][0]["partitions"] == [{"partition_index": 0, "error_code": ErrorCode.NONE}]
    for _ in range(8):
        run.advance(20_000)
        member.beat()
    assert run.shard.offsets.by_group["g"], "the group still reads the topic"
    member.leave()
    run.advance(70_000)
    assert "g" not in run.shard.groups and "g" not in run.shard.offsets.by_group


def test_transactional_commits_check_the_member_epoch(run: StreamsRun) -> None:
    (member,) = members(run, "m1")
    run.group.check_transactional_commit("m1", None, member.epoch)
    run.group.check_transactional_commit("", None, -1)
    for member_id, epoch, code in (
        ("m1", member.epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m9", member.epoch, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as refused:
            run.group.check_transactional_commit(member_id, None, epoch)
        assert refused.value.code == code
