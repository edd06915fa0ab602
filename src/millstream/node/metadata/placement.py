"""Which brokers hold the replicas of new partitions.

Leaders go round the brokers from a random start; followers follow at a distance that grows each round, so that the
partitions of a failed broker find leaders on all others. Where brokers are in racks, a round goes from rack to rack,
and the replicas of a partition are on as many racks as there are; among the brokers that will do, the one with the
fewest new replicas gets the next.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from random import Random

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicId
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.partition_change import directory_of
from millstream.node.metadata.records import PartitionRecord


def place_replicas(
    image: MetadataImage, partition_count: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """Replicas for each new partition, the preferred leader first; INVALID_REPLICATION_FACTOR if it cannot be."""
    brokers = [broker for broker in image.brokers.values() if not image.cordoned(broker.id)]
    if replication_factor > len(brokers):
        cordoned = "" if len(brokers) == len(image.brokers) else " and may get new replicas (cordoned.log.dirs)"
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): only {len(brokers)} broker(s) are "
            f"registered{cordoned}. Ask for a replication factor of at most {len(brokers)}.",
        )
    active = sorted(broker.id for broker in brokers if broker.active)
    if not active:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced. Try again later.")
    # Brokers that are away get replicas only where the others are too few, and never lead at first.
    away = sorted({broker.id for broker in brokers} - set(active))
    near = min(replication_factor, len(active))
    start, distance = random.randrange(len(active)), random.randrange(len(active))
    racks: dict[int, str | None] = {broker.id: broker.rack for broker in brokers}
    if len(set(racks.values())) > 1:
        return _placed_by_rack(racks, active, away, partition_count, replication_factor, start, distance)
    placements = []
    for partition in range(partition_count):
        round_number = partition // len(active)
        replicas = _striped(active, start + partition, distance + round_number, near)
        if near < replication_factor:
            replicas += _striped(away, start + partition, distance + round_number, replication_factor - near)
        placements.append(replicas)
    return placements


def interleaved(racks: Mapping[int, str | None], brokers: Iterable[int]) -> list[int]:
    """The brokers so that each follows one of another rack, as far as the racks go."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(brokers):
        by_rack.setdefault(racks[broker], []).append(broker)
    largest_first = sorted(by_rack.values(), key=lambda members: (-len(members), members))
    return [broker for row in zip_longest(*largest_first) for broker in row if broker is not None]


def _placed_by_rack(
    racks: Mapping[int, str | None],
    active: Sequence[int],
    away: Sequence[int],
    partition_count: int,
    replication_factor: int,
    start: int,
    distance: int,
) -> list[tuple[int, ...]]:
    leaders = interleaved(racks, active)
    others = interleaved(racks, away)
    held: Counter[int] = Counter()
    placements = []
    for partition in range(partition_count):
        first = (start + partition) % len(leaders)
        replicas = [leaders[first]]
        shift = first + 1 + distance + partition // len(leaders)
        near, far = _rotated(leaders, shift), _rotated(others, shift)
        used = {racks[replicas[0]]: 1}
        while len(replicas) < replication_factor:
            # Active brokers are taken before others even if that costs a rack: a replica that is away protects nothing.
            candidates = near if len(replicas) < len(leaders) else far
            free = [broker for broker in candidates if broker not in replicas]
            chosen = min(free, key=lambda broker: (used.get(racks[broker], 0), held[broker]))
            replicas.append(chosen)
            used[racks[chosen]] = used.get(racks[chosen], 0) + 1
        held.update(replicas)
        placements.append(tuple(replicas))
    return placements


def _rotated(brokers: list[int], by: int) -> list[int]:
    cut = by % len(brokers) if brokers else 0
    return brokers[cut:] + brokers[:cut]


def _striped(brokers: Sequence[int], first: int, distance: int, count: int) -> tuple[int, ...]:
    """`count` different brokers: the one at `first`, then those that follow it at the distance."""
    size = len(brokers)
    followers = ((first + 1 + (distance + follower) % (size - 1)) % size for follower in range(count - 1))
    return (brokers[first % size], *(brokers[index] for index in followers))


def check_assignment(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None, present: Collection[int] = ()
) -> None:
    """Refuses, with INVALID_REPLICA_ASSIGNMENT, replicas that a person chose and that cannot be.

    Those at `present` are there already.
    """
    problem = None
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        problem = f"The manual partition assignment includes a broker more than once: {list(replicas)}."
    elif unknown := [broker for broker in replicas if broker not in image.brokers]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    elif cordoned := [broker for broker in replicas if broker not in present and image.cordoned(broker)]:
        problem = f"Broker {cordoned[0]} gets no new replicas: it is cordoned (cordoned.log.dirs)."
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
