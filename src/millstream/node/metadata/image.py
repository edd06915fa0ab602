"""The metadata image: the committed metadata as one immutable value, and how records change it.

`apply` returns the next image and shares everything that the records did not change: a new topic costs a shallow copy
of the topic maps, never a copy of partitions. Within one `apply`, each changed map is copied once.

The cluster id is a record in the metadata log: a setting of all brokers that cannot be altered. Kafka writes it to each
node's disk in a format step. Here the first leader of an empty log chooses it. The image has it in a field of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.table import cluster
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId, TopicId, TopicName, TopicPartition
from millstream.formats.model.placement import Place, default_machine
from millstream.node.metadata import records
from millstream.node.metadata.records import (
    LOST_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    AccessControlEntryRecord,
    ConfigRecord,
    CorruptMetadataError,
    DelegationTokenRecord,
    Endpoint,
    MetadataRecord,
    QuotaEntity,
    RegisterControllerRecord,
    SupportedFeature,
    UserScramCredentialRecord,
)
from millstream.node.metadata.topic_names import folded

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class ResourceType(IntEnum):
    """The types of resources with settings, with Kafka's numbers."""

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
    machine_id: str | None = None
    cordoned_log_dirs: tuple[UUID, ...] = ()
    """The log directories that the settings file of the broker cordons, as it reports them."""

    @property
    def machine(self) -> str:
        """The machine; a broker that names none is a machine of its own."""
        return self.machine_id or default_machine(self.id)

    @property
    def place(self) -> Place:
        return Place(self.rack, self.machine)

    @property
    def active(self) -> bool:
        """Whether it may lead partitions and be in an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_directory(self, directory: UUID) -> bool:
        """Whether a replica in this log directory is online: the directory is in use, or not assigned yet."""
        return not self.log_dirs or directory.int < LOST_DIRECTORY.int or directory in self.online_log_dirs

    @property
    def online_log_dirs(self) -> tuple[UUID, ...]:
        return tuple(each for each in self.log_dirs if each != LOST_DIRECTORY)

    @property
    def has_several_log_dirs(self) -> bool:
        """Then the broker says itself where its replicas are."""
        return len(self.log_dirs) > 1

    @property
    def has_offline_log_dir(self) -> bool:
        """Whether it reported that a log directory has failed. The next registration without one clears this."""
        return LOST_DIRECTORY in self.log_dirs


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    replicas: tuple[int, ...]
    """In order of preference."""
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    """Incremented by every change of the partition. Requests with an older epoch are refused."""
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    directories: tuple[UUID, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, replica: int) -> UUID:
        """The log directory of a replica; unassigned if it is not known."""
        known = dict(zip(self.replicas, self.directories, strict=False))
        return known.get(replica, UNASSIGNED_DIRECTORY)

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What a topic is a branch of: it began with the records of its parent."""

    parent: TopicName
    """The name of the parent when the branch was created. It may be deleted since, and another topic may have it."""
    parent_id: TopicId
    origin_id: TopicId
    """The topic that is no branch, from which the parent, or a parent of it, was branched."""
    offsets: tuple[int, ...]
    """By partition: where the records of the parent end, and those of the branch begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    name: TopicName
    id: TopicId
    partitions: tuple[PartitionState, ...]
    """By partition number, from 0 without gaps."""
    branch: Branch | None = None

    @property
    def family(self) -> TopicId:
        """The id that all branches of a topic, and the branches of these, have in common: they may share files."""
        return self.id if self.branch is None else self.branch.origin_id

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    cluster_id: str = ""
    """Empty until the record with the cluster id is applied."""
    offset: int = -1
    """The offset of the last metadata record in this image."""
    epoch: int = 0
    """The controller epoch in which that record was written."""
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    controllers: Mapping[int, RegisterControllerRecord] = field(default_factory=dict)
    """The registered controllers by node id, also those that do not run now."""
    topics: Mapping[TopicName, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    names_by_folded: Mapping[str, TopicName] = field(default_factory=dict)
    """Each topic's name by its folded name (see topic_names), to find names that collide."""
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    """The level of each enabled feature."""
    features_off: frozenset[str] = frozenset()
    """Disabled features, as opposed to features that are not in the log."""
    next_producer_id: int = 0
    acls: Mapping[UUID, AccessControlEntryRecord] = field(default_factory=dict)
    scram_credentials: Mapping[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)
    """By user and mechanism."""
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=dict)
    """By token id."""
    quotas: Mapping[frozenset[QuotaEntity], Mapping[str, float]] = field(default_factory=dict)
    """The quotas of each entity, by key."""
    pending: tuple[MetadataRecord, ...] | None = None
    """The records of a transaction in the log that has not ended; None outside of transactions. They have no effect
    yet."""

    def partition(self, at: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(at.topic)
        if topic is None or not 0 <= at.partition < len(topic.partitions):
            return None
        return topic.partitions[at.partition]

    def topic_config(self, name: str) -> Mapping[str, str]:
        """The settings that the topic overrides."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, name), _EMPTY)

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """The dynamic settings of a single broker. Those of all brokers are `default_broker_config`."""
        return self.configs.get(ConfigResource(ResourceType.BROKER, str(broker_id)), _EMPTY)

    @property
    def default_broker_config(self) -> Mapping[str, str]:
        return self.configs.get(ALL_BROKERS, _EMPTY)

    def cordoned(self, broker_id: int) -> bool:
        """Whether the broker gets no new replicas (KIP-1066): all of its log directories are cordoned.

        The dynamic setting counts before the file of the broker. It has the paths of directories, the metadata has
        their ids: they are counted.
        """
        name = cluster.CORDONED_LOG_DIRS.name
        text = self.broker_config(broker_id).get(name, self.default_broker_config.get(name))
        broker = self.brokers.get(BrokerId(broker_id))
        online = broker.online_log_dirs if broker is not None else ()
        if text is None:
            return bool(online) and broker is not None and set(online) <= set(broker.cordoned_log_dirs)
        paths = {path for each in text.split(",") if (path := each.strip())}
        return "*" in paths or len(paths) >= max(1, len(online))

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """The changes of one `apply`. A topic that was deleted and created again is in `deleted` and in `created`."""

    deleted: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    """The deleted topics, as they were before."""
    created: Mapping[TopicName, TopicImage] = field(default_factory=dict)
    changed: Mapping[TopicName, TopicImage] = field(default_factory=dict)
    """The existing topics with changed partitions, as they are now."""
    configs: frozenset[ConfigResource] = frozenset()
    brokers: frozenset[BrokerId] = frozenset()
    acls_changed: bool = False
    scram_users: frozenset[str] = frozenset()
    """The users with changed SCRAM credentials."""
    delegation_tokens: frozenset[str] = frozenset()
    """The ids of changed tokens."""
    quotas_changed: bool = False


class Applied(NamedTuple):
    image: MetadataImage
    delta: MetadataDelta


CLUSTER_ID_NAME = "cluster.id"


def cluster_id_record(cluster_id: str) -> ConfigRecord:
    """The record with the cluster id. It is part of the bootstrap batch."""
    return ConfigRecord(
        resource_type=ALL_BROKERS.type, resource_name=ALL_BROKERS.name, name=CLUSTER_ID_NAME, value=cluster_id
    )


def is_cluster_id(record: ConfigRecord) -> bool:
    return record.name == CLUSTER_ID_NAME and (record.resource_type, record.resource_name) == ALL_BROKERS


E = TypeVar("E")


def apply(image: MetadataImage, batch: Iterable[MetadataRecord], *, offset: int, epoch: int) -> Applied:
    """Applies records to an image. `offset` and `epoch` are those of the last record in the metadata log.

    Raises CorruptMetadataError for records that contradict the image: a partition of an unknown topic, a second topic
    with the same name.
    """
    builder = _Builder(image)
    for record in batch:
        builder.take(record)
    return builder.finish(offset, epoch)


def replay(image: MetadataImage, batches: Iterable[tuple[int, int, Iterable[MetadataRecord]]]) -> MetadataImage:
    """Applies a whole log, given as (last offset, epoch, records) of each batch.

    Equivalent to `apply` for each batch, but copies the maps once instead of once per batch. Used when a node starts.
    """
    builder = _Builder(image)
    offset, epoch = image.offset, image.epoch
    for offset, epoch, records_of_batch in batches:  # noqa: B007  # the values of the last batch are used below
        for record in records_of_batch:
            builder.take(record)
    return builder.finish(offset, epoch).image


def changed(partition: PartitionState, record: records.PartitionChangeRecord) -> PartitionState:
    """The partition after a change record."""
    new_leader = record.leader != records.NO_LEADER_CHANGE
    recovery = record.leader_recovery_state
    # Not dataclasses.replace, which is slow: after a broker failure this runs for thousands of partitions.
    return PartitionState(
        replicas=_or(record.replicas, partition.replicas),
        isr=_or(record.isr, partition.isr),
        leader=record.leader if new_leader else partition.leader,
        leader_epoch=partition.leader_epoch + new_leader,
        partition_epoch=partition.partition_epoch + 1,
        removing_replicas=_or(record.removing_replicas, partition.removing_replicas),
        adding_replicas=_or(record.adding_replicas, partition.adding_replicas),
        directories=_or(record.directories, partition.directories),
        leader_recovery_state=recovery if recovery >= 0 else partition.leader_recovery_state,
        eligible_leader_replicas=_or(record.eligible_leader_replicas, partition.eligible_leader_replicas),
        last_known_elr=_or(record.last_known_elr, partition.last_known_elr),
    )


def _or(new: tuple[E, ...] | None, old: tuple[E, ...]) -> tuple[E, ...]:
    return old if new is None else new


def _branch(record: records.TopicRecord) -> Branch | None:
    if record.parent_id == NO_TOPIC_ID:
        return None
    return Branch(
        parent=TopicName(record.parent_name),
        parent_id=record.parent_id,
        origin_id=record.origin_id,
        offsets=record.branch_offsets,
    )


def topic_record(topic: TopicImage) -> records.TopicRecord:
    """The record that creates a topic."""
    branch = topic.branch
    if branch is None:
        return records.TopicRecord(name=topic.name, topic_id=topic.id)
    return records.TopicRecord(
        name=topic.name,
        topic_id=topic.id,
        parent_id=branch.parent_id,
        parent_name=branch.parent,
        origin_id=branch.origin_id,
        branch_offsets=branch.offsets,
    )


class _Builder:
    """Builds the next image. Maps of the old image are copied when they are first changed."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._changes: dict[str, dict[Any, Any]] = {}
        self._cluster_id = image.cluster_id
        self._next_producer_id = image.next_producer_id
        self._features_off = image.features_off
        self._pending = None if image.pending is None else list(image.pending)
        self._partitions: dict[TopicId, list[PartitionState]] = {}
        self._created: dict[TopicId, TopicName] = {}
        self._deleted: dict[TopicId, TopicImage] = {}
        self._configs: set[ConfigResource] = set()
        self._brokers: set[BrokerId] = set()
        self._scram_users: set[str] = set()
        self._delegation_tokens: set[str] = set()
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def take(self, record: MetadataRecord) -> None:
        if self._pending is not None and type(record) not in _TRANSACTION_RECORDS:
            self._pending.append(record)
        else:
            _APPLIERS[type(record)](self, record)

    def finish(self, offset: int, epoch: int) -> Applied:
        created: dict[TopicName, TopicImage] = {}
        changed: dict[TopicName, TopicImage] = {}
        for topic_id, partitions in self._partitions.items():
            topics, by_id = self._map("topics"), self._map("topics_by_id")
            topic: TopicImage = replace(by_id[topic_id], partitions=tuple(partitions))
            topics[topic.name] = by_id[topic_id] = topic
            (created if topic_id in self._created else changed)[topic.name] = topic
        maps: dict[str, Any] = self._changes
        image = replace(
            self._image,
            cluster_id=self._cluster_id,
            offset=offset,
            epoch=epoch,
            next_producer_id=self._next_producer_id,
            features_off=self._features_off,
            pending=None if self._pending is None else tuple(self._pending),
            **maps,
        )
        delta = MetadataDelta(
            deleted=self._deleted,
            created=created,
            changed=changed,
            configs=frozenset(self._configs),
            brokers=frozenset(self._brokers),
            acls_changed="acls" in maps,
            scram_users=frozenset(self._scram_users),
            delegation_tokens=frozenset(self._delegation_tokens),
            quotas_changed="quotas" in maps,
        )
        return Applied(image, delta)

    def topic(self, record: records.TopicRecord) -> None:
        topics, by_id = self._map("topics"), self._map("topics_by_id")
        if record.name in topics or record.topic_id in by_id:
            raise CorruptMetadataError(
                f"the metadata log creates topic {record.name} ({record.topic_id}) a second time"
            )
        topics[record.name] = by_id[record.topic_id] = TopicImage(
            name=record.name, id=record.topic_id, partitions=(), branch=_branch(record)
        )
        self._map("names_by_folded")[folded(record.name)] = record.name
        self._created[record.topic_id] = record.name
        self._partitions[record.topic_id] = []

    def partition(self, record: records.PartitionRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        state = PartitionState(
            replicas=self._shared(record.replicas),
            isr=self._shared(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            removing_replicas=record.removing_replicas,
            adding_replicas=record.adding_replicas,
            directories=self._shared(record.directories),
            leader_recovery_state=record.leader_recovery_state,
            eligible_leader_replicas=record.eligible_leader_replicas or (),
            last_known_elr=record.last_known_elr or (),
        )
        if record.partition_id == len(partitions):
            partitions.append(state)
        elif 0 <= record.partition_id < len(partitions):
            partitions[record.partition_id] = state
        else:
            raise CorruptMetadataError(
                f"the metadata log creates partition {record.partition_id} of topic {record.topic_id}, "
                f"which has {len(partitions)} partitions"
            )

    def partition_change(self, record: records.PartitionChangeRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        if not 0 <= record.partition_id < len(partitions):
            raise CorruptMetadataError(
                f"the metadata log changes partition {record.partition_id} of topic {record.topic_id}, which has none"
            )
        partitions[record.partition_id] = changed(partitions[record.partition_id], record)

    def remove_topic(self, record: records.RemoveTopicRecord) -> None:
        topics, by_id = self._map("topics"), self._map("topics_by_id")
        topic = by_id.pop(record.topic_id, None)
        if topic is None:
            raise CorruptMetadataError(f"the metadata log removes topic {record.topic_id}, which does not exist")
        del topics[topic.name]
        self._map("names_by_folded").pop(folded(topic.name), None)
        self._partitions.pop(record.topic_id, None)
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        if resource in self._image.configs or resource in self._configs:
            self._map("configs").pop(resource, None)
            self._configs.add(resource)
        if self._created.pop(record.topic_id, None) is None:
            self._deleted[record.topic_id] = self._image.topics_by_id[record.topic_id]

    def config(self, record: records.ConfigRecord) -> None:
        if is_cluster_id(record):
            self._take_cluster_id(record.value or "")
            return
        resource = ConfigResource(record.resource_type, record.resource_name)
        configs = self._map("configs")
        values = dict(configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            configs[resource] = values
        else:
            configs.pop(resource, None)
        self._configs.add(resource)

    def register_broker(self, record: records.RegisterBrokerRecord) -> None:
        self._map("brokers")[record.broker_id] = BrokerRegistration(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            end_points=record.end_points,
            features=record.features,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=record.log_dirs,
            machine_id=record.machine_id,
            cordoned_log_dirs=record.cordoned_log_dirs or (),
        )
        self._brokers.add(record.broker_id)

    def register_controller(self, record: records.RegisterControllerRecord) -> None:
        self._map("controllers")[record.controller_id] = record

    def unregister_broker(self, record: records.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self._map("brokers")[record.broker_id]
        self._brokers.add(record.broker_id)

    def broker_registration_change(self, record: records.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        self._map("brokers")[record.broker_id] = replace(
            broker,
            fenced=broker.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown > 0,
            log_dirs=record.log_dirs or broker.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs
            if record.cordoned_log_dirs is None
            else record.cordoned_log_dirs,
        )
        self._brokers.add(record.broker_id)

    def producer_ids(self, record: records.ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id:
            raise CorruptMetadataError(
                f"the metadata log allocates producer ids up to {record.next_producer_id}, "
                f"but those up to {self._next_producer_id} are allocated already"
            )
        self._next_producer_id = record.next_producer_id

    def feature_level(self, record: records.FeatureLevelRecord) -> None:
        features = self._map("features")
        if record.feature_level == 0:
            features.pop(record.name, None)
            self._features_off |= {record.name}
        else:
            features[record.name] = record.feature_level
            self._features_off -= {record.name}

    def access_control_entry(self, record: records.AccessControlEntryRecord) -> None:
        self._map("acls")[record.id] = record

    def remove_access_control_entry(self, record: records.RemoveAccessControlEntryRecord) -> None:
        if self._map("acls").pop(record.id, None) is None:
            raise CorruptMetadataError(f"the metadata log removes ACL {record.id}, which does not exist")

    def user_scram_credential(self, record: records.UserScramCredentialRecord) -> None:
        self._map("scram_credentials")[record.name, record.mechanism] = record
        self._scram_users.add(record.name)

    def remove_user_scram_credential(self, record: records.RemoveUserScramCredentialRecord) -> None:
        if self._map("scram_credentials").pop((record.name, record.mechanism), None) is None:
            raise CorruptMetadataError(
                f"the metadata log removes the SCRAM credential of user {record.name}, which does not exist"
            )
        self._scram_users.add(record.name)

    def delegation_token(self, record: records.DelegationTokenRecord) -> None:
        self._map("delegation_tokens")[record.token_id] = record
        self._delegation_tokens.add(record.token_id)

    def remove_delegation_token(self, record: records.RemoveDelegationTokenRecord) -> None:
        # Kafka accepts the removal of a token that does not exist: several controllers may have removed it.
        self._map("delegation_tokens").pop(record.token_id, None)
        self._delegation_tokens.add(record.token_id)

    def client_quota(self, record: records.ClientQuotaRecord) -> None:
        quotas, entity = self._map("quotas"), frozenset(record.entity)
        values = dict(quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            quotas[entity] = values
        else:
            quotas.pop(entity, None)

    def no_op(self, record: records.NoOpRecord | records.ZkMigrationStateRecord) -> None:
        """Changes only the offset."""

    def fence_broker(self, record: records.FenceBrokerRecord) -> None:
        self._map("brokers")[record.id] = replace(self._broker(record.id, record.epoch), fenced=True)
        self._brokers.add(record.id)

    def unfence_broker(self, record: records.UnfenceBrokerRecord) -> None:
        self._map("brokers")[record.id] = replace(self._broker(record.id, record.epoch), fenced=False)
        self._brokers.add(record.id)

    def clear_elr(self, record: records.ClearElrRecord) -> None:
        topics: Mapping[TopicName, TopicImage] = self._changes.get("topics", self._image.topics)
        name = TopicName(record.topic_name)
        if name and name not in topics:
            raise CorruptMetadataError(
                f"the metadata log clears the eligible leaders of topic {record.topic_name}, which does not exist"
            )
        for topic in [topics[name]] if name else list(topics.values()):
            partitions = self._partitions_of(topic.id)
            for number, each in enumerate(partitions):
                if each.eligible_leader_replicas or each.last_known_elr:
                    cleared = records.PartitionChangeRecord(
                        partition_id=number, topic_id=topic.id, eligible_leader_replicas=(), last_known_elr=()
                    )
                    partitions[number] = changed(each, cleared)

    def begin_transaction(self, record: records.BeginTransactionRecord) -> None:
        if self._pending is not None:
            raise CorruptMetadataError("the metadata log begins a transaction inside another one")
        self._pending = []

    def end_transaction(self, record: records.EndTransactionRecord) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            raise CorruptMetadataError("the metadata log ends a transaction that did not begin")
        for each in pending:
            self.take(each)

    def abort_transaction(self, record: records.AbortTransactionRecord) -> None:
        if self._pending is None:
            raise CorruptMetadataError("the metadata log aborts a transaction that did not begin")
        self._pending = None

    def _take_cluster_id(self, cluster_id: str) -> None:
        if self._cluster_id and self._cluster_id != cluster_id:
            raise CorruptMetadataError(
                f"the metadata log belongs to cluster {cluster_id!r}, but this is cluster {self._cluster_id!r}"
            )
        self._cluster_id = cluster_id

    def _shared(self, value: tuple[E, ...]) -> tuple[E, ...]:
        """Returns one tuple object for equal tuples: thousands of partitions share a few dozen sets of replicas."""
        return self._tuples.setdefault(value, value)

    def _map(self, name: str) -> dict[Any, Any]:
        changing = self._changes.get(name)
        if changing is None:
            changing = self._changes[name] = dict(getattr(self._image, name))
        return changing

    def _partitions_of(self, topic_id: UUID) -> list[PartitionState]:
        known = TopicId(topic_id)
        partitions = self._partitions.get(known)
        if partitions is None:
            topic = self._changes.get("topics_by_id", self._image.topics_by_id).get(known)
            if topic is None:
                raise CorruptMetadataError(
                    f"the metadata log has a partition of topic {topic_id}, which does not exist"
                )
            partitions = self._partitions[known] = list(topic.partitions)
        return partitions

    def _broker(self, broker_id: BrokerId, epoch: int) -> BrokerRegistration:
        broker: BrokerRegistration | None = self._changes.get("brokers", self._image.brokers).get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise CorruptMetadataError(
                f"the metadata log changes broker {broker_id} in epoch {epoch}, which is not registered"
            )
        return broker


_APPLIERS: dict[type[Any], Callable[[_Builder, Any], None]] = {
    records.RegisterBrokerRecord: _Builder.register_broker,
    records.UnregisterBrokerRecord: _Builder.unregister_broker,
    records.BrokerRegistrationChangeRecord: _Builder.broker_registration_change,
    records.RegisterControllerRecord: _Builder.register_controller,
    records.TopicRecord: _Builder.topic,
    records.PartitionRecord: _Builder.partition,
    records.PartitionChangeRecord: _Builder.partition_change,
    records.RemoveTopicRecord: _Builder.remove_topic,
    records.ConfigRecord: _Builder.config,
    records.ProducerIdsRecord: _Builder.producer_ids,
    records.FeatureLevelRecord: _Builder.feature_level,
    records.AccessControlEntryRecord: _Builder.access_control_entry,
    records.RemoveAccessControlEntryRecord: _Builder.remove_access_control_entry,
    records.UserScramCredentialRecord: _Builder.user_scram_credential,
    records.RemoveUserScramCredentialRecord: _Builder.remove_user_scram_credential,
    records.DelegationTokenRecord: _Builder.delegation_token,
    records.RemoveDelegationTokenRecord: _Builder.remove_delegation_token,
    records.ClientQuotaRecord: _Builder.client_quota,
    records.NoOpRecord: _Builder.no_op,
    records.ZkMigrationStateRecord: _Builder.no_op,
    records.FenceBrokerRecord: _Builder.fence_broker,
    records.UnfenceBrokerRecord: _Builder.unfence_broker,
    records.ClearElrRecord: _Builder.clear_elr,
    records.BeginTransactionRecord: _Builder.begin_transaction,
    records.EndTransactionRecord: _Builder.end_transaction,
    records.AbortTransactionRecord: _Builder.abort_transaction,
}
_TRANSACTION_RECORDS = (
    records.BeginTransactionRecord,
    records.EndTransactionRecord,
    records.AbortTransactionRecord,
)
