"""The highest epochs that the metadata allows, for requests that would be remembered.

A number that is remembered as the highest locks out every lower one. So an epoch that is higher than any the metadata
has is refused, for a reason that passes: the metadata of this node may be a moment behind.
"""

from collections.abc import Callable
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC


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
