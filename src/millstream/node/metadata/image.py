"""The cluster's metadata as an immutable value, and how records change it.

`apply` makes the next image out of records and shares everything that they did not touch: a topic more costs one
shallow copy of the topic maps, never a copy of partitions. Readers hold an image as long as they like.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from millstream.config.table import cluster
from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName, TopicPartition
from millstream.node.metadata.records import LOST_DIRECTORY, NO_LEADER, Endpoint, SupportedFeature

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class ResourceType(IntEnum):
    """What a setting belongs to, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A topic by name, a broker by number, or (`BROKER`, "") all brokers."""

    type: int
    name: str


ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    id: BrokerId
    epoch: int
    incarnation_id: UUID
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it may lead partitions and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_lost_its_disk(self) -> bool:
        """Whether it said that its log directory has failed; a new registration ends this."""
        return LOST_DIRECTORY in self.log_dirs


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    replicas: tuple[int, ...]
    """In order of preference."""
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    """Counts every change of this partition; a request that carries an older one is refused."""
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    directories: tuple[UUID, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    name: TopicName
    id: TopicId
    partitions: tuple[PartitionState, ...]
    """By number: partitions count from 0 without a gap."""

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    cluster_id: str = ""
    """Empty until the record that decides it (see cluster_id) was applied."""
    offset: int = -1
    """The last metadata record that is in this image."""
    epoch: int = 0
    """The controller epoch in which that record was written."""
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[TopicName, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    names_by_folded: Mapping[str, TopicName] = field(default_factory=dict)
    """Each topic's name by how it reads when folded (see topic_names), to find names that collide."""
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    """The level of each feature that is on."""
    features_off: frozenset[str] = frozenset()
    """Features that were switched off, to tell them from those that the log never heard of."""
    next_producer_id: int = 0

    def partition(self, at: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(at.topic)
        if topic is None or not 0 <= at.partition < len(topic.partitions):
            return None
        return topic.partitions[at.partition]

    def topic_config(self, name: str) -> Mapping[str, str]:
        """What the topic overrides."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, name), _EMPTY)

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic settings of one broker alone; those of all brokers are under ALL_BROKERS."""
        return self.configs.get(ConfigResource(ResourceType.BROKER, str(broker_id)), _EMPTY)

    @property
    def default_broker_config(self) -> Mapping[str, str]:
        return self.configs.get(ALL_BROKERS, _EMPTY)

    def cordoned(self, broker_id: int) -> bool:
        """Whether the broker shall get no new replicas (KIP-1066; a broker has one directory here)."""
        name = cluster.CORDONED_LOG_DIRS.name
        return bool(self.broker_config(broker_id).get(name, self.default_broker_config.get(name)))

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """What one `apply` changed. A topic that was deleted and made anew is in `deleted` and in `created`."""

    deleted: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    """The topics that are gone, as they were."""
    created: Mapping[TopicName, TopicImage] = field(default_factory=dict)
    changed: Mapping[TopicName, TopicImage] = field(default_factory=dict)
    """The topics that were there before and whose partitions are not the same, as they are now."""
    configs: frozenset[ConfigResource] = frozenset()
    brokers: frozenset[BrokerId] = frozenset()


class Applied(NamedTuple):
    image: MetadataImage
    delta: MetadataDelta
