"""AlterPartition (56): the leader of a partition asks for another ISR, or says that it has recovered.

A change is refused if the leader, or the controller, does not know the newest state: it is one step from a known state
to the next. Reassignments are completed here, when all that shall stay are in sync.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId
from millstream.node.metadata.application import changed
from millstream.node.metadata.decision import Decision, Outcome, refusal
from millstream.node.metadata.image import MetadataImage, PartitionState, TopicImage
from millstream.node.metadata.membership import registered
from millstream.node.metadata.partition_change import RECOVERED, RECOVERING, PartitionChanger
from millstream.node.metadata.records import NO_LEADER_CHANGE, MetadataRecord

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
            topic, state = _partition(image, change)
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


def _partition(image: MetadataImage, change: IsrChange) -> tuple[TopicImage, PartitionState]:
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
