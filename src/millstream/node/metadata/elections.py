"""Leaders and in-sync replicas: ElectLeaders (43), AlterPartition (56), preferred leaders, partitions without a leader.

AlterPartition is refused if the leader, or the controller, does not have the newest state: each change is one step from
a known state to the next. Reassignments are completed here, when all replicas that stay are in sync.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId, TopicName
from millstream.node.metadata.brokers import leaderless, registered
from millstream.node.metadata.image import MetadataImage, PartitionState, TopicImage, changed
from millstream.node.metadata.partitions import RECOVERED, RECOVERING, Election, PartitionChanger
from millstream.node.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    Decision,
    DecisionResult,
    MetadataRecord,
    PartitionChangeRecord,
    refusal,
)

MAX_ELECTIONS_AT_ONCE = 1000
"""The maximum number of elections in one decision, as in Kafka. The next decision follows at once."""


class ElectionType(IntEnum):
    """The election types of ElectLeaders, with Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult(DecisionResult):
    topic: str
    partition: int


def elect_leaders(
    image: MetadataImage,
    election_type: int,
    partitions: Sequence[tuple[str, int]] | None,
    config: BrokerConfig,
) -> Decision[ElectionResult]:
    """Elects leaders of the partitions. With None: of all, and partitions that need no election get no result."""
    if election_type not in list(ElectionType):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}. Use 0 (preferred) or 1 (unclean)."
        )
    wanted = ElectionType(election_type)
    changer = PartitionChanger(image, config)
    records: list[MetadataRecord] = []
    results: list[ElectionResult] = []
    requested = _all_partitions(image) if partitions is None else dict.fromkeys(partitions)
    for topic_name, number in requested:
        try:
            records.append(_elected(image, changer, topic_name, number, wanted))
        except KafkaError as error:
            code, message = refusal(error)
            if partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionResult(topic=topic_name, partition=number, error=code, message=message))
            continue
        results.append(ElectionResult(topic=topic_name, partition=number))
    return Decision(tuple(records), tuple(results))


def balance_leaders(
    image: MetadataImage, config: BrokerConfig, *, limit: int = MAX_ELECTIONS_AT_ONCE
) -> Decision[ElectionResult]:
    """Elects preferred replicas that are in sync and do not lead (`auto.leader.rebalance.enable`).

    If there are `limit` results, more partitions may be left for the next decision.
    """
    changer = PartitionChanger(image, config)
    active = {broker.id for broker in image.brokers.values() if broker.active}
    records: list[MetadataRecord] = []
    results: list[ElectionResult] = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            if partition.leader == preferred or preferred not in partition.isr or preferred not in active:
                continue
            record = changer.change(topic, number, election=Election.PREFERRED)
            if record is not None:
                records.append(record)
                results.append(ElectionResult(topic=topic.name, partition=number))
                if len(records) >= limit:
                    return Decision(tuple(records), tuple(results))
    return Decision(tuple(records), tuple(results))


def elect_leaderless(
    image: MetadataImage, config: BrokerConfig, *, limit: int = MAX_ELECTIONS_AT_ONCE
) -> Decision[ElectionResult]:
    """Elects a leader for each partition that has none, where this is possible.

    Runs when a controller becomes active, because its predecessor may have stopped in between; and periodically,
    because a topic may have got `unclean.leader.election.enable`.
    """
    changer = PartitionChanger(image, config)
    records: list[MetadataRecord] = []
    results: list[ElectionResult] = []
    for topic, number in leaderless(image):
        record = changer.change(topic, number)
        if record is not None and record.leader >= 0:
            records.append(record)
            results.append(ElectionResult(topic=topic.name, partition=number))
            if len(records) >= limit:
                break
    return Decision(tuple(records), tuple(results))


def _all_partitions(image: MetadataImage) -> Iterator[tuple[str, int]]:
    return ((topic.name, number) for topic in image.topics.values() for number in range(len(topic.partitions)))


def _elected(
    image: MetadataImage, changer: PartitionChanger, topic_name: str, number: int, wanted: ElectionType
) -> PartitionChangeRecord:
    topic, partition = _partition(image, topic_name, number)
    if wanted is ElectionType.PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica is the leader already.")
        record = changer.change(topic, number, election=Election.PREFERRED)
        if record is None or record.leader == NO_LEADER_CHANGE:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"The preferred replica {partition.replicas[0]} is not in sync or its broker is not available. "
                "Try again later.",
            )
        return record
    if partition.has_leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"The partition has a leader, {partition.leader}.")
    record = changer.change(topic, number, election=Election.UNCLEAN)
    if record is None or record.leader in (NO_LEADER, NO_LEADER_CHANGE):
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"None of the replicas {list(partition.replicas)} is available. Start one of their brokers.",
        )
    return record


def _partition(image: MetadataImage, topic_name: str, number: int) -> tuple[TopicImage, PartitionState]:
    topic = image.topics.get(TopicName(topic_name))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic_name!r} does not exist.")
    if not 0 <= number < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic_name} has no partition {number}.")
    return topic, topic.partitions[number]


ANY_EPOCH = -1
"""The broker epoch of a replica if the leader does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: Sequence[tuple[int, int]]
    """Each member, and the epoch of its broker when it caught up with the leader."""
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChangeResult(DecisionResult):
    topic_id: UUID
    partition: int
    state: PartitionState | None = None
    """The partition after the change; None after an error."""


def alter_partitions(
    image: MetadataImage,
    broker_id: BrokerId,
    broker_epoch: int,
    changes: Sequence[IsrChange],
    config: BrokerConfig,
) -> Decision[IsrChangeResult]:
    """Applies the ISR changes that a leader requests. Raises STALE_BROKER_EPOCH if the broker epoch is not current."""
    registered(image, broker_id, broker_epoch)
    changer = PartitionChanger(image, config)
    records: list[MetadataRecord] = []
    results: list[IsrChangeResult] = []
    seen: set[tuple[UUID, int]] = set()
    for change in changes:
        result = IsrChangeResult(topic_id=change.topic_id, partition=change.partition)
        try:
            if (change.topic_id, change.partition) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a partition twice.")
            seen.add((change.topic_id, change.partition))
            topic, state = _partition_by_id(image, change)
            _check(image, broker_id, change, state)
        except KafkaError as error:
            code, message = refusal(error)
            results.append(replace(result, error=code, message=message))
            continue
        record = changer.change(
            topic,
            change.partition,
            isr=[member for member, _ in change.new_isr],
            leader_recovery_state=change.leader_recovery_state,
        )
        if record is not None:
            records.append(record)
            state = changed(state, record)
            if record.leader not in (NO_LEADER_CHANGE, broker_id):
                # The change completed a reassignment that removes the leader: it is applied, and the leader changes.
                message = f"The reassignment is complete. Broker {state.leader} is the new leader."
                results.append(replace(result, error=ErrorCode.NEW_LEADER_ELECTED, message=message))
                continue
        results.append(replace(result, state=state))
    return Decision(tuple(records), tuple(results))


def _partition_by_id(image: MetadataImage, change: IsrChange) -> tuple[TopicImage, PartitionState]:
    topic = image.topics_by_id.get(TopicId(change.topic_id))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {change.topic_id}. It may be deleted.")
    if not 0 <= change.partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic.name} has no partition {change.partition}."
        )
    return topic, topic.partitions[change.partition]


def _check(image: MetadataImage, broker_id: BrokerId, change: IsrChange, state: PartitionState) -> None:
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        # The leader has newer metadata than this controller: a newer controller is active.
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "Another controller is active. Send the request to it.")
    if change.leader_epoch < state.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"Leader epoch {change.leader_epoch} is stale, the current one is {state.leader_epoch}. Wait for newer "
            "metadata.",
        )
    if broker_id != state.leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is not the leader of the partition: {state.leader} is."
        )
    if change.partition_epoch < state.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Partition epoch {change.partition_epoch} is stale, the current one is {state.partition_epoch}. Wait for "
            "newer metadata.",
        )
    _check_members(change, state)
    for member, epoch in change.new_isr:
        problem = _ineligible(image, state, member, epoch)
        if problem is not None:
            raise KafkaError(
                ErrorCode.INELIGIBLE_REPLICA, f"Replica {member} cannot be in the ISR: {problem}. Remove it for now."
            )


def _check_members(change: IsrChange, state: PartitionState) -> None:
    members = [member for member, _ in change.new_isr]
    problem = None
    if len(set(members)) != len(members) or not set(members) <= set(state.replicas):
        problem = f"The ISR {members} is not a subset of the replicas {list(state.replicas)}."
    elif state.leader not in members:
        problem = f"The ISR {members} does not contain the leader {state.leader}."
    elif change.leader_recovery_state not in (RECOVERED, RECOVERING):
        problem = f"Unknown leader recovery state {change.leader_recovery_state}."
    elif change.leader_recovery_state == RECOVERING and len(members) > 1:
        problem = "While the leader recovers, no other replica can be in the ISR."
    elif change.leader_recovery_state == RECOVERING and state.leader_recovery_state == RECOVERED:
        problem = "The leader has recovered already."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _ineligible(image: MetadataImage, state: PartitionState, member: int, epoch: int) -> str | None:
    broker = image.brokers.get(BrokerId(member))
    if broker is None:
        return "its broker is not registered"
    if broker.in_controlled_shutdown:
        return "its broker is shutting down"
    if broker.fenced:
        return "its broker is fenced"
    if epoch not in (ANY_EPOCH, broker.epoch):
        return f"its broker is in epoch {broker.epoch}, not {epoch}"
    if broker.has_several_log_dirs and not broker.has_directory(state.directory_of(member)):
        return "its log directory is offline"
    return None
