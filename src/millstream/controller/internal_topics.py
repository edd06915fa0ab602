"""The cluster's own topics follow it as it grows: what began on one broker gets more replicas when others come."""

from collections import Counter

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import groups, share
from millstream.metadata.decision import Decision
from millstream.metadata.image import MetadataImage, TopicImage
from millstream.metadata.reassignment import Reassignment, ReassignmentAnswer, alter_reassignments
from millstream.metadata.topic_names import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, SHARE_GROUP_STATE_TOPIC
from millstream.model.identifiers import TopicName

_FACTORS = {
    CONSUMER_OFFSETS_TOPIC: groups.OFFSETS_TOPIC_REPLICATION_FACTOR,
    SHARE_GROUP_STATE_TOPIC: share.SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR,
}
_USUAL_FACTOR = 3


def grow_internal_topics(image: MetadataImage, config: BrokerConfig) -> Decision[ReassignmentAnswer]:
    """Adds replicas to partitions of internal topics that have fewer than their setting says, as brokers allow."""
    wanted: list[Reassignment] = []
    for name in sorted(INTERNAL_TOPICS):
        topic = image.topics.get(TopicName(name))
        if topic is not None:
            setting = _FACTORS.get(name)
            wanted += _growth(image, topic, _USUAL_FACTOR if setting is None else config[setting])
    return alter_reassignments(image, wanted, config) if wanted else Decision((), ())


def _growth(image: MetadataImage, topic: TopicImage, factor: int) -> list[Reassignment]:
    active = sorted(broker.id for broker in image.brokers.values() if broker.active)
    racks = {broker.id: broker.rack for broker in image.brokers.values()}
    load = Counter(replica for partition in topic.partitions for replica in partition.replicas)
    wanted = []
    for number, partition in enumerate(topic.partitions):
        if partition.adding_replicas or partition.removing_replicas:
            continue
        replicas = list(partition.replicas)
        while len(replicas) < factor:
            taken = {racks.get(replica) for replica in replicas}  # type: ignore[call-overload]
            others = [each for each in active if each not in replicas]
            if not others:
                break
            # First another rack, then whoever has the fewest replicas of the topic.
            chosen = min(others, key=lambda each: (racks[each] is not None and racks[each] in taken, load[each], each))
            replicas.append(chosen)
            load[chosen] += 1
        if len(replicas) > len(partition.replicas):
            wanted.append(Reassignment(topic=topic.name, partition=number, replicas=replicas))
    return wanted
