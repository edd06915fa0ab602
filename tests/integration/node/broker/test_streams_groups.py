"""Streams groups over the raw wire: Kafka's error code for each bad input, internal topics, offsets, types of groups.

With MILLSTREAM_TEST_BOOTSTRAP the tests talk to another broker: they were made to pass on Apache Kafka 4.3, started
with the same settings.
"""

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing.embedded import EmbeddedBroker
from tests.waiting import until
from tests.wire import Wire

SETTINGS = {
    "group.streams.max.size": 2,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
}
PARTITIONS = 4
ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
MISSING_SOURCE, BADLY_PARTITIONED, MISSING_INTERNAL = 1, 2, 3
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
        connected.create_topic("kip1071", PARTITIONS)
        connected.call("find_coordinator", 4, key_type=0, coordinator_keys=["probe"])
        while any(beat(connected, f"probe{n}", "x", 5).error_code in (14, 15, 16) for n in range(100)):
            time.sleep(0.2)  # Kafka makes its internal topic
        yield connected


@pytest.fixture
def group() -> str:
    return f"streams-{next(_numbers)}-{os.getpid()}"


def topic_info(name: str, partitions: int = 0) -> dict[str, Any]:
    return {"name": name, "partitions": partitions, "replication_factor": 1, "topic_configs": []}


def subtopology(name: str, *sources: str, **fields: Any) -> dict[str, Any]:
    lists = (
        "source_topic_regex",
        "state_changelog_topics",
        "repartition_sink_topics",
        "repartition_source_topics",
        "copartition_groups",
    )
    return {"subtopology_id": name, "source_topics": list(sources), **{each: [] for each in lists}, **fields}


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(subtopologies)}


PLAIN = topology(subtopology("0", "kip1071"))


def beat(wire: Wire, group: str, member: str, epoch: int, **fields: Any) -> Message:
    unchanged = dict.fromkeys((*ROLES, "topology", "client_tags", "task_offsets", "task_end_offsets"))
    given: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch, **unchanged, **fields}
    return wire.call("streams_group_heartbeat", 0, **given)


def join(wire: Wire, group: str, member: str, sent: dict[str, Any] | None = PLAIN, **fields: Any) -> Message:
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 5000,
        "process_id": f"process-{member}",
        "topology": sent,
        **{role: [] for role in ROLES},
        **fields,
    }
    return beat(wire, group, member, given.pop("member_epoch", 0), **given)


def describe(wire: Wire, group: str) -> Message:
    described: Message = wire.call("streams_group_describe", 0, group_ids=[group]).groups[0]
    return described


def tasks(response: Message) -> dict[str, list[int]]:
    return {row.subtopology_id: list(row.partitions) for row in response.active_tasks or ()}


def statuses(response: Message) -> list[int]:
    return [status.status_code for status in response.status or ()]


def owned(*numbers: int) -> dict[str, Any]:
    rows = [{"subtopology_id": "0", "partitions": list(numbers)}] if numbers else []
    return {"active_tasks": rows, "standby_tasks": [], "warmup_tasks": []}


def test_two_members_share_the_tasks(wire: Wire, group: str) -> None:
    first = join(wire, group, "m1")
    assert (first.error_code, first.member_epoch, tasks(first)) == (0, 2, {"0": [0, 1, 2, 3]})
    second = join(wire, group, "m2")
    assert (second.member_epoch, tasks(second)) == (3, {})
    asked = beat(wire, group, "m1", 2)
    kept = tasks(asked)["0"]
    assert (asked.member_epoch, len(kept)) == (2, 2)
    assert describe(wire, group).group_state == "Reconciling"
    assert beat(wire, group, "m1", 2, **owned(*kept)).member_epoch == 3
    assert len(tasks(beat(wire, group, "m2", 3))["0"]) == 2
    described = describe(wire, group)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    assert sorted(n for m in described.members for row in m.assignment.active_tasks for n in row.partitions) == [
        0,
        1,
        2,
        3,
    ]
    assert join(wire, group, "m3").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert beat(wire, group, "m2", -1).member_epoch == -1
    assert beat(wire, group, "m2", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


BAD: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no member id": ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
    "static": ({"instance_id": "i"}, ErrorCode.INVALID_REQUEST),
    "offsets of tasks": ({"task_offsets": []}, ErrorCode.INVALID_REQUEST),
    "warm-ups": ({"warmup_tasks": [{"subtopology_id": "0", "partitions": [0]}]}, ErrorCode.INVALID_REQUEST),
    "no timeout": ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
    "tasks at once": ({"active_tasks": [{"subtopology_id": "0", "partitions": [0]}]}, ErrorCode.INVALID_REQUEST),
    "no topology": ({"topology": None}, ErrorCode.INVALID_REQUEST),
    "topology later": ({"member_epoch": 3}, ErrorCode.INVALID_REQUEST),
    "epoch -3": ({"member_epoch": -3, "topology": None}, ErrorCode.INVALID_REQUEST),
    "no such group": ({"member_epoch": 3, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND),
    "expression": ({"topology": topology(subtopology("0", source_topic_regex=["k.*"]))}, ErrorCode.INVALID_REQUEST),
    "internal": ({"topology": topology(subtopology("0", "__consumer_offsets"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
    "bad name": ({"topology": topology(subtopology("0", "a b"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
    "sized changelog": (
        {"topology": topology(subtopology("0", "kip1071", state_changelog_topics=[topic_info("x-changelog", 3)]))},
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
    ),
    "never a sink": (
        {"topology": topology(subtopology("0", "kip1071", repartition_source_topics=[topic_info("x-r")]))},
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_heartbeats_are_refused(wire: Wire, group: str, case: str) -> None:
    fields, code = BAD[case]
    given = dict(fields)
    sent = given.pop("topology", PLAIN)
    member = given.pop("member_id", "m1")
    response = join(wire, group, member, sent, **given)
    assert (response.error_code, describe(wire, group).error_code) == (code, ErrorCode.GROUP_ID_NOT_FOUND)


def test_heartbeats_with_a_wrong_epoch_are_fenced(wire: Wire, group: str) -> None:
    assert join(wire, group, "m1").member_epoch == 2
    assert beat(wire, group, "m1", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(wire, group, "m1", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert join(wire, group, "m1").member_epoch == 2
    assert join(wire, group, "m2", topology(subtopology("0", "kip1071"), epoch=1)).error_code == (
        ErrorCode.INVALID_REQUEST
    )
    bad = beat(wire, group, "m1", 2, **owned(99))
    assert bad.error_code == ErrorCode.INVALID_REQUEST


def test_internal_topics_are_made(wire: Wire, group: str) -> None:
    sent = topology(
        subtopology("0", "kip1071", repartition_sink_topics=[f"{group}-r"]),
        subtopology(
            "1",
            repartition_source_topics=[topic_info(f"{group}-r")],
            state_changelog_topics=[topic_info(f"{group}-c")],
        ),
    )
    joined = join(wire, group, "m1", sent)
    assert (statuses(joined), tasks(joined)) == ([MISSING_INTERNAL], {})
    assert describe(wire, group).group_state == "NotReady"
    epoch, found = joined.member_epoch, {}

    def has_tasks() -> bool:
        nonlocal epoch, found
        response = beat(wire, group, "m1", epoch)
        epoch, found = response.member_epoch, tasks(response)
        return bool(found)

    until(has_tasks)
    assert found == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    rows = wire.call("metadata", 12, topics=[{"name": f"{group}-r"}, {"name": f"{group}-c"}]).topics
    assert [len(row.partitions) for row in rows] == [PARTITIONS] * 2
    (first, second) = describe(wire, group).topology.subtopologies
    assert (first.source_topics, second.state_changelog_topics[0].partitions) == (["kip1071"], PARTITIONS)


def test_topics_that_do_not_fit(wire: Wire, group: str) -> None:
    joined = join(wire, group, "m1", topology(subtopology("0", f"{group}-missing")))
    assert (statuses(joined), tasks(joined)) == ([MISSING_SOURCE], {})
    wire.create_topic(f"{group}-c", PARTITIONS + 1)
    other = f"{group}-other"
    sent = topology(subtopology("0", "kip1071", state_changelog_topics=[topic_info(f"{group}-c")]))
    until(lambda: statuses(join(wire, other, "m1", sent)) == [BADLY_PARTITIONED])  # a broker hears of a topic later


def test_commits_check_the_member_and_its_epoch(wire: Wire, group: str) -> None:
    epoch = join(wire, group, "m1").member_epoch

    def commit(member: str, at: int, version: int = 9) -> int:
        row = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        response = wire.call(
            "offset_commit",
            version,
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=at,
            topics=[{"name": "kip1071", "partitions": [row]}],
        )
        return int(response.topics[0].partitions[0].error_code)

    assert commit("m1", epoch) == 0
    assert commit("m1", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("m9", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("m1", epoch, 8) == ErrorCode.UNSUPPORTED_VERSION
    fetch = {"group_id": group, "topics": [{"name": "kip1071", "partition_indexes": [0]}]}
    (row,) = wire.call("offset_fetch", 9, groups=[{**fetch, "member_id": "m1", "member_epoch": epoch}]).groups
    assert (row.error_code, row.topics[0].partitions[0].committed_offset) == (0, 7)
    (row,) = wire.call("offset_fetch", 9, groups=[{**fetch, "member_id": "m1", "member_epoch": epoch + 1}]).groups
    assert row.error_code == ErrorCode.STALE_MEMBER_EPOCH
    topics = [{"name": "kip1071", "partitions": [{"partition_index": 0}]}]
    response = wire.call("offset_delete", 0, group_id=group, topics=topics)
    assert response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert wire.call("delete_groups", 2, groups_names=[group]).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(wire, group, "m1", -1)
    assert commit("", -1) == 0
    response = wire.call("offset_delete", 0, group_id=group, topics=topics)
    assert response.topics[0].partitions[0].error_code == 0
    assert wire.call("delete_groups", 2, groups_names=[group]).results[0].error_code == 0
    assert describe(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def classic_join(wire: Wire, group: str) -> int:
    response = wire.call(
        "join_group",
        5,
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    return int(response.error_code)


def test_a_streams_group_is_listed_with_its_type(wire: Wire, group: str) -> None:
    join(wire, group, "m1")
    (row,) = [row for row in wire.call("list_groups", 5, types_filter=["streams"]).groups if row.group_id == group]
    assert (row.group_type.lower(), row.protocol_type, row.group_state) == ("streams", "streams", "Stable")
    (old,) = wire.call("describe_groups", 6, groups=[group]).groups
    assert old.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic_join(wire, group) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    consumer = {"rebalance_timeout_ms": 5000, "subscribed_topic_names": ["kip1071"], "topic_partitions": []}
    refused = wire.call("consumer_group_heartbeat", 1, group_id=group, member_id="c1", member_epoch=0, **consumer)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    # An empty streams group becomes a classic one, and an empty classic one a streams group
    beat(wire, group, "m1", -1)
    assert classic_join(wire, group) == ErrorCode.MEMBER_ID_REQUIRED
    assert describe(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    other = f"{group}-simple"
    topics = [
        {
            "name": "kip1071",
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
        }
    ]
    wire.call("offset_commit", 9, group_id=other, member_id="", generation_id_or_member_epoch=-1, topics=topics)
    assert join(wire, other, "m1").error_code == 0
    assert describe(wire, other).group_state == "Stable"


def test_settings_of_a_group(wire: Wire, group: str) -> None:
    def set_to(name: str, value: str) -> int:
        config = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 32, "resource_name": group, "configs": [config]}
        return int(wire.call("incremental_alter_configs", 1, resources=[resource]).responses[0].error_code)

    assert set_to("streams.num.standby.replicas", "1") == 0
    assert set_to("streams.num.standby.replicas", "9") == ErrorCode.INVALID_CONFIG
    assert set_to("streams.session.timeout.ms", "1") == ErrorCode.INVALID_CONFIG
    assert set_to("streams.heartbeat.interval.ms", "6000") == 0
    epoch = join(wire, group, "m1").member_epoch
    assert beat(wire, group, "m1", epoch).heartbeat_interval_ms == 6000


def test_the_end_of_the_application(wire: Wire, group: str) -> None:
    first = join(wire, group, "m1")
    second = join(wire, group, "m2")
    beat(wire, group, "m1", first.member_epoch, shutdown_application=True)
    assert 4 in statuses(beat(wire, group, "m2", second.member_epoch))
