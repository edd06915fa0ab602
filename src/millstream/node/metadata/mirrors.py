"""Changes of partitions and producer ids that follow from settings of mirror topics and links.

Epochs and ids of two clusters must not collide in one log:

- `millstream.mirror.leader.epoch`: the leader epochs of a mirror topic are raised to those of the source, because its
  records keep the epochs of the source, and a consumer that moves over must not see an older epoch.
- The state `promoted` begins an epoch that the source cannot reach by elections: epochs jump to the next multiple of
  2^20. So the logs of both sides have a common epoch up to the promotion, and none after it.
- Producer ids of a cluster with a link begin at a multiple of 2^40, above those of the source.
"""

from collections.abc import Iterable

from millstream.config.setting import ConfigError
from millstream.config.table import mirror, topic
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.image import ALL_BROKERS, MetadataImage, PartitionState, ResourceType, TopicImage
from millstream.node.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, ProducerIdsRecord

EPOCHS_OF_A_CLUSTER = 1 << 20
PRODUCER_IDS_OF_A_CLUSTER = 1 << 40
_MOST_EPOCHS = (1 << 31) - 1
MAX_PRODUCER_IDS = (1 << 63) - 1 - PRODUCER_IDS_OF_A_CLUSTER
_NO_BROKER = BrokerId(-1)


def mirror_changes(image: MetadataImage, records: Iterable[MetadataRecord]) -> list[MetadataRecord]:
    """What follows from changed settings, before they are applied."""
    epochs: dict[TopicName, int] = {}
    producer_id = -1
    for record in records:
        if not isinstance(record, ConfigRecord) or record.value is None:
            continue
        if record.resource_type == ResourceType.TOPIC and record.name.startswith("millstream.mirror."):
            name = TopicName(record.resource_name)
            if record.name == topic.MIRROR_LEADER_EPOCH.name:
                epochs[name] = max(epochs.get(name, -1), _number(record.value))
            elif record.name == topic.MIRROR_PRODUCER_ID.name:
                producer_id = max(producer_id, _number(record.value))
            elif record.name == topic.MIRROR_STATE.name and record.value == "promoted":
                epochs[name] = max(epochs.get(name, -1), _promoted_epoch(image.topics.get(name)))
        elif _begins_link(image, record):
            producer_id = max(producer_id, image.next_producer_id)
    changes: list[MetadataRecord] = [
        change
        for name, epoch in epochs.items()
        if name in image.topics
        for change in _raised(image.topics[name], epoch)
    ]
    if image.next_producer_id <= producer_id <= MAX_PRODUCER_IDS:
        changes.append(
            ProducerIdsRecord(
                broker_id=_NO_BROKER,
                broker_epoch=-1,
                next_producer_id=_next_multiple(producer_id, PRODUCER_IDS_OF_A_CLUSTER),
            )
        )
    return changes


def _begins_link(image: MetadataImage, record: ConfigRecord) -> bool:
    return (
        (record.resource_type, record.resource_name) == ALL_BROKERS
        and record.name.startswith(mirror.LINK_PREFIX)
        and record.name.endswith(f".{mirror.BOOTSTRAP_SERVERS.name}")
        and record.name not in image.default_broker_config
    )


def _number(text: str) -> int:
    try:
        return topic.MIRROR_PRODUCER_ID.parse(text)
    except ConfigError:
        return -1


def _promoted_epoch(found: TopicImage | None) -> int:
    latest = max((partition.leader_epoch for partition in found.partitions), default=-1) if found is not None else -1
    return min(_next_multiple(latest, EPOCHS_OF_A_CLUSTER), _MOST_EPOCHS)


def _next_multiple(number: int, of: int) -> int:
    """The least multiple above the number."""
    return (number // of + 1) * of


def _raised(changed: TopicImage, epoch: int) -> list[MetadataRecord]:
    """Partitions with a lower leader epoch, in full: a change record can raise the epoch only by one."""
    return [
        _partition_record(changed, index, partition, epoch)
        for index, partition in enumerate(changed.partitions)
        if partition.leader_epoch < epoch
    ]


def _partition_record(changed: TopicImage, index: int, partition: PartitionState, epoch: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=changed.id,
        replicas=partition.replicas,
        isr=partition.isr,
        leader=partition.leader,
        leader_epoch=epoch,
        partition_epoch=partition.partition_epoch + 1,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader_recovery_state=partition.leader_recovery_state,
        directories=partition.directories,
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_elr or None,
    )
