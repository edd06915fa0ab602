"""Who reads what in a share group: every partition has a reader, every reader a partition, as evenly as it goes.

With fewer members than partitions each partition has one reader; with more, readers share partitions. What a member
has it keeps while that is even, since each move costs it a share session.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

TopicPartitionId = tuple[UUID, int]
Assignment = dict[str, set[TopicPartitionId]]


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    partition_counts: Mapping[UUID, int],
    current: Mapping[str, set[TopicPartitionId]],
) -> Assignment:
    """Members' topics and the sizes of these, and what each had so far; gives what each has from now on."""
    result: Assignment = {member: set() for member in sorted(subscriptions)}
    alike: dict[tuple[str, ...], list[UUID]] = {}
    for topic_id in sorted(partition_counts):
        readers = tuple(member for member in result if topic_id in subscriptions[member])
        if readers:
            alike.setdefault(readers, []).append(topic_id)
    # Topics with the same readers are dealt out together, or one reader of two topics might get all the first ones.
    for readers, topic_ids in alike.items():
        partitions = [(topic_id, index) for topic_id in topic_ids for index in range(partition_counts[topic_id])]
        if len(readers) <= len(partitions):
            _deal(partitions, readers, current, result)
        else:
            _share(partitions, readers, current, result)
    return result


def _deal(
    partitions: Sequence[TopicPartitionId],
    readers: Sequence[str],
    current: Mapping[str, set[TopicPartitionId]],
    result: Assignment,
) -> None:
    """One reader for each partition."""
    least, larger = divmod(len(partitions), len(readers))
    had = {partition: member for member in readers for partition in current.get(member, ())}
    dealt = dict.fromkeys(readers, 0)
    left = []
    for partition in partitions:
        member = had.get(partition)
        if member is not None and (dealt[member] < least or (dealt[member] == least and larger > 0)):
            larger -= dealt[member] == least
            dealt[member] += 1
            result[member].add(partition)
        else:
            left.append(partition)
    for partition in left:
        member = min(readers, key=lambda each: dealt[each])
        dealt[member] += 1
        result[member].add(partition)


def _share(
    partitions: Sequence[TopicPartitionId],
    readers: Sequence[str],
    current: Mapping[str, set[TopicPartitionId]],
    result: Assignment,
) -> None:
    """One partition for each reader."""
    least, larger = divmod(len(readers), len(partitions))
    shared = dict.fromkeys(partitions, 0)
    left = []
    for member in readers:
        kept = next((each for each in sorted(current.get(member, ())) if each in shared), None)
        if kept is not None and (shared[kept] < least or (shared[kept] == least and larger > 0)):
            larger -= shared[kept] == least
            shared[kept] += 1
            result[member].add(kept)
        else:
            left.append(member)
    for member in left:
        partition = min(partitions, key=lambda each: shared[each])
        shared[partition] += 1
        result[member].add(partition)
