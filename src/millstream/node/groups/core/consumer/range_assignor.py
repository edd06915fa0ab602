"""The `range` assignor: each topic cut into consecutive ranges, one for each reader.

Topics with the same readers and as many partitions are cut alike, so that partition n of all of them is with one
member, which joins need. If racks are known, the numbers are dealt out so that members read near by as far as the sizes
of the ranges allow it, still the same numbers for all such topics.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from millstream.node.groups.core.consumer.assignment import Target
from millstream.node.groups.core.consumer.assignor import MemberSpec, TopicSpec, racks_matter


def assign_range(members: Sequence[MemberSpec], topics: Mapping[UUID, TopicSpec]) -> dict[str, Target]:
    readers: dict[UUID, list[MemberSpec]] = defaultdict(list)
    for member in sorted(members, key=_order):
        for topic_id in member.topics:
            readers[topic_id].append(member)
    alike: dict[tuple[tuple[str, ...], int], list[UUID]] = defaultdict(list)
    for topic_id in sorted(readers):
        ids = tuple(member.id for member in readers[topic_id])
        alike[ids, topics[topic_id].partition_count].append(topic_id)
    target: dict[str, dict[UUID, frozenset[int]]] = {member.id: {} for member in members}
    for (_, count), topic_ids in alike.items():
        for member, numbers in _cut(readers[topic_ids[0]], count, [topics[topic_id] for topic_id in topic_ids]):
            for topic_id in topic_ids:
                target[member.id][topic_id] = frozenset(numbers)
    return dict(target)


def _order(member: MemberSpec) -> tuple[bool, str]:
    """Static members first: their place does not change when they come back under another member id."""
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.id


def _cut(members: list[MemberSpec], count: int, topics: list[TopicSpec]) -> list[tuple[MemberSpec, list[int]]]:
    least, more = divmod(count, len(members))
    sizes = [least + (i < more) for i in range(len(members))]
    free = list(range(count))
    chosen: list[list[int]] = [[] for _ in members]
    if racks_matter(members, dict(enumerate(topics))):  # type: ignore[arg-type]
        for numbers, member, size in zip(chosen, members, sizes, strict=True):
            near = [n for n in free if member.rack is not None and all(member.rack in t.racks[n] for t in topics)]
            numbers += near[:size]
            free = [n for n in free if n not in set(numbers)]
    position = 0
    for numbers, size in zip(chosen, sizes, strict=True):
        end = position + size - len(numbers)
        numbers += free[position:end]
        position = end
    return [(member, numbers) for member, numbers in zip(members, chosen, strict=True) if numbers]
