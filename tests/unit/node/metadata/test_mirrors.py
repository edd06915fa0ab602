"""Records that follow from settings of mirrors: epochs and producer ids that do not collide."""

from uuid import UUID

from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.node.metadata.image import ALL_BROKERS, MetadataImage, PartitionState, ResourceType, TopicImage, apply
from millstream.node.metadata.mirrors import mirror_changes
from millstream.node.metadata.records import ConfigRecord, PartitionRecord, ProducerIdsRecord

TOPIC = TopicImage(
    name=TopicName("orders"),
    id=TopicId(UUID(int=9)),
    partitions=tuple(
        PartitionState(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=epoch, partition_epoch=4) for epoch in (2, 8)
    ),
)
IMAGE = MetadataImage(topics={TOPIC.name: TOPIC}, topics_by_id={TOPIC.id: TOPIC}, next_producer_id=3000)


def setting(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.TOPIC, resource_name="orders", name=f"millstream.mirror.{name}", value=value
    )


def epochs(changes: list[object]) -> list[int]:
    image = apply(IMAGE, changes, offset=1, epoch=1).image  # type: ignore[arg-type]
    return [partition.leader_epoch for partition in image.topics[TOPIC.name].partitions]


def test_epochs_are_raised_to_those_of_the_source_and_never_lowered() -> None:
    changes = mirror_changes(IMAGE, [setting("leader.epoch", "5")])
    assert [type(change) for change in changes] == [PartitionRecord]
    assert epochs([*changes]) == [5, 8]
    assert mirror_changes(IMAGE, [setting("leader.epoch", "1")]) == []
    assert mirror_changes(IMAGE, [setting("leader.epoch", None)]) == []


def test_a_promotion_begins_an_epoch_that_the_source_cannot_reach() -> None:
    changes = mirror_changes(IMAGE, [setting("state", "promoted")])
    assert epochs([*changes]) == [1 << 20, 1 << 20]
    record = changes[0]
    assert isinstance(record, PartitionRecord)
    assert (record.isr, record.leader, record.partition_epoch) == ((1, 2), 1, 5)
    assert mirror_changes(IMAGE, [setting("state", "mirroring")]) == []


def test_producer_ids_are_raised_above_those_seen_and_when_a_link_begins() -> None:
    (record,) = mirror_changes(IMAGE, [setting("producer.id", "4000")])
    assert isinstance(record, ProducerIdsRecord) and record.next_producer_id == 1 << 40
    assert mirror_changes(IMAGE, [setting("producer.id", "2999")]) == []
    link = ConfigRecord(
        resource_type=ALL_BROKERS.type,
        resource_name=ALL_BROKERS.name,
        name="millstream.mirror.link.west.bootstrap.servers",
        value="a:1",
    )
    (record,) = mirror_changes(IMAGE, [link])
    assert isinstance(record, ProducerIdsRecord) and record.next_producer_id == 1 << 40
    known = MetadataImage(configs={ALL_BROKERS: {link.name: "b:1"}})
    assert mirror_changes(known, [link]) == []
