"""AlterPartitionReassignments (45) and ListPartitionReassignments (46), and the growth of internal topics.

During a reassignment a partition has its new and its old replicas. When all new replicas are in sync (see `elections`),
the old ones are removed. Added replicas are stored separately, so that a reassignment can be cancelled or replaced.

Internal topics that were created with few brokers get the missing replicas when brokers are added.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import groups, share, transactions
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.formats.model.placement import Place, Used
from millstream.node.metadata.image import MetadataImage, PartitionState, TopicImage
from millstream.node.metadata.partitions import PartitionChanger, ReplicationRules, check_assignment, interleaved
from millstream.node.metadata.records import Decision, DecisionResult, MetadataRecord, PartitionChangeRecord, refusal
from millstream.node.metadata.topic_names import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    topic: str
    partition: int
    replicas: Sequence[int] | None
    """The new replicas, the preferred leader first; None cancels the reassignment in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentResult(DecisionResult):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingReassignment:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


def alter_reassignments(
    image: MetadataImage,
    reassignments: Sequence[Reassignment],
    config: BrokerConfig,
    *,
    allow_replication_factor_change: bool = True,
) -> Decision[ReassignmentResult]:
    """Starts, replaces and cancels reassignments. Each item succeeds or fails on its own."""
    changer = PartitionChanger(image, config)
    rules = ReplicationRules(image, config)
    records: list[MetadataRecord] = []
    results: list[ReassignmentResult] = []
    seen: set[tuple[str, int]] = set()
    for requested in reassignments:
        try:
            if (requested.topic, requested.partition) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a partition twice.")
            seen.add((requested.topic, requested.partition))
            topic, partition = _partition(image, requested)
            if requested.replicas is None:
                record = _cancelled(changer, rules, topic, requested.partition, partition)
            else:
                check_assignment(image, requested.replicas, None, present=partition.replicas)
                if not allow_replication_factor_change:
                    _check_factor(partition, requested.replicas)
                record = _begun(changer, topic, requested.partition, partition, requested.replicas)
        except KafkaError as error:
            code, message = refusal(error)
            results.append(
                ReassignmentResult(topic=requested.topic, partition=requested.partition, error=code, message=message)
            )
            continue
        if record is not None:
            records.append(record)
        results.append(ReassignmentResult(topic=requested.topic, partition=requested.partition))
    return Decision(tuple(records), tuple(results))


def list_reassignments(
    image: MetadataImage, partitions: Sequence[tuple[str, Sequence[int]]] | None = None
) -> list[OngoingReassignment]:
    """The reassignments in progress, of these partitions or (None) of all. Unknown partitions are skipped, as in
    Kafka."""
    ongoing = []
    if partitions is None:
        partitions = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    for name, numbers in partitions:
        topic = image.topics.get(TopicName(name))
        if topic is None:
            continue
        for number in dict.fromkeys(numbers):
            if not 0 <= number < len(topic.partitions):
                continue
            partition = topic.partitions[number]
            if partition.adding_replicas or partition.removing_replicas:
                ongoing.append(
                    OngoingReassignment(
                        topic=name,
                        partition=number,
                        replicas=partition.replicas,
                        adding_replicas=partition.adding_replicas,
                        removing_replicas=partition.removing_replicas,
                    )
                )
    return ongoing


def _partition(image: MetadataImage, requested: Reassignment) -> tuple[TopicImage, PartitionState]:
    topic = image.topics.get(TopicName(requested.topic))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {requested.topic!r} does not exist.")
    if not 0 <= requested.partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {requested.topic} has no partition {requested.partition}."
        )
    return topic, topic.partitions[requested.partition]


def _original(partition: PartitionState) -> tuple[int, ...]:
    """The replicas without those that a reassignment in progress adds."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)


def _loses_all_that_is_complete(partition: PartitionState, replicas: Collection[int]) -> bool:
    complete = partition.isr or partition.eligible_leader_replicas
    return bool(complete) and not any(member in replicas for member in complete)


def _check_factor(partition: PartitionState, replicas: Sequence[int]) -> None:
    factor = len(_original(partition))
    if len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {factor} to {len(replicas)}. Name {factor} replicas, or allow "
            "the change.",
        )


def _begun(
    changer: PartitionChanger, topic: TopicImage, number: int, partition: PartitionState, target: Sequence[int]
) -> PartitionChangeRecord | None:
    original = _original(partition)
    removing = tuple(replica for replica in original if replica not in target)
    replicas = (*target, *removing)
    # Replicas that only an earlier reassignment was adding are removed at once.
    isr = tuple(member for member in partition.isr if member in replicas)
    if _loses_all_that_is_complete(partition, replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only the replicas {list(partition.isr or partition.eligible_leader_replicas)} have all records, and the "
            "reassignment in progress is adding them. Wait until it is complete, or keep one of them.",
        )
    return changer.change(
        topic,
        number,
        isr=isr,
        replicas=replicas,
        adding=tuple(replica for replica in target if replica not in original),
        removing=removing,
    )


def _cancelled(
    changer: PartitionChanger, rules: ReplicationRules, topic: TopicImage, number: int, partition: PartitionState
) -> PartitionChangeRecord | None:
    if not partition.adding_replicas and not partition.removing_replicas:
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"No reassignment of {topic.name}-{number} is in progress."
        )
    replicas = _original(partition)
    isr = tuple(member for member in partition.isr if member in replicas)
    if _loses_all_that_is_complete(partition, replicas) and not rules.unclean_elections(topic.name):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the earlier replicas {list(replicas)} of {topic.name}-{number} is in sync, so cancelling would "
            "need an unclean election. Wait until it is complete, or allow unclean elections for the topic.",
        )
    return changer.change(topic, number, isr=isr, replicas=replicas, adding=(), removing=())


INTERNAL_REPLICATION_FACTOR = 3
"""The replication factor of internal topics that have no setting for it."""


def wanted_replication_factors(config: BrokerConfig) -> dict[str, int]:
    """The replication factor of each internal topic, if there are enough brokers."""
    wanted: dict[str, int] = dict.fromkeys(sorted(INTERNAL_TOPICS), INTERNAL_REPLICATION_FACTOR)
    wanted[CONSUMER_OFFSETS_TOPIC] = config[groups.OFFSETS_TOPIC_REPLICATION_FACTOR]
    wanted[SHARE_GROUP_STATE_TOPIC] = config[share.SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR]
    wanted[TRANSACTION_STATE_TOPIC] = config[transactions.TRANSACTION_STATE_LOG_REPLICATION_FACTOR]
    return wanted


def grow_internal_topics(image: MetadataImage, config: BrokerConfig) -> Decision[ReassignmentResult]:
    """Starts reassignments that add missing replicas to internal topics.

    Partitions with a reassignment in progress are skipped until it is complete.
    """
    active = [broker for broker in image.brokers.values() if broker.active and not image.cordoned(broker.id)]
    places = {int(broker.id): broker.place for broker in active}
    machines = len({place.machine for place in places.values()})
    held: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    requested: list[Reassignment] = []
    for name, wanted in wanted_replication_factors(config).items():
        topic = image.topics.get(TopicName(name))
        for number, partition in enumerate(topic.partitions if topic is not None else ()):
            held.update(partition.replicas)
            preferred[partition.replicas[0]] += 1
            # A second replica on the same machine would cost disk and protect nothing.
            missing = min(wanted, machines) - len(partition.replicas)
            if missing <= 0 or partition.adding_replicas or partition.removing_replicas:
                continue
            added = _chosen(image, places, held, partition.replicas, missing)
            held.update(added)
            replicas = [*partition.replicas, *added]
            # The first replica is the preferred leader: this spreads coordinators over the brokers.
            preferred[replicas[0]] -= 1
            first = min(replicas, key=lambda broker: preferred[broker])
            preferred[first] += 1
            replicas.remove(first)
            requested.append(Reassignment(topic=name, partition=number, replicas=(first, *replicas)))
    return alter_reassignments(image, requested, config)


def _chosen(
    image: MetadataImage, places: Mapping[int, Place], held: Counter[int], present: Sequence[int], count: int
) -> list[int]:
    used = Used({int(broker.id): broker.place for broker in image.brokers.values()}, present)
    free = [broker for broker in interleaved(places, places) if broker not in present]
    chosen: list[int] = []
    while free and len(chosen) < count:
        best = min(free, key=lambda broker: (*used.cost(broker), held[broker]))
        chosen.append(best)
        free.remove(best)
        used.add(best)
    return chosen
