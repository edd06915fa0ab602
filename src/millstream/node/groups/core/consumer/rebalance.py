"""Rebalance of a consumer group: changes of the group, the assignors, and the reconciliation of members.

`GroupChange` computes the group after an operation, and collects the records for it. `put`, `replace` and `remove`
change members. `refresh` starts a new epoch if members or their topics changed. `assign` computes the target. `step`
reconciles one member.

`reconcile` moves one member towards its target. No two members read one partition: a member stays in its epoch until it
has confirmed the revocation of its partitions; then it enters the target's epoch and gets free partitions. It gets the
others later in the same epoch, when their owners have revoked them.

An assignor is a pure function from members and topics to a target for each member. `range` splits each topic into
consecutive ranges, one for each member that reads it. Topics with the same members and the same number of partitions
are split alike, so that one member has partition n of all of them, as joins need. `uniform`, the default, gives all
members the same number of partitions, and lets them keep what they have. If all members read the same topics, the
numbers differ by at most one, and no partition moves without need. Otherwise a partition moves while that brings the
numbers of its old and new owner closer. If racks are known, both prefer partitions near the members.
"""

import hashlib
import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import Writes
from millstream.node.groups.core.consumer.group import (
    NOTHING,
    ConsumerGroup,
    Member,
    MemberState,
    Owned,
    Target,
    assignment_record,
    epoch_record,
    forgotten_member,
    member_record,
    partition_metadata_tombstone,
    pattern_record,
    pattern_tombstone,
    preferred_assignor,
    target_epoch_record,
    target_record,
)

if TYPE_CHECKING:
    from millstream.node.groups.core.consumer.groups import ConsumerGroups


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
_LOOKED_AT = 32
"""Of a member's partitions of one topic, when one of them moves: a topic may have thousands."""


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

    def _to_give(self, giver: int, taker: int, topic_id: UUID, numbers: dict[int, None]) -> int:
        """The best of the last partitions that the giver got; those that it had before were its first."""
        had = self.members[giver].current.get(topic_id, frozenset())
        missed = self.members[taker].current.get(topic_id, frozenset())

        def cost(number: int) -> tuple[bool, bool, bool]:
            distant = self.rack_aware and not self.is_near(self.members[taker], (topic_id, number))
            return number not in missed, number in had, distant

        return min(islice(reversed(numbers), _LOOKED_AT), key=cost)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


OwnerOf = Callable[[UUID, int], str | None]
"""The member that owns a partition, or has not confirmed its revocation."""


def reconcile(
    member: Member,
    target_epoch: int,
    target: Target,
    subscribed: Collection[UUID],
    owned: Mapping[UUID, Collection[int]] | None,
    owner_of: OwnerOf,
    *,
    subscription_changed: bool = False,
) -> Member:
    """The member after the step; the same member if there is no step.

    `owned` has the partitions that the member reports, None if it reports none. Topics outside `subscribed` are revoked
    even before the next target.
    """
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in an unknown state. It must abandon all its partitions and rejoin.",
            )
    elif member.state is MemberState.STABLE:
        if member.epoch == target_epoch:
            return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    elif member.state is MemberState.UNREVOKED and _still_has(owned, member.revoking):
        return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    return _next(member, target_epoch, target, subscribed, owned, owner_of)


def _next(
    member: Member,
    target_epoch: int,
    target: Target,
    subscribed: Collection[UUID],
    owned: Mapping[UUID, Collection[int]] | None,
    owner_of: OwnerOf,
) -> Member:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, epochs in member.assigned.items():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        for number, epoch in epochs.items():
            (kept if number in wanted else revoking).setdefault(topic_id, {})[number] = epoch
    if revoking and _still_has(owned, revoking):
        return replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    is_waiting = False
    for topic_id, numbers in target.items():
        if topic_id not in subscribed:
            continue
        for number in sorted(numbers - kept.get(topic_id, {}).keys()):
            # Partitions that this member has just revoked are free for it, too.
            if owner_of(topic_id, number) in (None, member.id):
                kept.setdefault(topic_id, {})[number] = target_epoch
            else:
                is_waiting = True
    state = MemberState.UNRELEASED if is_waiting else MemberState.STABLE
    return with_epoch(replace(member, state=state, assigned=kept, revoking=NOTHING), target_epoch)


def _drop_unsubscribed(
    member: Member, subscribed: Collection[UUID], owned: Mapping[UUID, Collection[int]] | None
) -> Member:
    dropped = {topic_id: dict(numbers) for topic_id, numbers in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    assigned = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id in subscribed}
    revoking = {topic_id: dict(numbers) for topic_id, numbers in member.revoking.items()}
    for topic_id, numbers in dropped.items():
        revoking.setdefault(topic_id, {}).update(numbers)
    if _still_has(owned, revoking):
        return replace(member, state=MemberState.UNREVOKED, assigned=assigned, revoking=revoking)
    return replace(member, assigned=assigned)


def _still_has(owned: Mapping[UUID, Collection[int]] | None, revoking: Owned) -> bool:
    if owned is None:
        return True  # unknown, so it may still have them
    return any(number in revoking.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers)


def with_epoch(member: Member, epoch: int) -> Member:
    if epoch == member.epoch:
        return member
    return replace(member, epoch=epoch, previous_epoch=member.epoch)


class GroupChange:
    def __init__(self, group: ConsumerGroup, context: "ConsumerGroups", writes: Writes, now_ms: int) -> None:
        self.group = group
        self.writes = writes
        self.now_ms = now_ms
        # Most heartbeats change nothing: what belongs to the group is copied when it is first changed.
        self.members: Mapping[str, Member] = group.members
        self.targets: Mapping[str, Target] = group.targets
        self.patterns: Mapping[str, frozenset[str]] = group.patterns
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self._members: dict[str, Member] | None = None
        self._targets: dict[str, Target] | None = None
        self._patterns: dict[str, frozenset[str]] | None = None
        self._context = context
        self._has_changed = False

    # Members

    def put(self, member: Member) -> bool:
        """Adds or updates a member; returns whether its subscription changed."""
        known = self.members.get(member.id)
        if member is known or member == known:
            return False
        before = known or Member(member.id)
        if member.pattern is not None and member.pattern != before.pattern:
            self._resolve(member.pattern)
        is_new = known is None
        self._own_members()[member.id] = member
        if is_new or member.metadata_value() != before.metadata_value():
            self.writes.add(member_record(self.group.group_id, member))
        self._drop_unused_patterns()
        reads_other = member.topics != before.topics or member.pattern != before.pattern
        self._has_changed |= reads_other or (
            not is_new and (member.assignor, member.rack) != (before.assignor, before.rack)
        )
        return reads_other

    def _own_members(self) -> dict[str, Member]:
        if self._members is None:
            self.members = self._members = dict(self.members)
        return self._members

    def _own_targets(self) -> dict[str, Target]:
        if self._targets is None:
            self.targets = self._targets = dict(self.targets)
        return self._targets

    def _own_patterns(self) -> dict[str, frozenset[str]]:
        if self._patterns is None:
            self.patterns = self._patterns = dict(self.patterns)
        return self._patterns

    def replace(self, old: Member, new: Member) -> None:
        """A static member returns with another id: the new id takes over its state."""
        group_id = self.group.group_id
        members, targets = self._own_members(), self._own_targets()
        target = targets.pop(old.id, {})
        del members[old.id]
        members[new.id] = new
        targets[new.id] = target
        self.writes.extend(forgotten_member(group_id, old.id))
        self.writes.add(
            member_record(group_id, new),
            target_record(group_id, new.id, target),
            assignment_record(group_id, new),
        )

    def remove(self, member: Member) -> None:
        del self._own_members()[member.id]
        self._own_targets().pop(member.id, None)
        self.writes.extend(forgotten_member(self.group.group_id, member.id))
        self._drop_unused_patterns()
        self._has_changed = True

    # Regular expressions

    def _resolve(self, pattern: str) -> None:
        topics = self._context.topics
        matching = self._context.patterns.get(pattern).matches(topics)
        if self._context.checks_rights:
            may_describe = self._context.may_describe
            if may_describe is None:
                return  # no member sent a request: the next heartbeat of a member resolves it
            matching = frozenset(name for name in matching if may_describe(name))
        if self.patterns.get(pattern) != matching:
            self._own_patterns()[pattern] = matching
            record = pattern_record(self.group.group_id, pattern, matching, topics.version, self.now_ms)
            self.writes.add(record)

    def _drop_unused_patterns(self) -> None:
        if not self.patterns:
            return
        used = {member.pattern for member in self.members.values()}
        for pattern in sorted(self.patterns.keys() - used):
            del self._own_patterns()[pattern]
            self.writes.add(pattern_tombstone(self.group.group_id, pattern))

    # The epoch

    def refresh(self) -> None:
        """Starts a new epoch if subscriptions changed, or if the topics that members read changed."""
        group, version = self.group, self._context.topics.version
        is_new_group = self.epoch == 0
        if not self._has_changed and not is_new_group and group.seen_topics == version:
            return
        for pattern in tuple(self.patterns):
            self._resolve(pattern)
        metadata_hash = self._hash()
        if self._has_changed or is_new_group or metadata_hash != group.metadata_hash:
            self.epoch += 1
            self.writes.add(epoch_record(group.group_id, self.epoch, metadata_hash))
            if group.has_old_partition_metadata:
                self.writes.add(partition_metadata_tombstone(group.group_id))

        def seen(error: KafkaError | None) -> None:
            if error is None:
                group.seen_topics = version

        self.writes.add(then=seen)

    def _hash(self) -> int:
        """A hash of the topics that the group reads; 0 if there are none, as in Kafka."""
        names = set().union(*self.patterns.values(), *(member.topics for member in self.members.values()))
        digest = hashlib.blake2b(digest_size=8)
        is_empty = True
        for name in sorted(names):
            topic = self._context.topics.get(name)
            if topic is not None:
                is_empty = False
                racks = [sorted(racks) for racks in self._context.topics.racks(name)]
                digest.update(repr((name, topic.id.bytes, topic.partition_count, racks)).encode())
        return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)

    # The target

    def assign(self, *, at_once: bool = False) -> None:
        """Computes the target of a new epoch. While members come and go, this is limited by the assignment interval."""
        if self.epoch <= self.assignment_epoch:
            return
        earliest_ms = self.group.assigned_at_ms + self._context.assignment_interval_ms(self.group.group_id)
        if not at_once and self.now_ms < earliest_ms and self.assignment_epoch > 0 and len(self.members) > 1:
            return
        topics: dict[UUID, TopicSpec] = {}
        ids: dict[str, UUID] = {}
        specs = []
        for member in self.members.values():
            subscribed = frozenset(self._ids_of(member, topics, ids))
            specs.append(
                MemberSpec(member.id, member.instance_id, member.rack, subscribed, self.targets.get(member.id, {}))
            )
        assignor = preferred_assignor(self.members.values()) or self._context.default_assignor
        group_id = self.group.group_id
        for member_id, target in ASSIGNORS[assignor](specs, topics).items():
            if self.targets.get(member_id) != target:
                self._own_targets()[member_id] = target
                self.writes.add(target_record(group_id, member_id, target))
        self.assignment_epoch = self.epoch
        self.writes.add(target_epoch_record(group_id, self.epoch, self.now_ms))

    def _ids_of(self, member: Member, topics: dict[UUID, TopicSpec], ids: dict[str, UUID]) -> list[UUID]:
        found = []
        for name in sorted(self.topic_names(member)):
            topic_id = ids.get(name)
            if topic_id is None:
                topic = self._context.topics.get(name)
                if topic is None:
                    continue
                topic_id = ids[name] = topic.id
                racks = self._context.topics.racks(name)
                topics[topic_id] = TopicSpec(topic.partition_count, racks)
            found.append(topic_id)
        return found

    def topic_names(self, member: Member) -> frozenset[str]:
        if member.pattern is None:
            return member.topics
        return member.topics | self.patterns.get(member.pattern, frozenset())

    # One member

    def step(
        self, member: Member, owned: Mapping[UUID, Collection[int]] | None, *, subscription_changed: bool
    ) -> Member:
        """Moves the member towards its target; returns the member after that."""
        if member.is_reconciled_to(self.assignment_epoch) and not subscription_changed:
            return member
        subscribed = {
            topic.id for name in self.topic_names(member) if (topic := self._context.topics.get(name)) is not None
        }
        target: Target = self.targets.get(member.id, {})
        after = reconcile(
            member,
            self.assignment_epoch,
            target,
            subscribed,
            owned,
            self._owner_of,
            subscription_changed=subscription_changed,
        )
        if after != member:
            self._own_members()[member.id] = after
            self.writes.add(assignment_record(self.group.group_id, after))
        return after

    def _owner_of(self, topic_id: UUID, number: int) -> str | None:
        owner = self.group.owner_of(topic_id, number)
        # A member that this change removed or replaced owns nothing.
        return owner if owner is None or owner in self.members else None
