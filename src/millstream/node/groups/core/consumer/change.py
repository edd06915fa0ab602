"""A change of a consumer group: computes the group after an operation, and collects the records for it.

Every operation uses the same steps. `put`, `replace` and `remove` change members. `refresh` starts a new epoch if
members or their topics changed. `assign` computes the target. `step` reconciles one member.

`reconcile` moves one member towards its target. Its order ensures that no two members read one partition: a member
stays in its epoch until it has confirmed the revocation of its partitions; then it enters the target's epoch and gets
free partitions. It gets the others later in the same epoch, when their owners have revoked them.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.expression import TopicPatterns
from millstream.node.coordination.core.state_machine import TopicCatalog, Writes
from millstream.node.groups.core.consumer.assignors import ASSIGNORS, MemberSpec, TopicSpec
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
    pass


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


class GroupContext(Protocol):
    """What a change needs beside the group."""

    patterns: TopicPatterns

    @property
    def topics(self) -> TopicCatalog: ...

    @property
    def default_assignor(self) -> str: ...

    def assignment_interval_ms(self, group_id: str) -> int: ...


class GroupChange:
    def __init__(self, group: ConsumerGroup, context: GroupContext, writes: Writes, now_ms: int) -> None:
        self.group = group
        self.writes = writes
        self.now_ms = now_ms
        self.members = dict(group.members)
        self.targets = dict(group.targets)
        self.patterns = dict(group.patterns)
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self._context = context
        self._has_changed = False

    # Members

    def put(self, member: Member) -> bool:
        """Adds or updates a member; returns whether its subscription changed."""
        before = self.members.get(member.id) or Member(member.id)
        if member == before and member.id in self.members:
            return False
        if member.pattern is not None and member.pattern != before.pattern:
            self._resolve(member.pattern)
        is_new = member.id not in self.members
        self.members[member.id] = member
        if is_new or member.metadata_value() != before.metadata_value():
            self.writes.add(member_record(self.group.group_id, member))
        self._drop_unused_patterns()
        reads_other = member.topics != before.topics or member.pattern != before.pattern
        self._has_changed |= reads_other or (
            not is_new and (member.assignor, member.rack) != (before.assignor, before.rack)
        )
        return reads_other

    def replace(self, old: Member, new: Member) -> None:
        """A static member returns with another id: the new id takes over its state."""
        group_id = self.group.group_id
        target = self.targets.pop(old.id, {})
        del self.members[old.id]
        self.members[new.id] = new
        self.targets[new.id] = target
        self.writes.extend(forgotten_member(group_id, old.id))
        self.writes.add(
            member_record(group_id, new),
            target_record(group_id, new.id, target),
            assignment_record(group_id, new),
        )

    def remove(self, member: Member) -> None:
        del self.members[member.id]
        self.targets.pop(member.id, None)
        self.writes.extend(forgotten_member(self.group.group_id, member.id))
        self._drop_unused_patterns()
        self._has_changed = True

    # Regular expressions

    def _resolve(self, pattern: str) -> None:
        topics = self._context.topics
        matching = self._context.patterns.get(pattern).matches(topics)
        if self.patterns.get(pattern) != matching:
            self.patterns[pattern] = matching
            record = pattern_record(self.group.group_id, pattern, matching, topics.version, self.now_ms)
            self.writes.add(record)

    def _drop_unused_patterns(self) -> None:
        if not self.patterns:
            return
        used = {member.pattern for member in self.members.values()}
        for pattern in sorted(self.patterns.keys() - used):
            del self.patterns[pattern]
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
                self.targets[member_id] = target
                self.writes.add(target_record(group_id, member_id, target))
        self.assignment_epoch = self.epoch
        self.writes.add(target_epoch_record(group_id, self.epoch, self.now_ms))

    def _ids_of(self, member: Member, topics: dict[UUID, TopicSpec], ids: dict[str, UUID]) -> list[UUID]:
        found = []
        for name in self.topic_names(member):
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
            self.members[member.id] = after
            self.writes.add(assignment_record(self.group.group_id, after))
        return after

    def _owner_of(self, topic_id: UUID, number: int) -> str | None:
        owner = self.group.owner_of(topic_id, number)
        # A member that this change removed or replaced owns nothing.
        return owner if owner is None or owner in self.members else None


def away(member: Member, epoch: int) -> Member:
    """A static member that left temporarily: it has no partitions to revoke any more."""
    return replace(member, epoch=epoch, previous_epoch=member.epoch, revoking={})
