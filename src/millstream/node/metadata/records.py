"""The records of the metadata log: what the controller decided, as values. Their bytes are in `record_codec`."""

from dataclasses import dataclass
from uuid import UUID

from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName

NO_LEADER = -1
NO_LEADER_CHANGE = -2
UNASSIGNED_DIRECTORY = UUID(int=1)
LOST_DIRECTORY = UUID(int=2)
"""Stands for the directories of a broker that has none left which works."""
"""Kafka's way to say that a replica's directory has not been chosen yet."""


class CorruptMetadataError(Exception):
    """The metadata log holds something that no controller of ours wrote: there is no safe way to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address at which clients or other nodes reach a broker."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature:
    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker's process introduced itself."""

    broker_id: BrokerId
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    log_dirs: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker is gone for good."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """A broker was fenced (1) or unfenced (-1), or began to shut down (1)."""

    broker_id: BrokerId
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its partitions follow."""

    name: TopicName
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition was created, or is stated anew in full."""

    partition_id: int
    topic_id: TopicId
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    directories: tuple[UUID, ...] = ()
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """What changed in a partition; what is left at its default did not. A leader that is named begins a new epoch."""

    partition_id: int
    topic_id: TopicId
    isr: tuple[int, ...] | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = -1
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[UUID, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic, its partitions and its settings are gone."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A setting of a topic or broker got a value, or (None) lost it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """A broker took a block of producer ids; the next block begins at `next_producer_id`."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """The cluster uses this level of a feature; 0 switches it off."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """Nothing happened: it moves the log's end forward."""


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | NoOpRecord
)
