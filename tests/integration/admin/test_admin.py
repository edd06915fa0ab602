"""`millstream.admin` against a real broker: topics, settings, groups, offset resets, the cluster, transactions."""

from collections.abc import Iterator

import pytest

import millstream
from millstream.admin import (
    Admin,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    GroupNotEmptyError,
    NotFoundError,
    RefusedError,
    ResetTarget,
    TopicPartition,
)
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from tests.topics import make_topic
from tests.waiting import TIMEOUT_SECONDS


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers, timeout_s=TIMEOUT_SECONDS) as opened:
        yield opened


def test_topics_are_created_described_changed_and_deleted(admin: Admin) -> None:
    admin.topics.create("made", 2, configs={"retention.ms": "60000"})
    assert len(admin.topics.topic("made").partitions) == 2
    assert admin.topics.setting(ConfigResource.TOPIC, "made", "retention.ms").value == "60000"
    admin.topics.change(ConfigResource.TOPIC, "made", [ConfigChange("retention.ms", None, ConfigOperation.DELETE)])
    assert not admin.topics.setting(ConfigResource.TOPIC, "made", "retention.ms").is_own
    admin.topics.add_partitions("made", 3)
    assert admin.partitions_of("made") == [TopicPartition("made", index) for index in range(3)]
    admin.topics.delete("made")
    with pytest.raises(RefusedError, match="UNKNOWN_TOPIC"):
        admin.topics.topic("made")


def test_a_partition_that_does_not_exist_is_not_found(admin: Admin) -> None:
    admin.topics.create("one", 1)
    with pytest.raises(NotFoundError, match="has partitions 0 to 0, not 4"):
        admin.partitions_of("one", [4])


def test_a_reset_returns_the_moves_and_applies_them_unless_it_is_a_dry_run(
    broker: EmbeddedBroker, admin: Admin
) -> None:
    admin.topics.create("orders", 2)
    with millstream.connect(broker.bootstrap_servers) as client:
        client.publish_many("orders", [millstream.client.Message(f"{n}", partition=n % 2) for n in range(20)])
    partitions = admin.partitions_of("orders")
    (first, second) = admin.groups.reset_offsets("billing", ResetTarget.to_offset(7), partitions, dry_run=True)
    assert (first.old, first.new, first.is_clamped, second.new) == (None, 7, False, 7)
    assert admin.groups.find("billing") is None
    admin.groups.reset_offsets("billing", ResetTarget.latest(), partitions)
    assert {row.offset for row in admin.groups.progress("billing").values()} == {10}
    moves = admin.groups.reset_offsets("billing", ResetTarget.shift_by(-100), partitions)
    assert [(move.old, move.new, move.is_clamped) for move in moves] == [(10, 0, True), (10, 0, True)]
    admin.groups.reset_offsets("billing", ResetTarget.to_offsets({partitions[1]: 3}), [partitions[1]])
    assert admin.groups.offsets("billing") == {partitions[0]: 0, partitions[1]: 3}
    assert [row.lag for row in admin.groups.progress("billing").values()] == [10, 7]
    assert [row.name for row in admin.groups.groups()] == ["billing"]
    admin.groups.delete("billing")
    assert admin.groups.find("billing") is None


def test_the_offsets_of_a_group_with_members_cannot_be_reset(broker: EmbeddedBroker, admin: Admin) -> None:
    from confluent_kafka import Consumer

    admin.topics.create("busy", 1)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "workers"})
    try:
        consumer.subscribe(["busy"])
        for _ in range(100):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        with pytest.raises(GroupNotEmptyError, match="stop its consumers first"):
            admin.groups.reset_offsets("workers", ResetTarget.earliest(), admin.partitions_of("busy"))
        (member,) = admin.groups.group("workers").members
        assert member.assignment == [TopicPartition("busy", 0)]
        (listed,) = [group for group in admin.groups.groups_on(1, timeout_s=TIMEOUT_SECONDS) if group.name == "workers"]
        assert [each.assignment for each in listed.members] == [member.assignment]
    finally:
        consumer.close()


def test_a_share_group_must_exist_for_a_reset(admin: Admin) -> None:
    admin.topics.create("jobs", 1)
    with pytest.raises(RefusedError, match="GROUP_ID_NOT_FOUND"):
        admin.groups.reset_offsets("nobody", ResetTarget.latest(), admin.partitions_of("jobs"), share=True)


def test_the_state_of_the_cluster_is_read_at_once(admin: Admin) -> None:
    admin.topics.create("seen", 1)
    state = admin.cluster.read()
    assert [broker.id for broker in state.live] == [1] and not state.unresponsive
    assert state.quorum.leader == 1 and state.quorum.voters[0].is_leader
    (partition,) = [each for each in state.partitions if each.topic == "seen"]
    assert (partition.leader, partition.replicas, partition.is_led_as_preferred) == (1, (1,), True)
    with pytest.raises(NotFoundError, match="there is no broker 9; the brokers are 1"):
        state.broker(9)
    assert admin.cluster.reassignments() == []


def test_transactions_are_listed_and_an_unknown_id_is_none(admin: Admin) -> None:
    assert admin.transactions.transactions() == []
    assert admin.transactions.find("nobody") is None
    assert admin.transactions.open_in(admin.transactions.partitions()) == []


def test_records_are_deleted_at_the_next_leader_if_the_leader_is_gone() -> None:
    with EmbeddedCluster(3) as cluster:
        topic = make_topic(cluster, "deleted", replicas=3)
        with (
            millstream.connect(cluster.bootstrap_servers) as client,
            Admin(cluster.bootstrap_servers, timeout_s=TIMEOUT_SECONDS) as admin,
        ):
            client.publish_many(topic, [millstream.client.Message(str(n)) for n in range(10)])
            planned = admin.topics.plan_deletion(topic, before_offset=4)  # the client knows the leader from here on
            leader = client.describe_topic(topic).partitions[0].leader
            assert leader is not None
            cluster.kill(leader)
            admin.topics.delete_records(topic, planned)
            assert admin.topics.plan_deletion(topic)[0].start == 4
