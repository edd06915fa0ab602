"""AssignReplicasToDirs: a broker with several log directories says in which of them each of its replicas is (KIP-858).

The controller needs this when a directory fails: then only the replicas in it go offline.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId
from millstream.node.metadata.brokers import registered
from millstream.node.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from millstream.node.metadata.partitions import PartitionChanger
from millstream.node.metadata.records import UNASSIGNED_DIRECTORY, Decision, DecisionResult, MetadataRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAssignment(DecisionResult):
    directory: UUID
    topic_id: UUID
    partition: int


def assign_replicas(
    image: MetadataImage,
    broker_id: BrokerId,
    broker_epoch: int,
    assignments: Sequence[DirectoryAssignment],
    config: BrokerConfig,
) -> Decision[DirectoryAssignment]:
    """Notes the log directories of replicas. A replica in a directory that is offline leaves the ISR.

    Raises STALE_BROKER_EPOCH if the broker epoch is not current.
    """
    broker = registered(image, broker_id, broker_epoch)
    online, offline = PartitionChanger(image, config), PartitionChanger(image, config, crashed=broker_id)
    records: list[MetadataRecord] = []
    results: list[DirectoryAssignment] = []
    seen: set[tuple[UUID, int]] = set()
    for each in assignments:
        try:
            if (each.topic_id, each.partition) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a partition twice.")
            seen.add((each.topic_id, each.partition))
            topic = _topic(image, broker, each)
        except KafkaError as error:
            results.append(replace(each, error=error.code, message=error.message))
            continue
        results.append(each)
        state = topic.partitions[each.partition]
        before = state.directory_of(broker_id)
        if before == each.directory:
            continue
        known = state.directories or (UNASSIGNED_DIRECTORY,) * len(state.replicas)
        slot = state.replicas.index(broker_id)
        directories = (*known[:slot], each.directory, *known[slot + 1 :])
        if broker.has_directory(each.directory):
            # A replica whose directory is gone was created again: it has no records.
            is_member = broker_id in state.isr or broker_id in state.eligible_leader_replicas
            is_emptied = not broker.has_directory(before) and not is_member
            emptied = broker_id if is_emptied else None
            record = online.change(topic, each.partition, directories=directories, emptied=emptied)
        else:
            isr = tuple(replica for replica in state.isr if replica != broker_id)
            record = offline.change(topic, each.partition, isr=isr, directories=directories)
        if record is not None:
            records.append(record)
    return Decision(tuple(records), tuple(results))


def _topic(image: MetadataImage, broker: BrokerRegistration, wanted: DirectoryAssignment) -> TopicImage:
    topic = image.topics_by_id.get(TopicId(wanted.topic_id))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {wanted.topic_id}. It may be deleted.")
    if not 0 <= wanted.partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic.name} has no partition {wanted.partition}."
        )
    if broker.id not in topic.partitions[wanted.partition].replicas:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Broker {broker.id} has no replica of partition {wanted.partition} of topic {topic.name}.",
        )
    return topic
