"""Share groups on the raw wire: sessions and their epochs, what is refused, state, offsets, lost connections."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.testing import EmbeddedBroker
from tests import wire as wires
from tests.integration.node.broker.unreadable import unreadable
from tests.wire import Wire

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
LATER = 2_000_000_000
"""A state epoch behind that of what a group begins with, which is counted in seconds."""


class Group:
    """One member of a share group, byte by byte."""

    def __init__(self, wire: Wire, topic: str, group_id: str, member_id: str = "member-1") -> None:
        self.wire = wire
        self.topic = topic
        self.group_id = group_id
        self.member_id = member_id
        self.topic_id: UUID = wire.call("metadata", 12, topics=[{"name": topic}]).topics[0].topic_id
        self.epoch = 0
        self.has_joined = False

    def configure(self, **settings: str) -> int:
        rows = [{"name": name, "config_operation": 0, "value": value} for name, value in settings.items()]
        resource = {"resource_type": 32, "resource_name": self.group_id, "configs": rows}
        return int(self.wire.call("incremental_alter_configs", 1, resources=[resource]).responses[0].error_code)

    def heartbeat(self, epoch: int = 0, topics: list[str] | None = None, **fields: Any) -> Message:
        given = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": epoch, **fields}
        self.has_joined = True
        return self.wire.call("share_group_heartbeat", 1, subscribed_topic_names=topics, **given)

    def begin(self) -> None:
        """There is state only of what a group reads or once read."""
        if not self.has_joined:
            self.heartbeat(0, [self.topic])
            self.heartbeat(-1)

    def fetch(self, *acks: tuple[int, int, list[int]], epoch: int | None = None, **fields: Any) -> Message:
        self.begin()
        used = self.epoch if epoch is None else epoch
        version = fields.pop("version", 2)
        options = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100}
        response = self.wire.call(
            "share_fetch",
            version,
            **{"group_id": self.group_id, "member_id": self.member_id, **options, **fields},
            share_session_epoch=used,
            topics=self._topics(acks),
        )
        if not response.error_code:
            self.epoch = used + 1
        return response

    def acknowledge(self, *acks: tuple[int, int, list[int]], epoch: int | None = None, **fields: Any) -> Message:
        used = self.epoch if epoch is None else epoch
        response = self.wire.call(
            "share_acknowledge",
            2,
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=used,
            topics=self._topics(acks),
            **fields,
        )
        if not response.error_code:
            self.epoch = used + 1
        return response

    def _topics(self, acks: tuple[tuple[int, int, list[int]], ...]) -> list[dict[str, Any]]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": kinds} for first, last, kinds in acks
        ]
        row = {"partition_index": 0, "acknowledgement_batches": batches}
        return [{"topic_id": self.topic_id, "partitions": [row]}]

    def state(self, api: str, **row: Any) -> Message:
        topics = [{"topic_id": self.topic_id, "partitions": [{"partition": 0, **row}]}]
        response = self.wire.call(f"{api}_share_group_state", 0, group_id=self.group_id, topics=topics)
        return response.results[0].partitions[0]


@pytest.fixture
def group(wire: Wire, topic: str) -> Group:
    made = Group(wire, topic, f"group-of-{topic}")
    assert made.configure(**{"share.auto.offset.reset": "earliest"}) == 0
    return made


def row(response: Message) -> Message:
    return response.responses[0].partitions[0]


def acquired(response: Message) -> list[tuple[int, int, int]]:
    if not response.responses:
        return []
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in row(response).acquired_records]


def test_fetch_acknowledge_and_fetch_again(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a", b"b", b"c"))
    first = group.fetch()
    assert acquired(first) == [(0, 2, 1)]
    assert wires.values(row(first).records) == [b"a", b"b", b"c"]
    assert first.acquisition_lock_timeout_ms == 30_000
    second = group.fetch((0, 2, [ACCEPT, RELEASE, REJECT]))
    assert row(second).acknowledge_error_code == 0
    assert acquired(second) == [(1, 1, 2)]
    assert wires.values(row(second).records) == [b"a", b"b", b"c"]  # whole batches; the client takes what is its own
    assert row(group.acknowledge((1, 1, [ACCEPT]))).error_code == 0
    assert group.fetch(max_wait_ms=0).responses == []


@pytest.mark.parametrize("key_order", ["false", "true"])
def test_a_batch_that_no_member_can_read_is_passed_over_when_it_comes_back(
    broker: EmbeddedBroker, group: Group, key_order: str
) -> None:
    """Members drop what is behind it in the same response, too; that must not be given up with it."""
    assert group.configure(**{"share.key.order": key_order}) == 0
    for data in (wires.batch(b"a"), unreadable(), wires.batch(b"b")):
        assert group.wire.produce(group.topic, data).error_code == 0
    first = group.fetch()
    assert (acquired(first)[0][0], acquired(first)[-1][1]) == (0, 4)
    again = group.fetch((0, 0, [ACCEPT]), (1, 4, [RELEASE]))
    assert acquired(again) == [(4, 4, 2)]
    assert wires.values(row(again).records) == [b"b"]
    assert f"batch_unreadable topic={group.topic} partition=0 offsets=1-3" in broker.log_file.read_text()


def test_version_1_is_the_same(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a"))
    assert acquired(group.fetch(version=1)) == [(0, 0, 1)]


def test_max_records_is_a_hint_or_a_limit(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a", b"b", b"c"))
    group.wire.produce(group.topic, wires.batch(b"d", b"e"))
    assert acquired(group.fetch(max_records=2, share_acquire_mode=1)) == [(0, 1, 1)]
    assert acquired(group.fetch(max_records=1)) == [(2, 2, 1)]
    assert acquired(group.fetch(max_records=1)) == [(3, 4, 1)]


def test_a_fetch_of_no_bytes_acknowledges_only(group: Group) -> None:
    """As in Kafka: it has no records, and does not wait for any."""
    group.wire.produce(group.topic, wires.batch(b"a"))
    assert group.fetch(max_bytes=0, max_wait_ms=60_000).responses == []
    assert acquired(group.fetch(max_bytes=1)) == [(0, 0, 1)]
    assert group.fetch((0, 0, [1]), max_bytes=0).responses[0].partitions[0].acknowledge_error_code == 0


def test_a_fetch_waits_for_a_record(broker: EmbeddedBroker, group: Group) -> None:
    group.fetch(max_wait_ms=0)
    group.wire.send(
        "share_fetch",
        2,
        group_id=group.group_id,
        member_id=group.member_id,
        share_session_epoch=1,
        max_wait_ms=20_000,
        min_bytes=1,
        max_records=10,
    )
    with Wire(broker.bootstrap_servers) as other:
        other.produce(group.topic, wires.batch(b"a"))
    _, response = group.wire.receive("share_fetch", 2)
    assert acquired(response) == [(0, 0, 1)]


def test_a_fetch_waits_for_a_record_that_is_given_back(broker: EmbeddedBroker, group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a"))
    assert acquired(group.fetch()) == [(0, 0, 1)]
    with Wire(broker.bootstrap_servers) as connection:
        other = Group(connection, group.topic, group.group_id, "member-2")
        other.fetch(max_wait_ms=0)
        other.wire.send(
            "share_fetch",
            2,
            group_id=group.group_id,
            member_id="member-2",
            share_session_epoch=1,
            max_wait_ms=20_000,
            min_bytes=1,
            max_records=10,
        )
        group.acknowledge((0, 0, [RELEASE]))
        _, response = connection.receive("share_fetch", 2)
        assert acquired(response) == [(0, 0, 2)]


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([(0, 0, [9])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [-1])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [RENEW])], ErrorCode.INVALID_REQUEST),  # only where the request says that it renews
        ([(0, 0, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [ACCEPT, ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(1, 0, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(1, 1, [ACCEPT]), (0, 0, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [ACCEPT]), (1, 2, [ACCEPT])], ErrorCode.INVALID_RECORD_STATE),
        ([(7, 7, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 7, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 1 << 62, [ACCEPT])], ErrorCode.INVALID_REQUEST),
    ],
)
def test_acknowledgements_that_are_refused_change_nothing(
    group: Group, acks: list[tuple[int, int, list[int]]], code: ErrorCode
) -> None:
    group.wire.produce(group.topic, wires.batch(b"a", b"b", b"c"))
    group.fetch()
    assert row(group.acknowledge(*acks)).error_code == code
    assert row(group.fetch(*acks)).acknowledge_error_code == code
    assert row(group.acknowledge((0, 2, [ACCEPT]))).error_code == 0


def test_a_lock_is_renewed_if_the_group_allows_it(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a"))
    group.fetch()
    assert row(group.acknowledge((0, 0, [RENEW]), is_renew_ack=True)).error_code == 0
    group.configure(**{"share.renew.acknowledge.enable": "false"})
    refused = group.acknowledge((0, 0, [RENEW]), is_renew_ack=True)
    assert row(refused).error_code == ErrorCode.INVALID_RECORD_STATE


def test_requests_with_a_wrong_session_epoch_are_refused(group: Group) -> None:
    assert group.fetch(epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert group.acknowledge(epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert group.acknowledge(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert group.fetch(epoch=0, max_wait_ms=0).error_code == 0
    assert group.fetch(epoch=2).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert group.acknowledge(epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert group.fetch(epoch=1, max_wait_ms=0).error_code == 0
    assert group.fetch(epoch=-2).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert group.fetch((0, 0, [ACCEPT]), epoch=0).error_code == ErrorCode.INVALID_REQUEST
    assert group.fetch(epoch=-1).error_code == 0
    assert group.fetch(epoch=2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_names_that_are_missing(group: Group) -> None:
    for field in ("group_id", "member_id"):
        assert group.fetch(epoch=0, **{field: None}).error_code == ErrorCode.INVALID_REQUEST
        assert group.fetch(epoch=0, **{field: ""}).error_code == ErrorCode.INVALID_REQUEST


def test_names_that_are_too_long(group: Group) -> None:
    for field in ("group_id", "member_id"):
        assert group.fetch(epoch=0, **{field: "x" * 8001}).error_code == ErrorCode.INVALID_REQUEST
    assert group.heartbeat(0, [group.topic], member_id="x" * 8001).error_code == ErrorCode.INVALID_REQUEST
    group.group_id = "x" * 8001
    assert group.state("initialize", state_epoch=0, start_offset=0).error_code == ErrorCode.INVALID_REQUEST


def test_groups_that_are_invented_leave_nothing_behind(group: Group) -> None:
    group.has_joined = True
    assert row(group.fetch(epoch=0)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert row(group.fetch((0, 0, [ACCEPT]))).acknowledge_error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert group.state("read", leader_epoch=0).error_code == ErrorCode.INVALID_REQUEST


def test_a_new_group_does_not_go_on_where_an_old_one_of_its_name_was(group: Group) -> None:
    """After a crash between the deletion of a group and that of its state."""
    group.wire.produce(group.topic, wires.batch(b"a", b"b"))
    group.state("initialize", state_epoch=0, start_offset=1)
    group.heartbeat(0, [group.topic])
    assert acquired(group.fetch()) == [(0, 1, 1)]


def test_state_that_changes_under_a_leader_is_loaded_again(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a", b"b"))
    assert acquired(group.fetch()) == [(0, 1, 1)]
    group.state("initialize", state_epoch=LATER, start_offset=1)
    assert row(group.acknowledge((0, 1, [ACCEPT]))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert acquired(group.fetch()) == [(1, 1, 1)]


def test_topics_that_are_missing(group: Group) -> None:
    group.topic_id = UUID(int=77)
    assert row(group.fetch()).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_lost_connection_gives_records_back(broker: EmbeddedBroker, group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a"))
    with Wire(broker.bootstrap_servers) as connection:
        other = Group(connection, group.topic, group.group_id, "member-2")
        assert acquired(other.fetch()) == [(0, 0, 1)]
    assert acquired(group.fetch(max_wait_ms=20_000)) == [(0, 0, 2)]


def test_the_final_epoch_gives_records_back(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a", b"b"))
    group.fetch()
    assert row(group.fetch((0, 0, [ACCEPT]), epoch=-1)).acknowledge_error_code == 0
    assert acquired(group.fetch(epoch=0)) == [(1, 1, 2)]


# Members


def test_heartbeats_assign_partitions_and_check_the_epoch(group: Group) -> None:
    joined = group.heartbeat(0, [group.topic])
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    assert joined.assignment.topic_partitions[0].partitions == [0, 1]
    assert group.heartbeat(1).assignment is None
    assert group.heartbeat(7).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert group.heartbeat(1, member_id="nobody").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    second = group.heartbeat(0, [group.topic], member_id="member-2")
    assert second.assignment.topic_partitions[0].partitions in ([0], [1])
    moved = group.heartbeat(1)
    assert (moved.member_epoch, len(moved.assignment.topic_partitions[0].partitions)) == (2, 1)
    described = group.wire.call("share_group_describe", 1, group_ids=[group.group_id, "unknown"]).groups
    assert (described[0].group_state, described[0].group_epoch, len(described[0].members)) == ("Stable", 2, 2)
    assert (described[1].error_code, described[1].group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    listed = {each.group_id: each for each in group.wire.call("list_groups", 5, types_filter=["share"]).groups}
    assert (listed[group.group_id].group_type, listed[group.group_id].protocol_type) == ("share", "share")
    refused = group.wire.call("delete_groups", 2, groups_names=[group.group_id]).results[0]
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    for member_id in ("member-1", "member-2"):
        assert group.heartbeat(-1, member_id=member_id).member_epoch == -1
    assert group.wire.call("delete_groups", 2, groups_names=[group.group_id]).results[0].error_code == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"epoch": -3},
        {"epoch": 0, "topics": None},
        {"epoch": 0, "topics": []},
        {"rack_id": ""},
    ],
)
def test_heartbeats_that_are_refused(group: Group, fields: dict[str, Any]) -> None:
    response = group.heartbeat(**{"epoch": 0, "topics": [group.topic], **fields})
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_group_of_another_kind(group: Group) -> None:
    fields = {"group_id": group.group_id, "protocol_type": "consumer", "session_timeout_ms": 10_000}
    protocols = [{"name": "range", "metadata": b""}]
    wanted = group.wire.call("join_group", 9, **fields, rebalance_timeout_ms=1000, protocols=protocols)
    group.wire.send(
        "join_group", 9, **fields, rebalance_timeout_ms=1000, protocols=protocols, member_id=wanted.member_id
    )
    group.wire.receive("join_group", 9)
    assert group.heartbeat(0, [group.topic]).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# State and offsets


def test_state_on_the_wire(group: Group) -> None:
    assert group.state("read", leader_epoch=0).error_code == ErrorCode.INVALID_REQUEST
    batch = {"first_offset": 5, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}
    write = {"state_epoch": 3, "leader_epoch": 0, "start_offset": 4, "state_batches": [batch]}
    assert group.state("write", **write).error_code == ErrorCode.INVALID_REQUEST
    for wrong in ({"state_epoch": -1, "start_offset": 0}, {"state_epoch": 0, "start_offset": -2}):
        assert group.state("initialize", **wrong).error_code == ErrorCode.INVALID_REQUEST
    assert group.state("initialize", state_epoch=3, start_offset=2).error_code == 0
    assert group.state("initialize", state_epoch=2, start_offset=2).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert group.state("write", **write).error_code == 0
    beyond = group.state("write", **{**write, "leader_epoch": 2**31 - 1}).error_code
    assert beyond == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no leader has this epoch"
    assert group.state("write", **{**write, "state_epoch": 1}).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert group.state("write", **{**write, "state_epoch": 2**31 - 1}).error_code == ErrorCode.INVALID_REQUEST
    assert group.state("write", **{**write, "start_offset": -9}).error_code == ErrorCode.INVALID_REQUEST
    for wrong in ({"delivery_state": 1}, {"delivery_state": 77}, {"first_offset": 10}, {"delivery_count": -1}):
        rows = {"state_batches": [{**batch, **wrong}]}
        assert group.state("write", **{**write, **rows}).error_code == ErrorCode.INVALID_REQUEST
    read = group.state("read", leader_epoch=0)
    kept = [(each.first_offset, each.last_offset, each.delivery_state) for each in read.state_batches]
    assert (read.state_epoch, read.start_offset, kept) == (3, 4, [(5, 9, 2)])
    topics = [{"topic_id": group.topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    summary = group.wire.call("read_share_group_state_summary", 1, group_id=group.group_id, topics=topics)
    assert summary.results[0].partitions[0].start_offset == 4
    assert group.state("delete").error_code == 0
    assert group.state("read", leader_epoch=0).error_code == ErrorCode.INVALID_REQUEST


def offsets(group: Group, topics: Any = None) -> Message:
    asked = [{"group_id": group.group_id, "topics": topics}]
    return group.wire.call("describe_share_group_offsets", 1, groups=asked).groups[0]


def test_offsets_are_described_altered_and_deleted(group: Group) -> None:
    assert offsets(group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    group.wire.produce(group.topic, wires.batch(b"a", b"b", b"c", b"d"))
    group.heartbeat(0, [group.topic])
    group.fetch()
    group.acknowledge((0, 0, [ACCEPT]), (2, 2, [ACCEPT]))
    described = offsets(group).topics[0].partitions[0]
    assert (described.start_offset, described.lag) == (1, 2)
    wanted = [{"topic_name": group.topic, "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    alter = {"group_id": group.group_id, "topics": wanted}
    assert group.wire.call("alter_share_group_offsets", 0, **alter).error_code == ErrorCode.NON_EMPTY_GROUP
    delete = {"group_id": group.group_id, "topics": [{"topic_name": group.topic}]}
    assert group.wire.call("delete_share_group_offsets", 0, **delete).error_code == ErrorCode.NON_EMPTY_GROUP
    group.heartbeat(-1)
    altered = group.wire.call("alter_share_group_offsets", 0, **alter)
    assert altered.responses[0].partitions[0].error_code == 0
    assert acquired(group.fetch(epoch=0)) == [(0, 3, 1)]
    deleted = group.wire.call("delete_share_group_offsets", 0, **delete)
    assert (deleted.error_code, deleted.responses[0].error_code) == (0, 0)
    assert offsets(group).topics == []
    missing = offsets(group, [{"topic_name": "missing", "partitions": [0]}])
    assert missing.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = [{"topic_name": "missing", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    negative = [{"topic_name": group.topic, "partitions": [{"partition_index": 0, "start_offset": -7}]}]
    response = group.wire.call("alter_share_group_offsets", 0, group_id=group.group_id, topics=negative)
    assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
    response = group.wire.call("alter_share_group_offsets", 0, group_id=group.group_id, topics=unknown)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_coordinator_of_a_share_partition(group: Group, broker: EmbeddedBroker) -> None:
    keys = [f"{group.group_id}:AAAAAAAAAAAAAAAAAAAAAA:0", "nonsense"]
    found = group.wire.call("find_coordinator", 6, key_type=2, coordinator_keys=keys).coordinators
    assert found[0].error_code == 0 and broker.bootstrap_servers.endswith(f":{found[0].port}")
    assert found[1].error_code == ErrorCode.INVALID_REQUEST


def test_features_say_that_there_are_share_groups(wire: Wire) -> None:
    response = wire.call("api_versions", 4, client_software_name="test", client_software_version="1")
    assert {each.name: each.max_version_level for each in response.finalized_features}["share.version"] == 1


# Settings of groups


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "sometimes"),
        ("share.auto.offset.reset", "by_duration:1h"),
        ("share.record.lock.duration.ms", "1"),
        ("share.isolation.level", "none"),
        ("share.nothing", "1"),
        ("errors.deadletterqueue.topic.name", "letters"),
        ("errors.deadletterqueue.topic.name", "__consumer_offsets"),
        ("share.session.timeout.ms", "1"),
    ],
)
def test_settings_that_are_refused(group: Group, name: str, value: str) -> None:
    assert group.configure(**{name: value}) == ErrorCode.INVALID_CONFIG


def test_settings_are_described(group: Group, new_name: Callable[[], str]) -> None:
    assert group.configure(**{"share.auto.offset.reset": "by_duration:PT1H", "share.key.order": "true"}) == 0
    asked = [{"resource_type": 32, "resource_name": group.group_id, "configuration_keys": None}]
    rows = group.wire.call("describe_configs", 4, resources=asked, include_synonyms=True).results[0].configs
    found = {each.name: (each.value, each.config_source) for each in rows}
    assert found["share.key.order"] == ("true", 8)
    assert found["share.record.lock.duration.ms"] == ("30000", 5)
    nameless = [{"resource_type": 32, "resource_name": "", "configs": []}]
    refused = group.wire.call("incremental_alter_configs", 1, resources=nameless).responses[0]
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_groups_with_settings_are_listed(group: Group) -> None:
    listed = group.wire.call("list_config_resources", 1, resource_types=[32]).config_resources
    assert group.group_id in {each.resource_name for each in listed}
    assert {each.resource_type for each in listed} == {32}
    everything = group.wire.call("list_config_resources", 1, resource_types=[]).config_resources
    assert {each.resource_type for each in everything} >= {2, 4, 32}
    assert group.wire.call("list_config_resources", 0).config_resources == []
    refused = group.wire.call("list_config_resources", 1, resource_types=[3])
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_by_duration_begins_in_the_past(group: Group) -> None:
    hours_ago = wires.now_ms() - 7_200_000
    group.wire.produce(group.topic, wires.batch(b"old", timestamp=hours_ago))
    group.wire.produce(group.topic, wires.batch(b"new"))
    group.configure(**{"share.auto.offset.reset": "by_duration:PT1H"})
    assert acquired(group.fetch()) == [(1, 1, 1)]


def test_deleting_records_moves_the_queue(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a", b"b"))
    group.wire.produce(group.topic, wires.batch(b"c"))
    group.fetch(max_wait_ms=0)
    topics = [{"name": group.topic, "partitions": [{"partition_index": 0, "offset": 2}]}]
    group.wire.call("delete_records", 2, topics=topics, timeout_ms=1000)
    group.acknowledge((2, 2, [RELEASE]))
    assert acquired(group.fetch()) == [(2, 2, 2)]


def test_a_topic_that_is_deleted_under_the_group(group: Group) -> None:
    group.wire.produce(group.topic, wires.batch(b"a"))
    group.heartbeat(0, [group.topic])
    assert acquired(group.fetch()) == [(0, 0, 1)]
    group.wire.call("delete_topics", 6, topics=[{"name": group.topic}], timeout_ms=1000)
    assert row(group.fetch(max_wait_ms=5000)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert row(group.acknowledge((0, 0, [ACCEPT]))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert group.heartbeat(1).assignment.topic_partitions == []


def test_state_of_records_that_the_log_lost_is_taken_back(group: Group) -> None:
    """After a power cut: acknowledgements are on disk, the records they were for are not."""
    group.begin()
    group.wire.produce(group.topic, wires.batch(b"a", b"b"))
    group.state("initialize", state_epoch=LATER, start_offset=0)
    lost = {"first_offset": 1, "last_offset": 3, "delivery_state": 2, "delivery_count": 1}
    group.state("write", state_epoch=LATER, leader_epoch=0, start_offset=0, state_batches=[lost])
    assert acquired(group.fetch()) == [(0, 0, 1)]
    group.wire.produce(group.topic, wires.batch(b"c", b"d"))
    assert acquired(group.fetch()) == [(2, 3, 1)]


def test_a_start_beyond_the_log_is_taken_back(group: Group) -> None:
    group.begin()
    group.state("initialize", state_epoch=LATER, start_offset=5)
    group.fetch(max_wait_ms=0)
    group.wire.produce(group.topic, wires.batch(b"a"))
    assert acquired(group.fetch()) == [(0, 0, 1)]


def test_closing_a_session_ends_its_waiting_fetch(broker: EmbeddedBroker, group: Group) -> None:
    group.fetch(max_wait_ms=0)
    fields = {"group_id": group.group_id, "member_id": group.member_id}
    group.wire.send("share_fetch", 2, **fields, share_session_epoch=1, max_wait_ms=1000, min_bytes=1, max_records=10)
    with Wire(broker.bootstrap_servers) as other:
        assert other.call("share_acknowledge", 2, **fields, share_session_epoch=-1).error_code == 0
        other.produce(group.topic, wires.batch(b"a"))
        _, response = group.wire.receive("share_fetch", 2)
        assert acquired(response) == []  # no one is left to hold it
        assert acquired(Group(other, group.topic, group.group_id, "member-2").fetch()) == [(0, 0, 1)]


# Dead letters


def letters(group: Group, topic: str) -> list[bytes]:
    """What the dead-letter topic holds, once it holds something."""
    response = group.wire.fetch(topic, max_wait_ms=10_000, min_bytes=1)
    return wires.values(response.records)


def test_a_letter_that_was_under_way_when_the_broker_died_arrives(group: Group) -> None:
    graveyard = f"dlq.{group.topic}"
    group.wire.create_topic(graveyard, 1, **{"errors.deadletterqueue.group.enable": "true"})
    assert group.configure(**{"errors.deadletterqueue.topic.name": graveyard}) == 0
    group.wire.produce(group.topic, wires.batch(b"poison", b"fine"))
    group.begin()
    group.state("initialize", state_epoch=LATER, start_offset=0)
    under_way = {"first_offset": 0, "last_offset": 0, "delivery_state": 3, "delivery_count": 1}
    group.state("write", state_epoch=LATER, leader_epoch=0, start_offset=0, state_batches=[under_way])
    assert acquired(group.fetch()) == [(1, 1, 1)]
    assert letters(group, graveyard) == [b"poison"]
    group.acknowledge((1, 1, [ACCEPT]))
    assert group.state("read", leader_epoch=0).start_offset == 2


def test_without_a_copy_a_letter_says_only_where_the_record_was(group: Group) -> None:
    graveyard = f"dlq.{group.topic}"
    group.wire.create_topic(graveyard, 1, **{"errors.deadletterqueue.group.enable": "true"})
    group.configure(
        **{"errors.deadletterqueue.topic.name": graveyard, "errors.deadletterqueue.copy.record.enable": "false"}
    )
    group.wire.produce(group.topic, wires.batch(b"secret"))
    group.fetch()
    group.acknowledge((0, 0, [REJECT]))
    response = group.wire.fetch(graveyard, max_wait_ms=10_000, min_bytes=1)
    content = response.records
    assert b"secret" not in content and b"__dlq.errors.offset" in content


@pytest.mark.parametrize("exists", [False, True])
def test_a_dead_letter_topic_that_cannot_be_used_does_not_stop_the_group(group: Group, exists: bool) -> None:
    graveyard = f"dlq.{group.topic}"
    if exists:  # but it is not meant for dead letters
        group.wire.create_topic(graveyard, 1)
    group.configure(**{"errors.deadletterqueue.topic.name": graveyard})
    group.wire.produce(group.topic, wires.batch(b"a", b"b"))
    group.fetch()
    assert row(group.acknowledge((0, 0, [REJECT]), (1, 1, [ACCEPT]))).error_code == 0
    assert group.fetch(max_wait_ms=300).responses == []
    assert group.state("read", leader_epoch=0).start_offset == 2
