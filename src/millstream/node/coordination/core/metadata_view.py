"""The topics there are, as coordinators see them: name, id, how many partitions, and in which racks.

The broker adapts its metadata image to this; tests use `FixedTopics`.

The topics of the metadata image, as coordinators see them.

The highest epochs that the metadata allows, for requests that would be remembered.

A number that is remembered as the highest locks out every lower one. So an epoch that is higher than any the metadata
has is refused, for a reason that passes: the metadata of this node may be a moment behind.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.node.metadata.image import MetadataImage, TopicImage
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC


class Topic(NamedTuple):
    name: str
    id: UUID
    partition_count: int


class TopicCatalog(Protocol):
    @property
    def version(self) -> int:
        """Grows whenever anything in the cluster's metadata changes."""
        ...

    def names(self) -> Iterable[str]: ...

    def get(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        """For each partition the racks its replicas stand in, as far as they are known; empty if there is no topic."""
        ...


class FixedTopics:
    """A catalog that is told what to hold."""

    def __init__(
        self, topics: Iterable[Topic] = (), racks: Mapping[str, Sequence[frozenset[str]]] | None = None
    ) -> None:
        self._by_name = {topic.name: topic for topic in topics}
        self._racks = dict(racks or {})
        self.version = 0

    def add(self, name: str, partition_count: int, topic_id: UUID | None = None) -> Topic:
        """Adds a topic, or gives it another number of partitions."""
        known = self._by_name.get(name)
        if topic_id is None:
            topic_id = known.id if known is not None else UUID(int=len(self._by_name) + 1 + (self.version << 32))
        topic = self._by_name[name] = Topic(name, topic_id, partition_count)
        self.version += 1
        return topic

    def remove(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1

    def names(self) -> Iterable[str]:
        return self._by_name

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self._by_name.values() if topic.id == topic_id), None)

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        topic = self._by_name.get(name)
        if topic is None:
            return ()
        return self._racks.get(name, (frozenset(),) * topic.partition_count)


class ImageTopics:
    """A catalog; internal topics are in it as well."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image().offset

    def names(self) -> Iterable[str]:
        return self._image().topics

    def get(self, name: str) -> Topic | None:
        return _topic(self._image().topics.get(TopicName(name)))

    def by_id(self, topic_id: UUID) -> Topic | None:
        return _topic(self._image().topics_by_id.get(TopicId(topic_id)))

    def racks(self, name: str) -> Sequence[frozenset[str]]:
        image = self._image()
        topic = image.topics.get(TopicName(name))
        if topic is None:
            return ()
        rack_of = {broker.id: broker.rack for broker in image.brokers.values()}
        return [
            frozenset(rack for replica in state.replicas if (rack := rack_of.get(BrokerId(replica))) is not None)
            for state in topic.partitions
        ]


def _topic(image: TopicImage | None) -> Topic | None:
    return None if image is None else Topic(image.name, image.id, len(image.partitions))


class KnownEpochs:
    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def highest_coordinator_epoch(self) -> int:
        """A transaction coordinator's epoch is the leader epoch of its partition; 0 where there are none yet."""
        topic = self._image().topics.get(TopicName(TRANSACTION_STATE_TOPIC))
        return max((each.leader_epoch for each in topic.partitions), default=0) if topic is not None else 0

    def check_share_leader(self, topic_id: UUID, partition: int, leader_epoch: int) -> None:
        """KafkaError if no leader of the partition can have this epoch. A deleted topic has no leader to lock out."""
        topic = self._image().topics_by_id.get(TopicId(topic_id))
        if topic is None:
            return
        if partition >= len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has {len(topic.partitions)} partitions"
            )
        known = topic.partitions[partition].leader_epoch
        if leader_epoch > known:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"leader epoch {leader_epoch} of {topic.name}-{partition} is not known here, {known} is; try again",
            )
