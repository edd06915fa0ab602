"""Which brokers hold the replicas of new partitions.

Leaders go round the brokers from a random start; followers follow at a distance that grows each round, so that the
partitions of a failed broker find leaders on all others. Racks are not looked at yet.
"""

from collections.abc import Sequence
from random import Random

from millstream.metadata.image import MetadataImage
from millstream.metadata.partition_change import directory_of
from millstream.metadata.records import PartitionRecord
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import BrokerId, TopicId


def place_replicas(
    image: MetadataImage, partition_count: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """Replicas for each new partition, the preferred leader first; INVALID_REPLICATION_FACTOR if it cannot be."""
    if replication_factor > len(image.brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): only {len(image.brokers)} broker(s) are "
            f"registered. Ask for a replication factor of at most {len(image.brokers)}.",
        )
    active = sorted(broker.id for broker in image.brokers.values() if broker.active)
    if not active:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced. Try again later.")
    # Brokers that are away get replicas only where the others are too few, and never lead at first.
    away = sorted(image.brokers.keys() - set(active))
    near = min(replication_factor, len(active))
    start, distance = random.randrange(len(active)), random.randrange(len(active))
    placements = []
    for partition in range(partition_count):
        round_number = partition // len(active)
        replicas = _striped(active, start + partition, distance + round_number, near)
        if near < replication_factor:
            replicas += _striped(away, start + partition, distance + round_number, replication_factor - near)
        placements.append(replicas)
    return placements


def _striped(brokers: Sequence[int], first: int, distance: int, count: int) -> tuple[int, ...]:
    """`count` different brokers: the one at `first`, then those that follow it at the distance."""
    size = len(brokers)
    followers = ((first + 1 + (distance + follower) % (size - 1)) % size for follower in range(count - 1))
    return (brokers[first % size], *(brokers[index] for index in followers))


def check_assignment(image: MetadataImage, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Refuses, with INVALID_REPLICA_ASSIGNMENT, replicas that a person chose and that cannot be."""
    problem = None
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        problem = f"The manual partition assignment includes a broker more than once: {list(replicas)}."
    elif unknown := [broker for broker in replicas if broker not in image.brokers]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    elif replication_factor is not None and len(replicas) != replication_factor:
        problem = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def new_partition(
    image: MetadataImage, topic_id: TopicId, partition: int, replicas: tuple[int, ...]
) -> PartitionRecord:
    """The record of a new partition: every active replica is in sync with an empty log, the first of them leads."""
    isr = tuple(broker for broker in replicas if image.brokers[BrokerId(broker)].active)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers of the assignment for partition {partition}, {list(replicas)}, are fenced or shutting down.",
        )
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        directories=tuple(directory_of(image, broker) for broker in replicas),
    )
