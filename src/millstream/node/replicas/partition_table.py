"""The partitions of which this node has a replica, by topic name or topic id as on the wire."""

from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.local_partition import TopicTraffic
from millstream.node.replicas.partition import Partition


class PartitionDirectory(Protocol):
    """All partitions of the cluster, as the metadata has them."""

    def state_in_metadata(self, topic: bytes, by_id: bool, index: int) -> PartitionState | None:
        """The state of a partition without a replica on this node; None if there is no such partition."""
        ...


class PartitionTable:
    def __init__(self) -> None:
        self.by_name: dict[bytes, dict[int, Partition]] = {}
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        self.traffic: dict[bytes, TopicTraffic] = {}
        """By name; kept until the topic is deleted, even while this node has no partition of it."""

    def add(self, partition: Partition) -> None:
        name = partition.topic_partition.topic.encode()
        topic = self.by_name.setdefault(name, {})
        topic[partition.topic_partition.partition] = partition
        self.by_id[partition.topic_id.bytes] = topic
        partition.traffic = self.traffic.setdefault(name, TopicTraffic())

    def remove_topic(self, name: str, topic_id: UUID) -> list[Partition]:
        self.by_id.pop(topic_id.bytes, None)
        self.traffic.pop(name.encode(), None)
        return list(self.by_name.pop(name.encode(), {}).values())

    def remove(self, partition: Partition) -> None:
        """Removes the partition only, not its topic."""
        name, index = partition.topic_partition.topic.encode(), partition.topic_partition.partition
        topic = self.by_name.get(name, {})
        topic.pop(index, None)
        if not topic:
            self.by_name.pop(name, None)
            self.by_id.pop(partition.topic_id.bytes, None)

    def find_led(self, topic: str, index: int) -> Partition:
        """The partition, if this node leads it; else UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER."""
        partition = self.find(topic, index)
        partition.check_is_leader()
        return partition

    def find(self, topic: str, index: int) -> Partition:
        """The partition in any role, or UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self.by_name.get(topic.encode(), {}).get(index)
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of topic {topic!r} does not exist"
            )
        return partition

    def __iter__(self) -> Iterator[Partition]:
        for topic in self.by_name.values():
            yield from topic.values()
