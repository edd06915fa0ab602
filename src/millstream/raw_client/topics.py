"""Topics and their partitions as the cluster's metadata has them."""

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int
    """Node id, NO_LEADER while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: UUID
    """A topic that was deleted and created anew has another one; all zeros from brokers older than Kafka 2.8."""
    partitions: list[PartitionInfo]
    """In the order of their indexes, from 0 on."""
    is_internal: bool


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    node_id: int
    host: str
    port: int
    rack: str | None
