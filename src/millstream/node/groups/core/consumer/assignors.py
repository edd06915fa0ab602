"""The assignors of consumer groups, by the names in `group.consumer.assignors`: `uniform` and `range`.

An assignor is a pure function from members and topics to a target for each member.

`range` splits each topic into consecutive ranges, one for each member that reads it. Topics with the same members and
the same number of partitions are split alike, so that one member has partition n of all of them, as joins need. If
racks are known, partitions are chosen near the members, as far as the sizes of the ranges allow.

`uniform`, the default, gives all members the same number of partitions, and lets them keep what they have. If all
members read the same topics, the numbers differ by at most one, and no partition moves without need. Otherwise a
partition moves while that brings the numbers of its old and new owner closer. If racks are known, a member loses
distant partitions first and gets near ones first.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from millstream.node.groups.core.consumer.group import Target


class MemberSpec(NamedTuple):
    id: str
    instance_id: str | None
    rack: str | None
    topics: frozenset[UUID]
    """The existing topics that it reads."""
    current: Target
    """Its partitions in the target that is replaced."""


class TopicSpec(NamedTuple):
    partition_count: int
    racks: Sequence[frozenset[str]]
    """For each partition the racks of its replicas; empty sets if they are not known."""


Assignor = Callable[[Sequence[MemberSpec], Mapping[UUID, TopicSpec]], dict[str, Target]]
"""Returns a target for every member. Each partition with a reader is in exactly one target."""


def racks_matter(members: Sequence[MemberSpec], topics: Mapping[UUID, TopicSpec]) -> bool:
    """Whether racks make a difference: they do not if every partition has replicas in the racks of all members."""
    racks = frozenset(member.rack for member in members if member.rack is not None)
    if not racks:
        return False
    return any(here and not racks <= here for topic in topics.values() for here in topic.racks)


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
    """Static members first: their order does not change when they return with another member id."""
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


Partition = tuple[UUID, int]


def assign_uniform(members: Sequence[MemberSpec], topics: Mapping[UUID, TopicSpec]) -> dict[str, Target]:
    if not members:
        return {}
    rack_aware = racks_matter(members, topics)
    if all(member.topics == members[0].topics for member in members):
        shares = _Alike(members, topics, rack_aware).assign()
    else:
        shares = _Different(members, topics, rack_aware).assign()
    return {member.id: _target(share) for member, share in zip(members, shares, strict=True)}


def _target(share: Iterable[Partition]) -> Target:
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, number in share:
        by_topic.setdefault(topic_id, []).append(number)
    return {topic_id: frozenset(by_topic[topic_id]) for topic_id in sorted(by_topic)}


class _Work:
    def __init__(self, members: Sequence[MemberSpec], topics: Mapping[UUID, TopicSpec], rack_aware: bool) -> None:
        self.members = members
        self.topics = topics
        self.rack_aware = rack_aware
        self.taken: set[Partition] = set()

    def is_near(self, member: MemberSpec, partition: Partition) -> bool:
        topic_id, number = partition
        return member.rack is not None and member.rack in self.topics[topic_id].racks[number]

    def kept(self, member: MemberSpec) -> list[Partition]:
        """The partitions that the member may keep; those to give up first are last."""
        kept = [
            (topic_id, number)
            for topic_id, numbers in member.current.items()
            if topic_id in member.topics
            for number in sorted(numbers)
            if number < self.topics[topic_id].partition_count and (topic_id, number) not in self.taken
        ]
        if self.rack_aware:
            kept.sort(key=lambda partition: not self.is_near(member, partition))
        return kept


class _Alike(_Work):
    """All members read the same topics."""

    def assign(self) -> list[list[Partition]]:
        wanted = self.members[0].topics
        every = [(topic_id, n) for topic_id in sorted(wanted) for n in range(self.topics[topic_id].partition_count)]
        self._least, self._more = divmod(len(every), len(self.members))
        self._shares: list[list[Partition]] = []
        for member in self.members:
            kept = self.kept(member)
            if len(kept) > self._least:
                del kept[self._least + (self._more > 0) :]
                self._more -= len(kept) > self._least
            self._shares.append(kept)
            self.taken.update(kept)
        free = [partition for partition in every if partition not in self.taken]
        if free and self.rack_aware:
            free = self._give_near(free)
        self._give(free)
        return self._shares

    def _has_room(self, index: int) -> bool:
        size = len(self._shares[index])
        return size < self._least or (size == self._least and self._more > 0)

    def _add(self, index: int, partition: Partition) -> None:
        share = self._shares[index]
        self._more -= len(share) == self._least
        share.append(partition)

    def _give_near(self, free: list[Partition]) -> list[Partition]:
        by_rack: dict[str, deque[int]] = {}
        for index, member in enumerate(self.members):
            if member.rack is not None and self._has_room(index):
                by_rack.setdefault(member.rack, deque()).append(index)
        left = []
        for topic_id, number in free:
            for rack in sorted(self.topics[topic_id].racks[number]):
                waiting = by_rack.get(rack)
                while waiting and not self._has_room(waiting[0]):
                    waiting.popleft()
                if waiting:
                    self._add(waiting[0], (topic_id, number))
                    waiting.rotate(-1)
                    break
            else:
                left.append((topic_id, number))
        return left

    def _give(self, free: list[Partition]) -> None:
        # In turns, so that the partitions of each topic spread; members with too few come first.
        waiting = deque(index for index, share in enumerate(self._shares) if len(share) < self._least)
        rest = iter(free)
        for partition in rest:
            if not waiting:
                rest = iter((partition, *rest))
                break
            index = waiting.popleft()
            self._add(index, partition)
            if len(self._shares[index]) < self._least:
                waiting.append(index)
        roomy = [index for index, share in enumerate(self._shares) if len(share) == self._least]
        for index, partition in zip(roomy, rest, strict=False):
            self._add(index, partition)


class _Different(_Work):
    """Members read different topics."""

    def assign(self) -> list[list[Partition]]:
        # Dictionaries serve as ordered sets: the result must not depend on hash order.
        self._shares: list[dict[UUID, dict[int, None]]] = [{} for _ in self.members]
        self._sizes = [0] * len(self.members)
        readers: dict[UUID, list[int]] = {}
        for index, member in enumerate(self.members):
            for topic_id in member.topics:
                readers.setdefault(topic_id, []).append(index)
            for partition in self.kept(member):
                self._add(index, partition)
                self.taken.add(partition)
        # Topics with few readers first: the others can still balance the numbers.
        order = sorted(readers, key=lambda topic_id: (len(readers[topic_id]), topic_id))
        for topic_id in order:
            self._fill(topic_id, readers[topic_id])
        while any(self._level(topic_id, readers[topic_id]) for topic_id in order):
            pass  # terminates: every move reduces the sum of the squared sizes
        return [[(t, n) for t, numbers in share.items() for n in numbers] for share in self._shares]

    def _add(self, index: int, partition: Partition) -> None:
        topic_id, number = partition
        self._shares[index].setdefault(topic_id, {})[number] = None
        self._sizes[index] += 1

    def _fill(self, topic_id: UUID, readers: list[int]) -> None:
        waiting = [(self._sizes[index], index) for index in readers]
        heapq.heapify(waiting)
        for number in range(self.topics[topic_id].partition_count):
            if (topic_id, number) in self.taken:
                continue
            size, index = waiting[0]
            if self.rack_aware:
                partition = (topic_id, number)
                near = [i for load, i in waiting if load == size and self.is_near(self.members[i], partition)]
                index = min(near, default=index)
            position = waiting.index((size, index)) if index != waiting[0][1] else 0
            self._add(index, (topic_id, number))
            if position == 0:
                heapq.heapreplace(waiting, (size + 1, index))
            else:
                waiting[position] = (size + 1, index)
                heapq.heapify(waiting)

    def _level(self, topic_id: UUID, readers: list[int]) -> bool:
        """Moves partitions of one topic from members with many to members with few; returns whether any moved."""
        givers = [(-self._sizes[index], index) for index in readers if self._shares[index].get(topic_id)]
        takers = [(self._sizes[index], index) for index in readers]
        heapq.heapify(givers)
        heapq.heapify(takers)
        moved = False
        while givers:
            size, giver = -givers[0][0], givers[0][1]
            least, taker = takers[0]
            if size != self._sizes[giver] or not self._shares[giver].get(topic_id):
                heapq.heappop(givers)  # its number changed in this round
                if self._shares[giver].get(topic_id):
                    heapq.heappush(givers, (-self._sizes[giver], giver))
                continue
            if least != self._sizes[taker]:
                heapq.heapreplace(takers, (self._sizes[taker], taker))
                continue
            if size - least < 2:
                break
            numbers = self._shares[giver][topic_id]
            number = self._to_give(giver, taker, topic_id, numbers)
            del numbers[number]
            self._sizes[giver] -= 1
            self._add(taker, (topic_id, number))
            moved = True
        return moved

    def _to_give(self, giver: int, taker: int, topic_id: UUID, numbers: Iterable[int]) -> int:
        had = self.members[giver].current.get(topic_id, frozenset())
        missed = self.members[taker].current.get(topic_id, frozenset())

        def cost(number: int) -> tuple[bool, bool, bool]:
            distant = self.rack_aware and not self.is_near(self.members[taker], (topic_id, number))
            return number not in missed, number in had, distant

        return min(numbers, key=cost)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
