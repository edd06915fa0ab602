"""Records applied to an image: what changes, what is shared, what is reported, what cannot be."""

from dataclasses import replace
from uuid import UUID

import pytest

from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName, TopicPartition
from millstream.node.metadata.brokers import allocate_producer_ids
from millstream.node.metadata.features import first_records_of_leader, missing_features
from millstream.node.metadata.image import ConfigResource, MetadataImage, ResourceType, apply
from millstream.node.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    CorruptMetadataError,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from millstream.node.metadata.topics import NewTopic
from tests.unit.node.metadata.cluster import Cluster

A = TopicName("a")
ORDERS = TopicName("orders")
LATER = {"share.version": 1, "streams.version": 1, "transaction.version": 2, "eligible.leader.replicas.version": 1}


def some_cluster() -> Cluster:
    cluster = Cluster(2)
    cluster.create(NewTopic(name="a", partition_count=2), NewTopic(name="orders", configs={"retention.ms": "5"}))
    return cluster


def test_topics_are_found_by_name_and_by_id() -> None:
    image = some_cluster().image
    topic = image.topics[A]
    assert image.topics_by_id[topic.id] is topic
    assert len(topic.partitions) == 2
    assert image.partition(TopicPartition(A, 1)) is topic.partitions[1]
    assert image.partition(TopicPartition(A, 2)) is None
    assert image.partition(TopicPartition(A, -1)) is None
    assert image.partition(TopicPartition(TopicName("x"), 0)) is None
    assert image.topic_config("orders") == {"retention.ms": "5"}
    assert image.partition_count == 3


def test_what_was_not_touched_is_shared() -> None:
    cluster = some_cluster()
    before = cluster.image
    cluster.create(NewTopic(name="more"))
    after = cluster.image
    assert after.topics[A] is before.topics[A]
    assert after.brokers is before.brokers
    assert after.configs is before.configs
    assert TopicName("more") not in before.topics
    assert (after.offset, after.epoch) == (before.offset + 2, 1)


def test_the_delta_names_what_changed() -> None:
    cluster = some_cluster()
    a, orders = cluster.image.topics[A], cluster.image.topics[ORDERS]
    delta = cluster.write(
        [
            PartitionChangeRecord(partition_id=1, topic_id=a.id, leader=2),
            RemoveTopicRecord(topic_id=orders.id),
            TopicRecord(name=ORDERS, topic_id=TopicId(UUID(int=77))),
            PartitionRecord(partition_id=0, topic_id=TopicId(UUID(int=77)), replicas=(1,), isr=(1,), leader=1),
        ]
    )
    assert delta.deleted == {orders.id: orders}
    assert delta.created == {ORDERS: cluster.image.topics[ORDERS]}
    assert delta.changed == {A: cluster.image.topics[A]}
    assert delta.configs == {ConfigResource(ResourceType.TOPIC, "orders")}
    assert cluster.image.topic_config("orders") == {}
    assert cluster.image.topics[ORDERS].id.int == 77


def test_a_topic_that_comes_and_goes_within_one_batch_leaves_no_trace() -> None:
    cluster = some_cluster()
    before = cluster.image
    topic_id = TopicId(UUID(int=5))
    delta = cluster.write(
        [
            TopicRecord(name=TopicName("x_y"), topic_id=topic_id),
            ConfigRecord(resource_type=2, resource_name="x_y", name="retention.ms", value="1"),
            PartitionRecord(partition_id=0, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1),
            RemoveTopicRecord(topic_id=topic_id),
        ]
    )
    assert (delta.created, delta.deleted, delta.changed) == ({}, {}, {})
    after = cluster.image
    assert (after.topics, after.topics_by_id, after.configs) == (before.topics, before.topics_by_id, before.configs)
    assert after.names_by_folded == before.names_by_folded


def test_a_named_leader_begins_a_new_epoch_and_every_change_counts() -> None:
    cluster = some_cluster()
    topic = cluster.image.topics[A]
    old = topic.partitions[0]
    cluster.write([PartitionChangeRecord(partition_id=0, topic_id=topic.id, leader=old.leader)])
    new = cluster.image.topics[A].partitions[0]
    assert (new.leader, new.leader_epoch, new.partition_epoch) == (old.leader, old.leader_epoch + 1, 1)
    cluster.write([PartitionChangeRecord(partition_id=0, topic_id=topic.id, isr=(2, 1), leader_recovery_state=1)])
    newer = cluster.image.topics[A].partitions[0]
    assert (newer.leader_epoch, newer.partition_epoch, newer.isr) == (new.leader_epoch, 2, (2, 1))
    assert newer.leader_recovery_state == 1


def test_settings_are_set_and_taken_away() -> None:
    cluster = some_cluster()
    resource = ConfigResource(ResourceType.BROKER, "")
    set_one = ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="9")
    assert cluster.write([set_one]).configs == {resource}
    assert cluster.image.default_broker_config == {"log.retention.ms": "9"}
    cluster.write([ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value=None)])
    assert resource not in cluster.image.configs
    assert cluster.image.broker_config(1) == {}


def test_brokers_are_fenced_unfenced_and_leave() -> None:
    cluster = some_cluster()
    broker = cluster.image.brokers[BrokerId(2)]
    fence = BrokerRegistrationChangeRecord(broker_id=BrokerId(2), broker_epoch=broker.epoch, fenced=1)
    assert cluster.write([fence]).brokers == {2}
    assert not cluster.image.brokers[BrokerId(2)].active
    cluster.write([BrokerRegistrationChangeRecord(broker_id=BrokerId(2), broker_epoch=broker.epoch, fenced=-1)])
    assert cluster.image.brokers[BrokerId(2)].active
    cluster.write(
        [BrokerRegistrationChangeRecord(broker_id=BrokerId(2), broker_epoch=broker.epoch, in_controlled_shutdown=1)]
    )
    assert not cluster.image.brokers[BrokerId(2)].active
    cluster.write([UnregisterBrokerRecord(broker_id=BrokerId(2), broker_epoch=broker.epoch)])
    assert BrokerId(2) not in cluster.image.brokers


def test_features_come_and_go() -> None:
    cluster = Cluster()
    assert cluster.image.features == {"metadata.version": 30, "group.version": 1, **LATER}
    cluster.write([FeatureLevelRecord(name="group.version", feature_level=0), NoOpRecord()])
    assert cluster.image.features == {"metadata.version": 30, **LATER}
    assert missing_features(cluster.image) == ()
    cluster.write([FeatureLevelRecord(name="group.version", feature_level=1)])
    assert cluster.image.features_off == frozenset()


def test_features_that_the_log_never_heard_of() -> None:
    image = apply(MetadataImage(), [FeatureLevelRecord(name="metadata.version", feature_level=29)], offset=0, epoch=1)[
        0
    ]
    assert {record.name for record in missing_features(image)} == {"group.version", *LATER}
    # They are not added by themselves: nodes of the previous version must be able to come back.
    assert first_records(replace(image, cluster_id="id")) == ()


def test_producer_ids_only_grow() -> None:
    cluster = Cluster()
    cluster.take(allocate_producer_ids(cluster.image, BrokerId(1), cluster.image.brokers[BrokerId(1)].epoch))
    assert cluster.image.next_producer_id == 1000


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (TopicRecord(name=A, topic_id=TopicId(UUID(int=9))), "creates topic a .* a second time"),
        (RemoveTopicRecord(topic_id=TopicId(UUID(int=9))), "does not exist"),
        (
            PartitionRecord(partition_id=0, topic_id=TopicId(UUID(int=9)), replicas=(1,), isr=(1,), leader=1),
            "does not exist",
        ),
        (PartitionChangeRecord(partition_id=0, topic_id=TopicId(UUID(int=9)), leader=1), "does not exist"),
        (UnregisterBrokerRecord(broker_id=BrokerId(1), broker_epoch=99), "not registered"),
        (BrokerRegistrationChangeRecord(broker_id=BrokerId(7), broker_epoch=1, fenced=1), "not registered"),
        (ProducerIdsRecord(broker_id=BrokerId(1), broker_epoch=1, next_producer_id=0), "are allocated"),
    ],
)
def test_records_that_contradict_the_image(record: MetadataRecord, message: str) -> None:
    cluster = some_cluster()
    before = cluster.image
    with pytest.raises(CorruptMetadataError, match=message):
        cluster.write([record])
    assert cluster.image is before


def test_partitions_without_a_gap() -> None:
    cluster = some_cluster()
    topic_id = cluster.image.topics[A].id
    for record in (
        PartitionRecord(partition_id=3, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1),
        PartitionRecord(partition_id=-1, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1),
        PartitionChangeRecord(partition_id=2, topic_id=topic_id, leader=1),
    ):
        with pytest.raises(CorruptMetadataError):
            cluster.write([record])


def test_an_empty_batch_only_moves_the_offset() -> None:
    image = MetadataImage(cluster_id="x")
    after, delta = apply(image, [], offset=4, epoch=2)
    assert (after.offset, after.epoch, delta.configs) == (4, 2, frozenset())


def test_records_of_a_transaction_take_effect_at_its_end() -> None:
    before = some_cluster().image
    change = ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="a", name="retention.ms", value="9")
    opened, _ = apply(before, [BeginTransactionRecord(name="x"), change], offset=90, epoch=1)
    assert opened.topic_config("a") == {}
    assert opened.pending == (change,)
    ended, delta = apply(opened, [EndTransactionRecord()], offset=91, epoch=1)
    assert ended.topic_config("a") == {"retention.ms": "9"}
    assert ended.pending is None
    assert delta.configs == {ConfigResource(ResourceType.TOPIC, "a")}
    aborted, _ = apply(opened, [AbortTransactionRecord()], offset=91, epoch=1)
    assert aborted.topic_config("a") == {}
    assert aborted.pending is None


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([BeginTransactionRecord(), BeginTransactionRecord()], "inside another"),
        ([EndTransactionRecord()], "did not begin"),
        ([AbortTransactionRecord()], "did not begin"),
        ([ClearElrRecord(topic_name="none")], "does not exist"),
    ],
)
def test_records_of_kafka_that_contradict_the_log(records: list[MetadataRecord], message: str) -> None:
    with pytest.raises(CorruptMetadataError, match=message):
        apply(some_cluster().image, records, offset=90, epoch=1)


def test_eligible_leaders_are_cleared_for_one_topic_or_for_all() -> None:
    cluster = some_cluster()
    for name in (A, ORDERS):
        topic = cluster.image.topics[name]
        cluster.write(
            [
                PartitionChangeRecord(
                    partition_id=0, topic_id=topic.id, eligible_leader_replicas=(1,), last_known_elr=(2,)
                )
            ]
        )
    cluster.write([ClearElrRecord(topic_name="a")])
    assert [cluster.partition(name).eligible_leader_replicas for name in ("a", "orders")] == [(), (1,)]
    cluster.write([ClearElrRecord(topic_name="")])
    assert cluster.partition("orders").last_known_elr == ()


def test_brokers_are_fenced_by_records_of_early_kafka() -> None:
    cluster = some_cluster()
    epoch = cluster.image.brokers[BrokerId(1)].epoch
    cluster.write([FenceBrokerRecord(id=BrokerId(1), epoch=epoch)])
    assert cluster.image.brokers[BrokerId(1)].fenced
    cluster.write([UnfenceBrokerRecord(id=BrokerId(1), epoch=epoch)])
    assert not cluster.image.brokers[BrokerId(1)].fenced


def first_records(image: MetadataImage, *formatted: MetadataRecord) -> tuple[MetadataRecord, ...]:
    return first_records_of_leader(image, lambda: "id", Cluster().config, formatted)


def test_a_leader_of_a_log_of_kafka_adds_the_cluster_id_and_leaves_features_off() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=21)
    kafka, _ = apply(MetadataImage(), [level, BeginTransactionRecord()], offset=1, epoch=1)
    added = first_records(kafka)
    assert isinstance(added[0], AbortTransactionRecord)
    after, _ = apply(kafka, added, offset=20, epoch=2)
    assert after.features == {"metadata.version": 21}
    assert after.cluster_id == "id"
    assert not missing_features(after)
    assert first_records(after) == ()


def test_a_directory_that_kafka_formatted_keeps_its_levels_and_users() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=25)
    user = UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
    )
    after, _ = apply(MetadataImage(), first_records(MetadataImage(), level, user), offset=20, epoch=1)
    assert after.features == {"metadata.version": 25}
    assert ("alice", 1) in after.scram_credentials
    fresh, _ = apply(MetadataImage(), first_records(MetadataImage(), user), offset=20, epoch=1)
    assert fresh.features["metadata.version"] == 30
    assert ("alice", 1) in fresh.scram_credentials
