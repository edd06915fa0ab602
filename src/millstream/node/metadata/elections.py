"""ElectLeaders (43), the balance of preferred leaders, and leaders for partitions that have none.

AlterPartition (56): the leader of a partition asks for another ISR, or says that it has recovered.

A change is refused if the leader, or the controller, does not know the newest state: it is one step from a known state
to the next. Reassignments are completed here, when all that shall stay are in sync.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from uuid import UUID

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
    MetadataRecord,
    Outcome,
    PartitionChangeRecord,
    refusal,
)

MAX_ELECTIONS_AT_ONCE = 1000
"""As many as the balance of leaders moves in one go, as in Kafka; the rest follows at once in the next."""


class ElectionType(IntEnum):
    """What ElectLeaders asks for, with Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionAnswer(Outcome):
    topic: str
    partition: int


def elect_leaders(
    image: MetadataImage,
    election_type: int,
    partitions: Sequence[tuple[str, int]] | None,
    config: BrokerConfig,
) -> Decision[ElectionAnswer]:
    """Elects leaders of the partitions, or (None) of all; then those that need no election are not in the answer."""
    if election_type not in list(ElectionType):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}: 0 is preferred, 1 is unclean."
        )
    wanted = ElectionType(election_type)
    changer = PartitionChanger(image, config)
    records: list[MetadataRecord] = []
    results: list[ElectionAnswer] = []
    asked = _all_partitions(image) if partitions is None else dict.fromkeys(partitions)
    for topic_name, number in asked:
        try:
            records.append(_elected(image, changer, topic_name, number, wanted))
        except KafkaError as error:
            code, message = refusal(error)
            if partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionAnswer(topic=topic_name, partition=number, error=code, message=message))
            continue
        results.append(ElectionAnswer(topic=topic_name, partition=number))
    return Decision(tuple(records), tuple(results))


def balance_leaders(
    image: MetadataImage, config: BrokerConfig, *, limit: int = MAX_ELECTIONS_AT_ONCE
) -> Decision[ElectionAnswer]:
    """Lets the preferred replica lead again wherever it is in sync: what `auto.leader.rebalance.enable` does.

    At most `limit` partitions are in one decision; as many results tell that more may be left.
    """
    changer = PartitionChanger(image, config)
    active = {broker.id for broker in image.brokers.values() if broker.active}
    records: list[MetadataRecord] = []
    results: list[ElectionAnswer] = []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            if partition.leader == preferred or preferred not in partition.isr or preferred not in active:
                continue
            record = changer.change(topic, number, election=Election.PREFERRED)
            if record is not None:
                records.append(record)
                results.append(ElectionAnswer(topic=topic.name, partition=number))
                if len(records) >= limit:
                    return Decision(tuple(records), tuple(results))
    return Decision(tuple(records), tuple(results))


def elect_leaderless(
    image: MetadataImage, config: BrokerConfig, *, limit: int = MAX_ELECTIONS_AT_ONCE
) -> Decision[ElectionAnswer]:
    """Gives a leader to each partition that has none and can have one.

    For a controller that begins (its predecessor may have stopped halfway), and from time to time, since a topic may
    have got `unclean.leader.election.enable` meanwhile.
    """
    changer = PartitionChanger(image, config)
    records: list[MetadataRecord] = []
    results: list[ElectionAnswer] = []
    for topic, number in leaderless(image):
        record = changer.change(topic, number)
        if record is not None and record.leader >= 0:
            records.append(record)
            results.append(ElectionAnswer(topic=topic.name, partition=number))
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
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica leads already.")
        record = changer.change(topic, number, election=Election.PREFERRED)
        if record is None or record.leader == NO_LEADER_CHANGE:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"The preferred replica, {partition.replicas[0]}, is not in sync or not available; try again later.",
            )
        return record
    if partition.has_leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"The partition has a leader, {partition.leader}.")
    record = changer.change(topic, number, election=Election.UNCLEAN)
    if record is None or record.leader in (NO_LEADER, NO_LEADER_CHANGE):
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"None of the replicas {list(partition.replicas)} is available; start one of their brokers.",
        )
    return record


def _partition(image: MetadataImage, topic_name: str, number: int) -> tuple[TopicImage, PartitionState]:
    topic = image.topics.get(TopicName(topic_name))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic_name}.")
    if not 0 <= number < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic_name}-{number}.")
    return topic, topic.partitions[number]


ANY_EPOCH = -1
"""The epoch of a replica's broker, where the leader does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: Sequence[tuple[int, int]]
    """Each member and the epoch of its broker in which the leader saw it catch up."""
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrAnswer(Outcome):
    topic_id: UUID
    partition: int
    state: PartitionState | None = None
    """The partition after the change, if there was no error."""


def alter_partitions(
    image: MetadataImage,
    broker_id: BrokerId,
    broker_epoch: int,
    changes: Sequence[IsrChange],
    config: BrokerConfig,
) -> Decision[IsrAnswer]:
    """Makes the changes that the leader may make. The whole is refused, with STALE_BROKER_EPOCH, to another process."""
    registered(image, broker_id, broker_epoch)
    changer = PartitionChanger(image, config)
    records: list[MetadataRecord] = []
    results: list[IsrAnswer] = []
    seen: set[tuple[UUID, int]] = set()
    for change in changes:
        answer = IsrAnswer(topic_id=change.topic_id, partition=change.partition)
        try:
            if (change.topic_id, change.partition) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The same partition is named twice in one request.")
            seen.add((change.topic_id, change.partition))
            topic, state = _partition_by_id(image, change)
            _check(image, broker_id, change, state)
        except KafkaError as error:
            code, message = refusal(error)
            results.append(replace(answer, error=code, message=message))
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
                # The leader was to be removed, and the reassignment is complete: it is done, and it no longer leads.
                message = f"The reassignment is complete; broker {state.leader} leads the partition now."
                results.append(replace(answer, error=ErrorCode.NEW_LEADER_ELECTED, message=message))
                continue
        results.append(replace(answer, state=state))
    return Decision(tuple(records), tuple(results))


def _partition_by_id(image: MetadataImage, change: IsrChange) -> tuple[TopicImage, PartitionState]:
    topic = image.topics_by_id.get(TopicId(change.topic_id))
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {change.topic_id}; it may be deleted.")
    if not 0 <= change.partition < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic.name} has no partition {change.partition}."
        )
    return topic, topic.partitions[change.partition]


def _check(image: MetadataImage, broker_id: BrokerId, change: IsrChange, state: PartitionState) -> None:
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        # The leader knows more than this controller: another one must have told it.
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "A newer controller is active; look it up and ask again.")
    if change.leader_epoch < state.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"Leader epoch {change.leader_epoch} is over, it is {state.leader_epoch} now; wait for newer metadata.",
        )
    if broker_id != state.leader:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker_id} does not lead the partition: {state.leader} does."
        )
    if change.partition_epoch < state.partition_epoch:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Partition epoch {change.partition_epoch} is not the present one, {state.partition_epoch}; wait for newer "
            "metadata.",
        )
    _check_members(change, state)
    for member, epoch in change.new_isr:
        problem = _ineligible(image, member, epoch)
        if problem is not None:
            raise KafkaError(
                ErrorCode.INELIGIBLE_REPLICA, f"Replica {member} cannot be in sync: {problem}; leave it out for now."
            )


def _check_members(change: IsrChange, state: PartitionState) -> None:
    members = [member for member, _ in change.new_isr]
    problem = None
    if len(set(members)) != len(members) or not set(members) <= set(state.replicas):
        problem = f"The ISR {members} is not a part of the replicas {list(state.replicas)}."
    elif state.leader not in members:
        problem = f"The ISR {members} lacks the leader, {state.leader}."
    elif change.leader_recovery_state not in (RECOVERED, RECOVERING):
        problem = f"There is no leader recovery state {change.leader_recovery_state}."
    elif change.leader_recovery_state == RECOVERING and len(members) > 1:
        problem = "Nobody else can be in sync with a leader that has not recovered."
    elif change.leader_recovery_state == RECOVERING and state.leader_recovery_state == RECOVERED:
        problem = "The leader has recovered already."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _ineligible(image: MetadataImage, member: int, epoch: int) -> str | None:
    broker = image.brokers.get(BrokerId(member))
    if broker is None:
        return "its broker is not registered"
    if broker.in_controlled_shutdown:
        return "its broker is shutting down"
    if broker.fenced:
        return "its broker is fenced"
    if epoch not in (ANY_EPOCH, broker.epoch):
        return f"its broker is in epoch {broker.epoch}, not {epoch}"
    return None
