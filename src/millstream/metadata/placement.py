"""Which brokers hold the replicas of new partitions.

Leaders go round the brokers from a random start; followers follow at a distance that grows each round, so that the
partitions of a failed broker find leaders on all others. Racks are not looked at yet.
"""

from collections.abc import Sequence
from random import Random

from millstream.metadata.image import MetadataImage
from millstream.metadata.records import UNASSIGNED_DIRECTORY, PartitionRecord
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import BrokerId, TopicId


def place_replicas(
    image: MetadataImage, partition_count: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """Replicas for each new partition, the preferred leader first; INVALID_REPLICATION_FACTOR if it cannot be."""
    brokers = sorted(image.brokers)
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): only {len(brokers)} broker(s) are "
            f"registered. Ask for a replication factor of at most {len(brokers)}.",
        )
    if not any(broker.active for broker in image.brokers.values()):
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced. Try again later.")
    # Brokers that cannot lead now come last in each list of replicas, but still get their share.
    start, shift = random.randrange(len(brokers)), random.randrange(len(brokers))
    placements = []
    for partition in range(partition_count):
        leader = (start + partition) % len(brokers)
        distance = shift + partition // len(brokers)
        chosen = [brokers[leader]]
        for follower in range(replication_factor - 1):
            chosen.append(brokers[(leader + 1 + (distance + follower) % (len(brokers) - 1)) % len(brokers)])
        if not image.brokers[chosen[0]].active:
            chosen.sort(key=lambda broker_id: not image.brokers[broker_id].active)
        placements.append(tuple(int(broker_id) for broker_id in chosen))
    return placements


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
    directories = []
    for broker in replicas:
        log_dirs = image.brokers[BrokerId(broker)].log_dirs
        directories.append(log_dirs[0] if len(log_dirs) == 1 else UNASSIGNED_DIRECTORY)
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        directories=tuple(directories),
    )
