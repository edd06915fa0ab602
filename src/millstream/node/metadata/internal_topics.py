"""The cluster's own topics follow when brokers are added: those made when there were few get the replicas they lack."""

from collections import Counter
from collections.abc import Mapping, Sequence

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import groups, share, transactions
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.decision import Decision
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.placement import interleaved
from millstream.node.metadata.reassignment import Reassignment, ReassignmentAnswer, alter_reassignments
from millstream.node.metadata.topic_names import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

INTERNAL_REPLICATION_FACTOR = 3
"""How many replicas an internal topic shall have that has no setting for it."""


def wanted_replication_factors(config: BrokerConfig) -> dict[str, int]:
    """How many replicas each internal topic shall have where there are brokers enough."""
    wanted = dict.fromkeys(sorted(INTERNAL_TOPICS), INTERNAL_REPLICATION_FACTOR)
    wanted[CONSUMER_OFFSETS_TOPIC] = config[groups.OFFSETS_TOPIC_REPLICATION_FACTOR]
    wanted[SHARE_GROUP_STATE_TOPIC] = config[share.SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR]
    wanted[TRANSACTION_STATE_TOPIC] = config[transactions.TRANSACTION_STATE_LOG_REPLICATION_FACTOR]
    return wanted


def grow_internal_topics(image: MetadataImage, config: BrokerConfig) -> Decision[ReassignmentAnswer]:
    """Begins the reassignments that internal topics need; replicas are only added.

    Partitions that are being reassigned are left alone: they are looked at again when that is done.
    """
    active = [broker for broker in image.brokers.values() if broker.active and not image.cordoned(broker.id)]
    racks: dict[int, str | None] = {broker.id: broker.rack for broker in active}
    held: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    asked: list[Reassignment] = []
    for name, wanted in wanted_replication_factors(config).items():
        topic = image.topics.get(TopicName(name))
        for number, partition in enumerate(topic.partitions if topic is not None else ()):
            held.update(partition.replicas)
            preferred[partition.replicas[0]] += 1
            missing = min(wanted, len(active)) - len(partition.replicas)
            if missing <= 0 or partition.adding_replicas or partition.removing_replicas:
                continue
            added = _chosen(image, racks, held, partition.replicas, missing)
            held.update(added)
            replicas = [*partition.replicas, *added]
            # The first of them leads once leaders are balanced: coordinators spread over the brokers, too.
            preferred[replicas[0]] -= 1
            first = min(replicas, key=lambda broker: preferred[broker])
            preferred[first] += 1
            replicas.remove(first)
            asked.append(Reassignment(topic=name, partition=number, replicas=(first, *replicas)))
    return alter_reassignments(image, asked, config)


def _chosen(
    image: MetadataImage, racks: Mapping[int, str | None], held: Counter[int], present: Sequence[int], count: int
) -> list[int]:
    used = {image.brokers[BrokerId(broker)].rack for broker in present if BrokerId(broker) in image.brokers}
    free = [broker for broker in interleaved(racks, racks) if broker not in present]
    chosen: list[int] = []
    while free and len(chosen) < count:
        best = min(free, key=lambda broker: (racks[broker] in used, held[broker]))
        chosen.append(best)
        free.remove(best)
        used.add(racks[best])
    return chosen
