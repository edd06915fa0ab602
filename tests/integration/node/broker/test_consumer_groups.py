"""Groups that the broker assigns, over the raw wire: Kafka's error code for each bad input, and each step in turn.

With MILLSTREAM_TEST_BOOTSTRAP the tests talk to another broker: they were made to pass on Apache Kafka 4.3, started
with the same settings. (The first epoch of a group is 1 here and 2 there, so epochs are counted from that.)
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing.embedded import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

SETTINGS = {
    "group.consumer.max.size": 2,
    "group.consumer.assignment.interval.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
}
PARTITIONS = 4
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    other = os.environ.get("MILLSTREAM_TEST_BOOTSTRAP")
    if other is not None:
        yield other
        return
    with EmbeddedBroker(SETTINGS) as started:
        yield started.bootstrap_servers


@pytest.fixture(scope="module")
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connected:
        connected.create_topic("kip848", PARTITIONS)
        connected.call("find_coordinator", 4, key_type=0, coordinator_keys=["probe"])
        while any(beat(connected, f"probe{n}", "x", 5).error_code in (14, 15, 16) for n in range(100)):
            time.sleep(0.2)  # Kafka makes its internal topic
        yield connected


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}-{os.getpid()}"


def beat(wire: Wire, group: str, member: str, epoch: int, version: int = 1, **fields: Any) -> Message:
    given: dict[str, Any] = {"subscribed_topic_names": None, "topic_partitions": None, **fields}
    return wire.call("consumer_group_heartbeat", version, group_id=group, member_id=member, member_epoch=epoch, **given)


def join(wire: Wire, group: str, member: str, version: int = 1, **fields: Any) -> Message:
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 5000,
        "subscribed_topic_names": ["kip848"],
        "topic_partitions": [],
        **fields,
    }
    return beat(wire, group, member, 0, version, **given)


def describe(wire: Wire, group: str, version: int = 1) -> Message:
    described: Message = wire.call("consumer_group_describe", version, group_ids=[group]).groups[0]
    return described


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_consumer_protocol_is_finalized_by_default(wire: Wire) -> None:
    response = wire.call("api_versions", 4, client_software_name="wire", client_software_version="1")
    levels = {row.name: row.max_version_level for row in response.finalized_features}
    assert levels["group.version"] == 1
    assert any(row.name == "group.version" and row.max_version == 1 for row in response.supported_features)
    assert {68, 69} <= {row.api_key for row in response.api_keys}


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_and_leaves(wire: Wire, group: str, version: int) -> None:
    response = join(wire, group, "" if version == 0 else "mine", version)
    assert (response.error_code, response.error_message) == (0, None)
    assert response.member_id == "mine" or (version == 0 and response.member_id)
    epoch = response.member_epoch
    assert epoch > 0
    assert response.heartbeat_interval_ms == 5000
    (row,) = response.assignment.topic_partitions
    assert sorted(row.partitions) == list(range(PARTITIONS))
    again = beat(wire, group, response.member_id, epoch, version)
    assert (again.error_code, again.member_epoch, again.assignment) == (0, epoch, None)
    left = beat(wire, group, response.member_id, -1, version)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, response.member_id, -1)


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
        ({"subscribed_topic_names": []}, ErrorCode.NONE),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": 1, "member": "", "version": 0}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"server_assignor": "range"}, ErrorCode.NONE),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(a)\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(a+)+b"}, ErrorCode.NONE),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": ""}, ErrorCode.NONE),
    ],
)
def test_bad_heartbeats_are_refused(wire: Wire, group: str, fields: dict[str, Any], code: ErrorCode) -> None:
    given = {
        "group": group,
        "member": "m",
        "epoch": 0,
        "rebalance_timeout_ms": 5000,
        "subscribed_topic_names": ["kip848"],
        "topic_partitions": [],
    }
    response = beat(wire, **{**given, **fields})
    assert ErrorCode(response.error_code) == code, response.error_message
    assert bool(response.error_message) == (code != ErrorCode.NONE)


@pytest.mark.skipif("MILLSTREAM_TEST_BOOTSTRAP" in os.environ, reason="Kafka takes what its record has no room for")
@pytest.mark.parametrize("field", ["member", "group", "instance_id", "rack_id", "subscribed_topic_regex"])
def test_texts_that_no_record_has_room_for(wire: Wire, group: str, field: str) -> None:
    given: dict[str, Any] = {"group": group, "member": "m", field: "x" * 40_000}
    response = join(wire, **given)
    assert response.error_code == (ErrorCode.INVALID_GROUP_ID if field == "group" else ErrorCode.INVALID_REQUEST)


def test_members_are_fenced(wire: Wire, group: str) -> None:
    epoch = join(wire, group, "a").member_epoch
    assert beat(wire, group, "b", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(wire, group, "b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(wire, group, "a", epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert join(wire, group, "b").member_epoch == epoch + 1
    assert beat(wire, group, "a", epoch, instance_id="i").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert join(wire, group, "c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_partitions_pass_on_step_by_step(wire: Wire, group: str) -> None:
    first = join(wire, group, "a")
    epoch = first.member_epoch
    topic_id = first.assignment.topic_partitions[0].topic_id
    second = join(wire, group, "b")
    assert (second.member_epoch, second.assignment.topic_partitions) == (epoch + 1, [])
    told = beat(wire, group, "a", epoch)
    assert told.member_epoch == epoch
    (row,) = told.assignment.topic_partitions
    assert len(row.partitions) == 2
    assert describe(wire, group).group_state == "Reconciling"
    assert beat(wire, group, "b", epoch + 1).assignment is None
    kept = [{"topic_id": topic_id, "partitions": row.partitions}]
    assert beat(wire, group, "a", epoch, topic_partitions=kept).member_epoch == epoch + 1
    given = beat(wire, group, "b", epoch + 1)
    assert sorted([*row.partitions, *given.assignment.topic_partitions[0].partitions]) == list(range(PARTITIONS))
    assert beat(wire, group, "a", epoch).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(wire, group, "a", epoch, topic_partitions=kept).member_epoch == epoch + 1, "only our response was lost"
    assert describe(wire, group).group_state == "Stable"


def test_a_static_member_keeps_its_partitions(wire: Wire, group: str) -> None:
    first = join(wire, group, "a", instance_id="i")
    had = first.assignment.topic_partitions[0].partitions
    assert join(wire, group, "b", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert beat(wire, group, "b", 1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert beat(wire, group, "a", 1, instance_id="j").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    away = beat(wire, group, "a", -2, instance_id="i")
    assert (away.error_code, away.member_epoch) == (0, -2)
    back = join(wire, group, "b", instance_id="i")
    assert back.error_code == 0
    assert sorted(back.assignment.topic_partitions[0].partitions) == sorted(had)
    assert beat(wire, group, "a", 1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID


def commit(wire: Wire, group: str, member: str, epoch: int, version: int = 9, partition: int = 0) -> int:
    response = wire.call(
        "offset_commit",
        version,
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[{"name": "kip848", "partitions": [{"partition_index": partition, "committed_offset": 3}]}],
    )
    return int(response.topics[0].partitions[0].error_code)


def test_commits_and_fetches_check_the_member_epoch(wire: Wire, group: str) -> None:
    epoch = join(wire, group, "a").member_epoch
    assert commit(wire, group, "a", epoch) == ErrorCode.NONE
    assert commit(wire, group, "a", epoch, 8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(wire, group, "a", epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(wire, group, "a", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(wire, group, "b", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(wire, group, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID

    def fetch(member: str | None, epoch: int) -> int:
        wanted = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": None}
        return int(wire.call("offset_fetch", 9, groups=[wanted]).groups[0].error_code)

    assert fetch("a", epoch) == ErrorCode.NONE
    assert fetch(None, -1) == ErrorCode.NONE
    assert fetch("a", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("b", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_of_an_older_epoch_counts_for_partitions_that_were_kept(wire: Wire, group: str) -> None:
    first = join(wire, group, "a")
    epoch, topic_id = first.member_epoch, first.assignment.topic_partitions[0].topic_id
    join(wire, group, "b")
    kept = beat(wire, group, "a", epoch).assignment.topic_partitions[0].partitions
    beat(wire, group, "a", epoch, topic_partitions=[{"topic_id": topic_id, "partitions": kept}])
    given = beat(wire, group, "b", epoch + 1).assignment.topic_partitions[0].partitions
    codes = {number: commit(wire, group, "a", epoch, partition=number) for number in range(PARTITIONS)}
    assert codes == {n: 0 if n in kept else ErrorCode.STALE_MEMBER_EPOCH for n in range(PARTITIONS)}
    assert {commit(wire, group, "a", epoch - 1, partition=n) for n in kept} == {ErrorCode.STALE_MEMBER_EPOCH}
    assert {commit(wire, group, "a", epoch + 1, partition=n) for n in given} == {0}, "the member is up to date"
    assert {commit(wire, group, "b", epoch, partition=n) for n in given} == {ErrorCode.STALE_MEMBER_EPOCH}


@pytest.mark.parametrize("version", [0, 1])
def test_describe_shows_members_and_assignments(wire: Wire, group: str, version: int) -> None:
    missing = describe(wire, group, version)
    assert (missing.error_code, missing.group_id) == (ErrorCode.GROUP_ID_NOT_FOUND, group)
    assert describe(wire, "", version).error_code == ErrorCode.INVALID_GROUP_ID
    join(wire, group, "a", instance_id="i", rack_id="r", subscribed_topic_regex="nothing-.*")
    until(lambda: describe(wire, group, version).group_state == "Stable")
    found = describe(wire, group, version)
    assert found.error_code == 0
    assert found.assignor_name == "uniform"
    assert found.group_epoch == found.assignment_epoch
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.client_id) == ("a", "i", "r", "wire")
    assert member.client_host == "/127.0.0.1"
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["kip848"], "nothing-.*")
    (row,) = member.target_assignment.topic_partitions
    assert (row.topic_name, sorted(row.partitions)) == ("kip848", list(range(PARTITIONS)))
    assert member.member_type == (1 if version else -1)
    assert found.authorized_operations == -(1 << 31)
    asked = wire.call("consumer_group_describe", version, group_ids=[group], include_authorized_operations=True)
    assert asked.groups[0].authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def test_other_views_and_deletion(wire: Wire, group: str) -> None:
    join(wire, group, "a")
    (seen,) = wire.call("describe_groups", 6, groups=[group]).groups
    assert (seen.error_code, seen.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    listed = wire.call("list_groups", 5, types_filter=["consumer"], states_filter=["stable"]).groups
    assert [(g.protocol_type, g.group_state, g.group_type) for g in listed if g.group_id == group] == [
        ("consumer", "Stable", "consumer")
    ]
    assert group not in {g.group_id for g in wire.call("list_groups", 5, types_filter=["Classic"]).groups}
    (refused,) = wire.call("delete_groups", 2, groups_names=[group]).results
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    beat(wire, group, "a", -1)
    (done,) = wire.call("delete_groups", 2, groups_names=[group]).results
    assert done.error_code == 0
    assert describe(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_settings_of_a_group(wire: Wire, group: str) -> None:
    def alter(name: str, value: str) -> int:
        row = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 32, "resource_name": group, "configs": [row]}
        return int(wire.call("incremental_alter_configs", 1, resources=[resource]).responses[0].error_code)

    assert alter("consumer.heartbeat.interval.ms", "7000") == 0
    assert alter("consumer.heartbeat.interval.ms", "1") == ErrorCode.INVALID_CONFIG
    assert alter("consumer.session.timeout.ms", "999999999") == ErrorCode.INVALID_CONFIG
    until(lambda: join(wire, group, "a").heartbeat_interval_ms == 7000)


def test_a_classic_member_in_a_consumer_group(wire: Wire, group: str) -> None:
    subscription = b"\x00\x01\x00\x00\x00\x01\x00\x06kip848\xff\xff\xff\xff\x00\x00\x00\x00"
    fields: dict[str, Any] = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription}],
    }
    epoch = join(wire, group, "new").member_epoch
    asked = wire.call("join_group", 9, member_id="", **fields)
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = wire.call("join_group", 9, member_id=asked.member_id, **fields)
    assert (joined.error_code, joined.generation_id, joined.leader, joined.protocol_name) == (0, epoch + 1, "", "range")
    bad = wire.call("join_group", 9, member_id="", **{**fields, "protocol_type": "connect"})
    assert bad.error_code in (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_MAX_SIZE_REACHED)
    who = {"group_id": group, "member_id": asked.member_id, "generation_id": epoch + 1}
    synced = wire.call("sync_group", 5, protocol_type="consumer", protocol_name="range", assignments=[], **who)
    assert (synced.error_code, synced.assignment) == (0, b"\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff")
    assert wire.call("heartbeat", 4, **who).error_code == 0
    assert wire.call("heartbeat", 4, **{**who, "generation_id": epoch}).error_code == ErrorCode.ILLEGAL_GENERATION
    assert wire.call("heartbeat", 4, **{**who, "member_id": "new"}).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    topic_id = describe(wire, group).members[0].target_assignment.topic_partitions[0].topic_id
    kept = beat(wire, group, "new", epoch).assignment.topic_partitions[0].partitions
    beat(wire, group, "new", epoch, topic_partitions=[{"topic_id": topic_id, "partitions": kept}])
    assert wire.call("heartbeat", 4, **who).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    joined = wire.call("join_group", 9, member_id=asked.member_id, **fields)
    assert (joined.error_code, joined.generation_id) == (0, epoch + 1)
    synced = wire.call("sync_group", 5, protocol_type="consumer", protocol_name="range", assignments=[], **who)
    assert synced.error_code == 0
    assert len(synced.assignment) == 2 + 4 + 2 + len("kip848") + 4 + 2 * 4 + 4
    left = wire.call("leave_group", 5, group_id=group, members=[{"member_id": asked.member_id}])
    assert (left.error_code, left.members[0].error_code) == (0, 0)
    assert len(describe(wire, group).members) == 1
