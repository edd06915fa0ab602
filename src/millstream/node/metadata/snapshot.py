"""Snapshots: an image as the shortest list of records that produces it, and the difference of two images.

Kafka's snapshots have the same structure: features first, because they determine the versions of the other records;
each partition in full.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    TopicImage,
    cluster_id_record,
    topic_record,
)
from millstream.node.metadata.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)

K = TypeVar("K")
V = TypeVar("V")

_NO_BROKER = BrokerId(-1)


def snapshot_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Records that give this image when applied to an empty one, without its offset and epoch.

    It is a generator, so that a large image is never in memory twice.
    """
    for name in sorted(image.features, key=lambda name: (name != "metadata.version", name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for name in sorted(image.features_off):
        yield FeatureLevelRecord(name=name, feature_level=0)
    if image.cluster_id:
        yield cluster_id_record(image.cluster_id)
    for broker in image.brokers.values():
        yield _registration(broker)
    yield from image.controllers.values()
    for topic in image.topics.values():
        yield topic_record(topic)
        yield from _partitions(topic)
    for resource, values in image.configs.items():
        for name, value in values.items():
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
    if image.next_producer_id > 0:
        yield ProducerIdsRecord(broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from image.scram_credentials.values()
    yield from image.delegation_tokens.values()
    yield from image.acls.values()
    for entity, quotas in image.quotas.items():
        parts = tuple(sorted(entity, key=lambda part: part.entity_type, reverse=True))  # any order: one of each type
        for key, quota in quotas.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=quota)


def difference(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """The changes between two images, for a node that got a snapshot instead of the records in between."""
    created: dict[TopicName, TopicImage] = {}
    changed: dict[TopicName, TopicImage] = {}
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is None:
            created[topic.name] = topic
        elif before is not topic and before != topic:
            changed[topic.name] = topic
    return MetadataDelta(
        deleted={topic_id: topic for topic_id, topic in old.topics_by_id.items() if topic_id not in new.topics_by_id},
        created=created,
        changed=changed,
        configs=_unequal(old.configs, new.configs),
        brokers=_unequal(old.brokers, new.brokers),
        acls_changed=old.acls != new.acls,
        scram_users=frozenset(user for user, _ in _unequal(old.scram_credentials, new.scram_credentials)),
        delegation_tokens=_unequal(old.delegation_tokens, new.delegation_tokens),
        quotas_changed=old.quotas != new.quotas,
    )


def _unequal(old: Mapping[K, V], new: Mapping[K, V]) -> frozenset[K]:
    return frozenset(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def _registration(broker: BrokerRegistration) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=broker.end_points,
        features=broker.features,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        machine_id=broker.machine_id,
        cordoned_log_dirs=broker.cordoned_log_dirs or None,
    )


def _partitions(topic: TopicImage) -> Iterator[PartitionRecord]:
    for number, partition in enumerate(topic.partitions):
        yield PartitionRecord(
            partition_id=number,
            topic_id=topic.id,
            replicas=partition.replicas,
            isr=partition.isr,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            removing_replicas=partition.removing_replicas,
            adding_replicas=partition.adding_replicas,
            leader_recovery_state=partition.leader_recovery_state,
            directories=partition.directories,
            eligible_leader_replicas=partition.eligible_leader_replicas or None,
            last_known_elr=partition.last_known_elr or None,
        )
