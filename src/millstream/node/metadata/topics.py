"""Decisions on topics: CreateTopics (19), DeleteTopics (20), CreatePartitions (37)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from random import Random
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import node
from millstream.config.table.topic import REMOTE_STORAGE_ENABLE
from millstream.config.topic_config import check_topic_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId, TopicId, TopicName
from millstream.node.metadata.image import Branch, MetadataImage, ResourceType, TopicImage, topic_record
from millstream.node.metadata.partitions import check_assignment, machine_count, new_partition, place_replicas
from millstream.node.metadata.records import (
    ConfigRecord,
    Decision,
    DecisionResult,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    check_sizes,
    refusal,
)
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, check_topic_name, folded

MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's limit for the partitions that one request may create."""
FROM_SETTINGS = -1
"""The partition count or replication factor of the broker's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    partition_count: int = FROM_SETTINGS
    replication_factor: int = FROM_SETTINGS
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Manual assignment: each partition and its replicas."""
    configs: Mapping[str, str | None] = field(default_factory=dict)
    branch_of: str | None = None
    """The topic of which this is a branch. The fields after it are for branches too."""
    branch_of_id: UUID = NO_TOPIC_ID
    """If given, the parent must have this id."""
    branch_offsets: Sequence[int] = ()
    """By partition: the offset where the records of the parent end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreation(DecisionResult):
    """The result of one created topic."""

    name: str
    topic_id: TopicId = NO_TOPIC_ID
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    machines: int = -1
    """The smallest number of machines that the replicas of a partition are on."""
    branch_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReference:
    """A topic by name or by id. A request has exactly one of them."""

    name: str | None = None
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletion(DecisionResult):
    name: str | None
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    name: str
    count: int
    """The new total number of partitions of the topic."""
    assignments: Sequence[Sequence[int]] | None = None
    """Manual assignment: the replicas of each added partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCreation(DecisionResult):
    name: str


Charge = Callable[[int], None]
"""Counts partitions that are created or deleted; raises KafkaError if the client's quota is exceeded."""


def _no_quota(partitions: int) -> None:
    """The `charge` of callers without a quota."""


def create_topics(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    config: BrokerConfig,
    random: Random,
    *,
    validate_only: bool = False,
    charge: Charge = _no_quota,
) -> Decision[TopicCreation]:
    """Decides on new topics. Each topic succeeds or fails on its own."""
    records: list[MetadataRecord] = []
    results: list[TopicCreation] = []
    counts = Counter(topic.name for topic in topics)
    total = sum(partitions_requested(topic, config) for topic in topics)
    accepted: dict[str, str] = {}
    for topic in topics:
        try:
            check_request_size(total)
            if counts[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name {topic.name!r} in one request.")
            made, result = _create_topic(image, topic, config, random, accepted)
            charge(result.partition_count)
        except KafkaError as error:
            code, message = refusal(error)
            results.append(TopicCreation(name=topic.name, error=code, message=message))
            continue
        accepted[folded(topic.name)] = topic.name
        records += made
        results.append(result)
    return Decision(() if validate_only else tuple(records), tuple(results))


def delete_topics(
    image: MetadataImage, topics: Sequence[TopicReference], config: BrokerConfig, *, charge: Charge = _no_quota
) -> Decision[TopicDeletion]:
    records: list[MetadataRecord] = []
    results: list[TopicDeletion] = []
    counts = Counter((topic.name, topic.topic_id) for topic in topics)
    removed: set[TopicId] = set()
    for reference in topics:
        try:
            if counts[reference.name, reference.topic_id] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a topic twice.")
            topic = find_topic(image, reference)
            if not config[node.DELETE_TOPIC_ENABLE]:
                raise KafkaError(
                    ErrorCode.TOPIC_DELETION_DISABLED,
                    "Topics cannot be deleted on this cluster: the broker runs with delete.topic.enable=false.",
                )
            if topic.id in removed:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a topic twice.")
            charge(len(topic.partitions))
        except KafkaError as error:
            code, message = refusal(error)
            results.append(TopicDeletion(name=reference.name, topic_id=reference.topic_id, error=code, message=message))
            continue
        removed.add(topic.id)
        records.append(RemoveTopicRecord(topic_id=topic.id))
        results.append(TopicDeletion(name=topic.name, topic_id=topic.id))
    return Decision(tuple(records), tuple(results))


def create_partitions(
    image: MetadataImage,
    topics: Sequence[NewPartitions],
    config: BrokerConfig,
    random: Random,
    *,
    validate_only: bool = False,
    charge: Charge = _no_quota,
) -> Decision[PartitionsCreation]:
    records: list[MetadataRecord] = []
    results: list[PartitionsCreation] = []
    counts = Counter(topic.name for topic in topics)
    for request in topics:
        try:
            if counts[request.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name {request.name!r} in one request.")
            added = _add_partitions(image, request, config, random, already=len(records))
            charge(len(added))
            records += added
        except KafkaError as error:
            code, message = refusal(error)
            results.append(PartitionsCreation(name=request.name, error=code, message=message))
            continue
        results.append(PartitionsCreation(name=request.name))
    return Decision(() if validate_only else tuple(records), tuple(results))


def find_topic(image: MetadataImage, reference: TopicReference) -> TopicImage:
    """The topic with this name or id, or Kafka's error if it does not exist."""
    by_id = reference.topic_id != NO_TOPIC_ID
    if by_id and reference.name is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if by_id:
        topic = image.topics_by_id.get(TopicId(reference.topic_id))
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {reference.topic_id}.")
        return topic
    if reference.name is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    topic = image.topics.get(TopicName(reference.name))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {reference.name!r} does not exist.")
    return topic


def internal_topic(
    name: str, image: MetadataImage, partition_count: int, replication_factor: int, configs: Mapping[str, str]
) -> NewTopic:
    """An internal topic. With fewer machines than replicas, each machine has one replica."""
    return NewTopic(
        name=name,
        partition_count=partition_count,
        replication_factor=max(1, min(replication_factor, machine_count(image))),
        configs=configs,
    )


def _create_topic(
    image: MetadataImage, topic: NewTopic, config: BrokerConfig, random: Random, accepted: Mapping[str, str]
) -> tuple[list[MetadataRecord], TopicCreation]:
    _check_name(image, topic.name, accepted)
    if topic.branch_of is not None:
        return _create_branch(image, topic, config, random)
    configs = _checked_configs(topic.configs, config)
    placements = _placements(image, topic, config, random)
    topic_id = new_topic_id(random)
    records: list[MetadataRecord] = [TopicRecord(name=TopicName(topic.name), topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in configs.items()
    ]
    records += [new_partition(image, topic_id, partition, replicas) for partition, replicas in enumerate(placements)]
    result = TopicCreation(
        name=topic.name,
        topic_id=topic_id,
        partition_count=len(placements),
        replication_factor=len(placements[0]),
        configs=configs,
        machines=min(machine_count(image, replicas) for replicas in placements),
    )
    return records, result


def _create_branch(
    image: MetadataImage, topic: NewTopic, config: BrokerConfig, random: Random
) -> tuple[list[MetadataRecord], TopicCreation]:
    """A topic that begins with the records of another one. Its replicas are where those of the parent are, and its ISR
    and leaders are the parent's: they have all committed records, and make their logs from them."""
    assert topic.branch_of is not None
    parent = _checked_parent(image, topic)
    own = {
        name: value
        for name, value in image.topic_config(parent.name).items()
        if not name.startswith("millstream.mirror.") and name not in _NOT_INHERITED
    }
    configs = _checked_configs({**own, **topic.configs}, config)
    tiered = REMOTE_STORAGE_ENABLE.name
    if own.get(tiered, "").lower() == "true" and configs.get(tiered, "").lower() != "true":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Topic {parent.name!r} is tiered, so its branch needs {tiered}=true: records that are in the tier alone "
            "would not be in the branch.",
        )
    topic_id = new_topic_id(random)
    branch = Branch(
        parent=parent.name, parent_id=parent.id, origin_id=parent.family, offsets=tuple(topic.branch_offsets)
    )
    created = TopicImage(name=TopicName(topic.name), id=topic_id, partitions=(), branch=branch)
    records: list[MetadataRecord] = [topic_record(created)]
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in configs.items()
    ]
    records += [_branch_partition(image, topic_id, parent, index) for index in range(len(parent.partitions))]
    result = TopicCreation(
        name=topic.name,
        topic_id=topic_id,
        partition_count=len(parent.partitions),
        replication_factor=parent.replication_factor,
        configs=configs,
        machines=min(machine_count(image, state.replicas) for state in parent.partitions),
        branch_of=parent.name,
    )
    return records, result


def _checked_parent(image: MetadataImage, topic: NewTopic) -> TopicImage:
    parent = image.topics.get(TopicName(topic.branch_of or ""))
    if parent is None or topic.branch_of_id not in (NO_TOPIC_ID, parent.id):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic {topic.branch_of!r}, of which {topic.name!r} should be a branch, does not exist or was created "
            "again.",
        )
    if parent.name in INTERNAL_TOPICS or parent.name.startswith("__"):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Topic {parent.name!r} is internal: internal topics cannot be branched."
        )
    if topic.assignments or (topic.partition_count, topic.replication_factor) != (FROM_SETTINGS, FROM_SETTINGS):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A branch has the partitions and replicas of its parent: leave the number of partitions and the "
            "replication factor at -1, and give no assignment.",
        )
    if len(topic.branch_offsets) != len(parent.partitions) or min(topic.branch_offsets, default=0) < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A branch of {parent.name!r} needs {len(parent.partitions)} offsets of 0 or more, one for each partition; "
            f"the request has {len(topic.branch_offsets)}.",
        )
    return parent


def _branch_partition(image: MetadataImage, topic_id: TopicId, parent: TopicImage, index: int) -> PartitionRecord:
    state = parent.partitions[index]
    replicas = tuple(each for each in state.replicas if each not in state.adding_replicas)
    isr = tuple(each for each in state.isr if each in replicas and image.brokers[BrokerId(each)].active)
    if not isr or not state.has_leader:
        raise KafkaError(
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"Partition {index} of {parent.name!r} has no leader: it can be branched when it has one again.",
        )
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=state.leader if state.leader in isr else isr[0],
        # The records of the branch's own part must have later epochs than those of the parent before them.
        leader_epoch=state.leader_epoch + 1,
        directories=tuple(state.directory_of(each) for each in replicas),  # files are shared within one file system
    )


_NOT_INHERITED = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "millstream.tier.restore.from",
    }
)
"""Settings that name partitions or objects of the parent."""


def new_topic_id(random: Random) -> TopicId:
    """A random version-4 UUID, as Kafka makes them; never one of Kafka's reserved ids."""
    return TopicId(UUID(int=random.getrandbits(128), version=4))


def _check_name(image: MetadataImage, name: str, accepted: Mapping[str, str]) -> None:
    check_topic_name(name)
    if name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")
    other = image.names_by_folded.get(folded(name)) or accepted.get(folded(name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic {name!r} collides with existing topic {other!r}: names must not differ only in '.' and '_'.",
        )


def _checked_configs(given: Mapping[str, str | None], config: BrokerConfig) -> dict[str, str]:
    configs = {}
    for name, value in given.items():
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        configs[name] = value
    check_sizes("", configs)
    try:
        check_topic_config(configs, config)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None
    return configs


def _placements(image: MetadataImage, topic: NewTopic, config: BrokerConfig, random: Random) -> list[tuple[int, ...]]:
    if topic.assignments:
        return _chosen_placements(image, topic, config)
    partition_count, replication_factor = topic.partition_count, topic.replication_factor
    if partition_count == FROM_SETTINGS:
        partition_count = config[node.NUM_PARTITIONS]
    if replication_factor == FROM_SETTINGS:
        replication_factor = config[node.DEFAULT_REPLICATION_FACTOR]
    if partition_count <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions was set to {partition_count}: it must be 1 or more, or -1 for the default.",
        )
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor was set to {replication_factor}: it must be 1 or more, or -1 for the default.",
        )
    _check_topic_size(partition_count, config)
    return place_replicas(image, partition_count, replication_factor, random)


def _chosen_placements(image: MetadataImage, topic: NewTopic, config: BrokerConfig) -> list[tuple[int, ...]]:
    if topic.replication_factor != FROM_SETTINGS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.partition_count != FROM_SETTINGS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but number of partitions was not set to -1.",
        )
    _check_topic_size(len(topic.assignments), config)
    chosen: dict[int, tuple[int, ...]] = {}
    replication_factor: int | None = None
    for partition, replicas in topic.assignments:
        if partition in chosen:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Found multiple manual assignments for partition {partition}."
            )
        check_assignment(image, replicas, replication_factor)
        replication_factor = len(replicas)
        chosen[partition] = tuple(replicas)
    if sorted(chosen) != list(range(len(chosen))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions should be a consecutive 0-based integer sequence."
        )
    return [chosen[partition] for partition in range(len(chosen))]


def partitions_requested(topic: NewTopic, config: BrokerConfig) -> int:
    if topic.branch_of is not None:
        return len(topic.branch_offsets)
    if topic.assignments:
        return len(topic.assignments)
    if topic.partition_count == FROM_SETTINGS:
        return config[node.NUM_PARTITIONS]
    return max(0, topic.partition_count)  # a negative count is refused later, and must not lower the sum


def _check_topic_size(partition_count: int, config: BrokerConfig) -> None:
    limit = config[node.MAX_PARTITIONS_PER_TOPIC]
    if partition_count > limit:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{partition_count} partitions are more than the limit of {limit} for one topic "
            f"({node.MAX_PARTITIONS_PER_TOPIC.name}).",
        )


def check_request_size(partition_count: int) -> None:
    if partition_count > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {partition_count}. The limit is "
            f"{MAX_PARTITIONS_PER_REQUEST}.",
        )


def _add_partitions(
    image: MetadataImage, request: NewPartitions, config: BrokerConfig, random: Random, *, already: int
) -> list[PartitionRecord]:
    topic = find_topic(image, TopicReference(name=request.name))
    if request.name in INTERNAL_TOPICS:
        # The number of partitions determines the partition of each group: with another number, groups would be lost.
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"The number of partitions of internal topic {request.name} cannot be changed."
        )
    present = len(topic.partitions)
    added = request.count - present
    if added == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if added < 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} currently has {present} partition(s); {request.count} would not be an increase.",
        )
    _check_topic_size(request.count, config)
    check_request_size(already + added)
    if request.assignments is None:
        placements = place_replicas(image, added, topic.replication_factor, random)
    else:
        if len(request.assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but {len(request.assignments)} assignment(s) "
                "were specified.",
            )
        for replicas in request.assignments:
            check_assignment(image, replicas, topic.replication_factor)
        placements = [tuple(replicas) for replicas in request.assignments]
    return [new_partition(image, topic.id, present + number, replicas) for number, replicas in enumerate(placements)]
