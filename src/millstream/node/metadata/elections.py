"""ElectLeaders (43), the balance of preferred leaders, and leaders for partitions that have none."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.metadata.decision import Decision, Outcome, refusal
from millstream.node.metadata.image import MetadataImage, PartitionState, TopicImage
from millstream.node.metadata.membership import leaderless
from millstream.node.metadata.partition_change import Election, PartitionChanger
from millstream.node.metadata.records import NO_LEADER, NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord

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
