"""Groups over the raw wire: Kafka's error code for each bad input, in every version; and what clients cannot show.

With MILLSTREAM_TEST_BOOTSTRAP the tests talk to another broker: they were made to pass on Apache Kafka 4.3, started
with the same settings.
"""

import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema
from millstream.testing.embedded import EmbeddedBroker
from tests.wire import Wire, framed, request

SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x06orders\x00\x00\x00\x00"
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 2,
    "offset.metadata.max.bytes": 10,
    "group.max.session.timeout.ms": 60_000,
}
NOBODY = "nobody-0123"
PROTOCOL = {"protocol_type": "consumer", "protocol_name": "range"}


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
        connected.create_topic("orders", 2)
        connected.create_topic("other", 1)
        while call(connected, "list_groups", 5).error_code or not is_coordinating(connected):
            time.sleep(0.2)  # a broker that makes its internal topic says so meanwhile; ours waits by itself
        yield connected


def is_coordinating(wire: Wire) -> bool:
    found = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["probe"])
    if found.coordinators[0].error_code:
        return False
    probes = (call(wire, "offset_commit", 9, **commit_fields(f"probe-{number}")) for number in range(150))
    return not any(probe.topics[0].partitions[0].error_code for probe in probes)


def join_fields(group: str, member: str = "", instance: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "group_instance_id": instance,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        **fields,
    }


def sent(api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Of the fields those that the version has."""
    known = {field.name for field in request_schema(api).root.fields if version in field.versions}
    return {name: value for name, value in fields.items() if name in known}


def call(wire: Wire, api: str, version: int, **fields: Any) -> Any:
    return wire.call(api, version, **sent(api, version, fields))


def make_stable(wire: Wire, group: str, instance: str | None = None) -> tuple[str, int]:
    """A group with one member; its id and the generation."""
    response = call(wire, "join_group", 9, **join_fields(group, instance=instance))
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = call(wire, "join_group", 9, **join_fields(group, response.member_id))
    assert response.error_code == 0
    fields = PROTOCOL | {"group_id": group, "generation_id": response.generation_id, "member_id": response.member_id}
    rows = [{"member_id": response.member_id, "assignment": b"all"}]
    assert call(wire, "sync_group", 5, **fields, group_instance_id=instance, assignments=rows).error_code == 0
    return response.member_id, response.generation_id


def versions(api: str) -> range:
    schema = request_schema(api)
    return range(schema.versions.low, schema.versions.high + 1)


def commit_fields(
    group: str, *, topic: str = "orders", partition: int = 0, text: str = "", **fields: Any
) -> dict[str, Any]:
    row = {"partition_index": partition, "committed_offset": 1, "committed_metadata": text}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [row]}],
        **fields,
    }


@pytest.fixture(scope="module")
def stable(wire: Wire) -> dict[str, Any]:
    """A stable group `stable` with one member, and `static` with one static member."""
    member, generation = make_stable(wire, "stable")
    static_member, static_generation = make_stable(wire, "static", "one")
    return {
        "member": member,
        "generation": generation,
        "static_member": static_member,
        "static_generation": static_generation,
    }


JOIN_ERRORS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "empty group id": (join_fields(""), ErrorCode.INVALID_GROUP_ID),
    "session too short": (join_fields("new", session_timeout_ms=5999), ErrorCode.INVALID_SESSION_TIMEOUT),
    "session too long": (join_fields("new", session_timeout_ms=60_001), ErrorCode.INVALID_SESSION_TIMEOUT),
    "unknown member of no group": (join_fields("new", NOBODY), ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown member": (join_fields("stable", NOBODY), ErrorCode.UNKNOWN_MEMBER_ID),
    "empty protocol type": (join_fields("new", protocol_type=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "no protocols": (join_fields("new", protocols=[]), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "wrong protocol type": (join_fields("stable", protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "no common protocol": (
        join_fields("stable", protocols=[{"name": "sticky", "metadata": b""}]),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ),
}


@pytest.mark.parametrize("version", versions("join_group"))
@pytest.mark.parametrize("case", JOIN_ERRORS)
def test_join_group_refuses_wrong_requests(case: str, version: int, wire: Wire, stable: dict[str, Any]) -> None:
    fields, code = JOIN_ERRORS[case]
    response = call(wire, "join_group", version, **fields)
    assert (response.error_code, response.generation_id, response.members) == (code, -1, [])
    assert response.member_id == fields["member_id"]


def test_join_group_fences_a_stale_static_member(wire: Wire, stable: dict[str, Any]) -> None:
    for version in range(5, 10):
        response = call(wire, "join_group", version, **join_fields("static", NOBODY, "one"))
        assert response.error_code == ErrorCode.FENCED_INSTANCE_ID
        response = call(wire, "join_group", version, **join_fields("static", stable["static_member"], "two"))
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_join_group_refuses_one_too_many(bootstrap: str) -> None:
    with Wire(bootstrap) as one, Wire(bootstrap) as two:
        member, _ = make_stable(one, "full", "a")
        two.send("join_group", 9, **join_fields("full", instance="b"))
        rejoined = call(one, "join_group", 9, **join_fields("full", member, "a"))
        while rejoined.generation_id == 1:
            rejoined = call(one, "join_group", 9, **join_fields("full", member, "a"))
        _, second = two.receive("join_group", 9)
        assert rejoined.generation_id == second.generation_id == 2
        response = call(one, "join_group", 9, **join_fields("full", instance="c"))
        assert (response.error_code, response.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


def test_member_id_is_required_from_version_4_on(wire: Wire) -> None:
    for version in versions("join_group"):
        response = call(wire, "join_group", version, **join_fields(f"fresh-{version}"))
        if version < 4:
            assert response.error_code == 0 and response.leader == response.member_id
        else:
            assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED and response.member_id.startswith("wire-")


MEMBER_ERRORS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "empty group id": ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    "unknown group": ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown member": ({"member_id": NOBODY}, ErrorCode.UNKNOWN_MEMBER_ID),
    "stale generation": ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
    "future generation": ({"generation_id": 99}, ErrorCode.ILLEGAL_GENERATION),
    "negative generation": ({"generation_id": -1}, ErrorCode.ILLEGAL_GENERATION),
}


@pytest.mark.parametrize("api", ["heartbeat", "sync_group"])
@pytest.mark.parametrize("case", MEMBER_ERRORS)
def test_requests_of_wrong_members_are_refused(api: str, case: str, wire: Wire, stable: dict[str, Any]) -> None:
    changed, code = MEMBER_ERRORS[case]
    fields = {"group_id": "stable", "member_id": stable["member"], "generation_id": stable["generation"], **changed}
    for version in versions(api):
        assert call(wire, api, version, **fields, **PROTOCOL, assignments=[]).error_code == code


@pytest.mark.parametrize("api", ["heartbeat", "sync_group"])
def test_static_members_are_fenced(api: str, wire: Wire, stable: dict[str, Any]) -> None:
    fields = PROTOCOL | {"group_id": "static", "member_id": NOBODY, "generation_id": stable["static_generation"]}
    for version in range(3, versions(api).stop):
        response = call(wire, api, version, **fields, group_instance_id="one", assignments=[])
        assert response.error_code == ErrorCode.FENCED_INSTANCE_ID
        response = call(wire, api, version, **fields, group_instance_id="two", assignments=[])
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_group_with_another_protocol(wire: Wire, stable: dict[str, Any]) -> None:
    fields = {"group_id": "stable", "member_id": stable["member"], "generation_id": stable["generation"]}
    for change in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}, {"protocol_name": None}):
        response = call(wire, "sync_group", 5, **{**fields, **PROTOCOL, **change}, assignments=[])
        assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_leave_group_refuses_wrong_requests(wire: Wire, stable: dict[str, Any]) -> None:
    for version in versions("leave_group"):
        response = call(wire, "leave_group", version, group_id="", member_id="x", members=[{"member_id": NOBODY}])
        assert response.error_code == ErrorCode.INVALID_GROUP_ID
    for group in ("stable", "none"):
        for version in range(3):
            response = call(wire, "leave_group", version, group_id=group, member_id=NOBODY)
            assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        for version in range(3, 6):
            response = call(wire, "leave_group", version, group_id=group, members=[{"member_id": NOBODY}])
            assert response.error_code == 0
            assert [row.error_code for row in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID]
    members = [
        {"member_id": NOBODY},
        {"member_id": "", "group_instance_id": "two"},
        {"member_id": NOBODY, "group_instance_id": "one"},
    ]
    for version in range(3, 6):
        response = call(wire, "leave_group", version, group_id="static", members=members)
        assert response.error_code == 0
        assert [row.error_code for row in response.members] == [
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
        ]


COMMIT_ERRORS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "fine": (commit_fields("simple"), ErrorCode.NONE),
    "the empty group, for simple consumers": (commit_fields(""), ErrorCode.NONE),
    "unknown topic": (commit_fields("simple", topic="gone"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "unknown partition": (commit_fields("simple", partition=2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "negative partition": (commit_fields("simple", partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "metadata too long": (commit_fields("simple", text="x" * 11), ErrorCode.OFFSET_METADATA_TOO_LARGE),
    "not a member": (commit_fields("stable"), ErrorCode.UNKNOWN_MEMBER_ID),
    "unknown member": (
        commit_fields("stable", member_id=NOBODY, generation_id_or_member_epoch=1),
        ErrorCode.UNKNOWN_MEMBER_ID,
    ),
    "unknown group with a generation": (
        commit_fields("none", member_id=NOBODY, generation_id_or_member_epoch=1),
        ErrorCode.GROUP_ID_NOT_FOUND,
    ),
}


@pytest.mark.parametrize("version", range(2, 10))
@pytest.mark.parametrize("case", COMMIT_ERRORS)
def test_offset_commit_refuses_wrong_requests(case: str, version: int, wire: Wire, stable: dict[str, Any]) -> None:
    fields, code = COMMIT_ERRORS[case]
    if code == ErrorCode.GROUP_ID_NOT_FOUND and version < 9:
        code = ErrorCode.ILLEGAL_GENERATION
    (topic,) = call(wire, "offset_commit", version, **fields).topics
    assert [row.error_code for row in topic.partitions] == [code]


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_offset_commit_with_an_illegal_generation(generation: int, wire: Wire, stable: dict[str, Any]) -> None:
    fields = commit_fields("stable", member_id=stable["member"], generation_id_or_member_epoch=generation)
    for version in range(2, 10):
        (topic,) = call(wire, "offset_commit", version, **fields).topics
        assert topic.partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION


def test_offset_commit_and_fetch_by_topic_id(wire: Wire) -> None:
    topic_id = wire.create_topic("by-id", 1)
    rows = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "x"}]
    topics = [{"topic_id": topic_id, "partitions": rows}, {"topic_id": UUID(int=77), "partitions": rows}]
    fields = {"group_id": "ids", "member_id": "", "generation_id_or_member_epoch": -1, "topics": topics}
    response = wire.call("offset_commit", 10, **fields)
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in response.topics}
    assert codes == {topic_id: 0, UUID(int=77): ErrorCode.UNKNOWN_TOPIC_ID}
    wanted = [{"topic_id": each, "partition_indexes": [0]} for each in (topic_id, UUID(int=77))]
    groups = [{"group_id": "ids", "topics": wanted}, {"group_id": "ids", "topics": None}]
    listed, everything = wire.call("offset_fetch", 10, groups=groups, require_stable=True).groups
    found = {row.topic_id: (row.partitions[0].committed_offset, row.partitions[0].error_code) for row in listed.topics}
    assert found == {topic_id: (5, 0), UUID(int=77): (-1, ErrorCode.UNKNOWN_TOPIC_ID)}
    assert [(row.topic_id, row.partitions[0].metadata) for row in everything.topics] == [(topic_id, "x")]


def test_offset_fetch_in_every_version(wire: Wire) -> None:
    call(wire, "offset_commit", 9, **commit_fields("fetched", text="note"))
    wanted = [{"name": "orders", "partition_indexes": [0, 1]}]
    for version in range(1, 8):
        response = call(wire, "offset_fetch", version, group_id="fetched", topics=wanted, require_stable=True)
        (topic,) = response.topics
        assert [(row.committed_offset, row.metadata, row.error_code) for row in topic.partitions] == [
            (1, "note", 0),
            (-1, "", 0),
        ]
        if version > 1:
            everything = call(wire, "offset_fetch", version, group_id="fetched", topics=None, require_stable=False)
            assert [(row.name, len(row.partitions)) for row in everything.topics] == [("orders", 1)]
    for version in (8, 9):
        groups = [{"group_id": "fetched", "topics": wanted}, {"group_id": "none", "topics": wanted}]
        known, unknown = wire.call("offset_fetch", version, groups=groups, require_stable=True).groups
        assert [row.committed_offset for row in known.topics[0].partitions] == [1, -1]
        assert unknown.error_code == 0
        assert [row.committed_offset for row in unknown.topics[0].partitions] == [-1, -1]


@pytest.mark.parametrize("version", [2, 9])
def test_commits_that_arrive_together_are_one_after_the_other(wire: Wire, version: int) -> None:
    """They are written as one batch. Responses come in the order of the requests, refused commits among them, and a
    request behind a commit sees it."""
    group = f"together-{version}"
    requests: list[tuple[str, int, dict[str, Any]]] = []
    for offset in range(30):
        partition = 9 if offset % 10 == 5 else 0
        fields = commit_fields(group, partition=partition)
        fields["topics"][0]["partitions"][0]["committed_offset"] = offset
        requests.append(("offset_commit", version, fields))
        if offset % 10 == 7:
            topics = [{"name": "orders", "partition_indexes": [0]}]
            requests.append(("offset_fetch", 7, {"group_id": group, "topics": topics, "require_stable": False}))
            requests.append(("heartbeat", 4, {"group_id": group, "generation_id": 1, "member_id": NOBODY}))
    wire.send_raw(b"".join(framed(request(*each, correlation_id=at)) for at, each in enumerate(requests)))
    fetched = []
    for at, (api, api_version, fields) in enumerate(requests):
        correlation_id, response = wire.receive(api, api_version)
        assert correlation_id == at
        if api == "heartbeat":
            assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            continue
        row = response.topics[0].partitions[0]
        if api == "offset_fetch":
            fetched.append(row.committed_offset)
        elif fields["topics"][0]["partitions"][0]["partition_index"] == 9:
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            assert row.error_code == 0
    # It may also see commits behind it: an OffsetFetch runs in a task.
    assert all(seen >= sent for seen, sent in zip(fetched, (7, 17, 27), strict=True))


def test_offset_delete_refuses_wrong_requests(wire: Wire, stable: dict[str, Any]) -> None:
    def delete(group: str, topic: str = "orders", partition: int = 0) -> Any:
        rows = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        return wire.call("offset_delete", 0, group_id=group, topics=rows)

    assert delete("").error_code == ErrorCode.INVALID_GROUP_ID
    assert delete("none").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    subscribed = delete("stable").topics[0].partitions[0]
    assert subscribed.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete("stable", "other").topics[0].partitions[0].error_code == 0
    unknown = delete("stable", "gone").topics[0].partitions[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_groups_are_described_listed_and_deleted(wire: Wire, stable: dict[str, Any]) -> None:
    call(wire, "offset_commit", 9, **commit_fields("doomed"))
    for version in versions("describe_groups"):
        response = call(wire, "describe_groups", version, groups=["stable", "none"], include_authorized_operations=True)
        known, unknown = response.groups
        assert (known.group_state, known.protocol_type, known.protocol_data) == ("Stable", "consumer", "range")
        assert [row.member_assignment for row in known.members] == [b"all"]
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    for version in versions("list_groups"):
        rows = {row.group_id: row for row in call(wire, "list_groups", version).groups}
        assert rows["stable"].protocol_type == "consumer" and rows["doomed"].protocol_type == ""
    response = wire.call("list_groups", 5, states_filter=["EMPTY"], types_filter=["Classic"])
    assert {"doomed"} <= {row.group_id for row in response.groups}
    assert all((row.group_state, row.group_type) == ("Empty", "classic") for row in response.groups)
    for version in versions("delete_groups"):
        call(wire, "offset_commit", 9, **commit_fields("doomed"))
        response = wire.call("delete_groups", version, groups_names=["doomed", "stable", "none"])
        codes = {row.group_id: row.error_code for row in response.results}
        assert codes == {"doomed": 0, "stable": ErrorCode.NON_EMPTY_GROUP, "none": ErrorCode.GROUP_ID_NOT_FOUND}


def test_a_group_id_that_fits_into_no_record(wire: Wire) -> None:
    (topic,) = call(wire, "offset_commit", 9, **commit_fields("x" * 40_000)).topics
    assert topic.partitions[0].error_code in (ErrorCode.INVALID_GROUP_ID, ErrorCode.UNKNOWN_SERVER_ERROR)


def test_find_coordinator_in_every_version(wire: Wire) -> None:
    for version in range(4):
        assert call(wire, "find_coordinator", version, key="g", key_type=0).error_code == 0
    for version in range(4, 7):
        response = wire.call("find_coordinator", version, key_type=0, coordinator_keys=["a", "b"])
        assert [(row.key, row.error_code) for row in response.coordinators] == [("a", 0), ("b", 0)]
    (topic,) = wire.call("metadata", 12, topics=[{"name": "__consumer_offsets"}]).topics
    assert topic.is_internal and len(topic.partitions) == 50


def test_a_group_named_often_is_in_the_response_once(wire: Wire) -> None:
    call(wire, "offset_commit", 9, **commit_fields("often"))
    groups = [{"group_id": name, "topics": None} for name in ("often", "other", "often")]
    response = wire.call("offset_fetch", 8, groups=groups, require_stable=False)
    assert [row.group_id for row in response.groups] == ["often", "other"]
    names = ["often", "other", "often"]
    response = wire.call("describe_groups", 5, groups=names, include_authorized_operations=False)
    assert [row.group_id for row in response.groups] == ["often", "other"]
    response = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=names)
    assert [row.key for row in response.coordinators] == ["often", "other"]
    response = wire.call("delete_groups", 2, groups_names=names)
    assert [row.group_id for row in response.results] == ["often", "other"]


def test_offsets_of_a_deleted_topic_are_gone(wire: Wire) -> None:
    wire.create_topic("passing", 1)
    call(wire, "offset_commit", 9, **commit_fields("follower", topic="passing"))
    wire.call("delete_topics", 5, topic_names=["passing"], timeout_ms=10_000)
    while call(wire, "offset_fetch", 7, group_id="follower", topics=None, require_stable=False).topics:
        time.sleep(0.05)  # the test's own time-out ends this


def test_asking_for_the_internal_topic_makes_it_as_it_should_be() -> None:
    with EmbeddedBroker() as fresh, Wire(fresh.bootstrap_servers) as connected:
        names = ("__consumer_offsets", "__share_group_state", "__transaction_state")
        response = connected.call(
            "metadata", 12, topics=[{"name": name} for name in names], allow_auto_topic_creation=True
        )
        assert [(row.error_code, len(row.partitions)) for row in response.topics] == [
            (0, 50),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
            (0, 50),
        ]
        resources = [
            {"resource_type": 2, "resource_name": "__consumer_offsets", "configuration_keys": ["cleanup.policy"]}
        ]
        (described,) = connected.call("describe_configs", 4, resources=resources).results
        assert [config.value for config in described.configs] == ["compact"]


def test_who_waits_is_told_when_the_internal_topic_is_deleted() -> None:
    settings = {"group.initial.rebalance.delay.ms": 600_000}
    with (
        EmbeddedBroker(settings) as fresh,
        Wire(fresh.bootstrap_servers) as member,
        Wire(fresh.bootstrap_servers) as admin,
    ):
        known = call(member, "join_group", 9, **join_fields("g")).member_id
        member.send("join_group", 9, **join_fields("g", known))
        while call(admin, "describe_groups", 5, groups=["g"]).groups[0].group_state != "PreparingRebalance":
            time.sleep(0.05)
        admin.call("delete_topics", 5, topic_names=["__consumer_offsets"], timeout_ms=10_000)
        _, response = member.receive("join_group", 9)
        assert (response.error_code, response.member_id) == (ErrorCode.NOT_COORDINATOR, known)
        assert call(member, "join_group", 9, **join_fields("g")).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_hundred_members_at_once_settle_in_two_generations_at_most() -> None:
    with EmbeddedBroker({"group.initial.rebalance.delay.ms": 1000}) as fresh, ExitStack() as connections:
        wires = [connections.enter_context(Wire(fresh.bootstrap_servers)) for _ in range(100)]
        ids = {wire: call(wire, "join_group", 9, **join_fields("crowd")).member_id for wire in wires}
        by_socket = {wire.socket: wire for wire in wires}
        responses: dict[Wire, Any] = {}
        waiting = set(wires)
        for wire in wires:
            wire.send("join_group", 9, **join_fields("crowd", ids[wire]))
        while waiting:
            ready, _, _ = select.select([wire.socket for wire in waiting], [], [], 2)
            for each in ready:
                wire = by_socket[each]
                waiting.discard(wire)
                _, responses[wire] = wire.receive("join_group", 9)
                assert responses[wire].error_code == 0
            if not ready:  # members that have a response are asked to join again, as their heartbeats tell them
                for wire in set(wires) - waiting:
                    fields = {"group_id": "crowd", "member_id": ids[wire]}
                    beat = call(wire, "heartbeat", 4, **fields, generation_id=responses[wire].generation_id)
                    if beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                        wire.send("join_group", 9, **join_fields("crowd", ids[wire]))
                        waiting.add(wire)
        (generation,) = {response.generation_id for response in responses.values()}
        assert generation <= 2
        (leader,) = [response for response in responses.values() if response.members]
        assert {row.member_id for row in leader.members} == set(ids.values())


def test_a_member_with_more_than_a_record_has_room_for_gets_an_error_and_the_group_goes_on(bootstrap: str) -> None:
    """As Kafka: SyncGroup gets UNKNOWN_SERVER_ERROR, and nothing is written. Other members then form the group."""
    with Wire(bootstrap) as large, Wire(bootstrap) as small:
        group = "large"
        protocols = [{"name": "range", "metadata": bytes(2 << 20)}]
        fields = join_fields(group, protocols=protocols)
        member = call(large, "join_group", 9, **fields).member_id
        joined = call(large, "join_group", 9, **{**fields, "member_id": member})
        assert joined.error_code == 0 and len(joined.members[0].metadata) == 2 << 20
        who = {"group_id": group, "generation_id": joined.generation_id, "member_id": member}
        for assignment in (b"all", bytes(2 << 20)):
            rows = [{"member_id": member, "assignment": assignment}]
            response = call(large, "sync_group", 5, **PROTOCOL, **who, assignments=rows)
            assert response.error_code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REBALANCE_IN_PROGRESS)
        left = call(large, "leave_group", 5, group_id=group, members=[{"member_id": member}])
        assert left.error_code == 0 and left.members[0].error_code == 0
        make_stable(small, group)
