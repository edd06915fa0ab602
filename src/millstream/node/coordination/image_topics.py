"""The topics of the metadata image, as coordinators see them."""

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.node.coordination.core.topic_catalog import Topic
from millstream.node.metadata.image import MetadataImage, TopicImage


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
