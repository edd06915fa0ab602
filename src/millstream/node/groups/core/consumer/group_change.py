"""A change of a group on its way to the log: it looks at the group as it will be, and gathers the records for that.

Every operation goes through the same three steps. `put`, `replace` and `remove` say how the members change; `refresh`
begins a new epoch if they or their topics did; `assign` makes the target for it. Then `step` leads one member on.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from millstream.formats.model.errors import KafkaError
from millstream.node.coordination.core.topic_catalog import TopicCatalog
from millstream.node.coordination.core.writes import Writes
from millstream.node.groups.core.consumer import consumer_records as records
from millstream.node.groups.core.consumer.assignment import Target
from millstream.node.groups.core.consumer.assignor import MemberSpec, TopicSpec
from millstream.node.groups.core.consumer.assignors import ASSIGNORS
from millstream.node.groups.core.consumer.consumer_group import ConsumerGroup, preferred_assignor
from millstream.node.groups.core.consumer.member import Member
from millstream.node.groups.core.consumer.reconciliation import reconcile
from millstream.node.groups.core.consumer.topic_pattern import TopicPatterns


class Surroundings(Protocol):
    """What a change needs to know beside the group."""

    patterns: TopicPatterns

    @property
    def topics(self) -> TopicCatalog: ...

    @property
    def default_assignor(self) -> str: ...

    def assignment_interval_ms(self, group_id: str) -> int: ...


class GroupChange:
    def __init__(self, group: ConsumerGroup, around: Surroundings, writes: Writes, now_ms: int) -> None:
        self.group = group
        self.writes = writes
        self.now_ms = now_ms
        self.members = dict(group.members)
        self.targets = dict(group.targets)
        self.patterns = dict(group.patterns)
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self._around = around
        self._has_changed = False

    # Members

    def put(self, member: Member) -> bool:
        """A new member, or one that says new things of itself; whether what it reads has changed."""
        before = self.members.get(member.id) or Member(member.id)
        if member == before and member.id in self.members:
            return False
        if member.pattern is not None and member.pattern != before.pattern:
            self._resolve(member.pattern)
        is_new = member.id not in self.members
        self.members[member.id] = member
        if is_new or member.metadata_value() != before.metadata_value():
            self.writes.add(records.member_record(self.group.group_id, member))
        self._drop_unused_patterns()
        reads_other = member.topics != before.topics or member.pattern != before.pattern
        self._has_changed |= reads_other or (
            not is_new and (member.assignor, member.rack) != (before.assignor, before.rack)
        )
        return reads_other

    def replace(self, old: Member, new: Member) -> None:
        """A static member comes back under another id: it takes everything over."""
        group_id = self.group.group_id
        target = self.targets.pop(old.id, {})
        del self.members[old.id]
        self.members[new.id] = new
        self.targets[new.id] = target
        self.writes.extend(records.forgotten_member(group_id, old.id))
        self.writes.add(
            records.member_record(group_id, new),
            records.target_record(group_id, new.id, target),
            records.assignment_record(group_id, new),
        )

    def remove(self, member: Member) -> None:
        del self.members[member.id]
        self.targets.pop(member.id, None)
        self.writes.extend(records.forgotten_member(self.group.group_id, member.id))
        self._drop_unused_patterns()
        self._has_changed = True

    # Regular expressions

    def _resolve(self, pattern: str) -> None:
        topics = self._around.topics
        matching = self._around.patterns.get(pattern).matches(topics)
        if self.patterns.get(pattern) != matching:
            self.patterns[pattern] = matching
            record = records.pattern_record(self.group.group_id, pattern, matching, topics.version, self.now_ms)
            self.writes.add(record)

    def _drop_unused_patterns(self) -> None:
        if not self.patterns:
            return
        used = {member.pattern for member in self.members.values()}
        for pattern in sorted(self.patterns.keys() - used):
            del self.patterns[pattern]
            self.writes.add(records.pattern_tombstone(self.group.group_id, pattern))

    # The epoch

    def refresh(self) -> None:
        """A new epoch if members read other topics now, or if the topics they read are not what they were."""
        group, version = self.group, self._around.topics.version
        is_new_group = self.epoch == 0
        if not self._has_changed and not is_new_group and group.seen_topics == version:
            return
        for pattern in tuple(self.patterns):
            self._resolve(pattern)
        metadata_hash = self._hash()
        if self._has_changed or is_new_group or metadata_hash != group.metadata_hash:
            self.epoch += 1
            self.writes.add(records.epoch_record(group.group_id, self.epoch, metadata_hash))
            if group.has_old_partition_metadata:
                self.writes.add(records.partition_metadata_tombstone(group.group_id))

        def seen(error: KafkaError | None) -> None:
            if error is None:
                group.seen_topics = version

        self.writes.add(then=seen)

    def _hash(self) -> int:
        """Tells one state of the topics that the group reads from another; 0 where there are none, as in Kafka."""
        names = set().union(*self.patterns.values(), *(member.topics for member in self.members.values()))
        digest = hashlib.blake2b(digest_size=8)
        is_empty = True
        for name in sorted(names):
            topic = self._around.topics.get(name)
            if topic is not None:
                is_empty = False
                racks = [sorted(racks) for racks in self._around.topics.racks(name)]
                digest.update(repr((name, topic.id.bytes, topic.partition_count, racks)).encode())
        return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)

    # The target

    def assign(self, *, at_once: bool = False) -> None:
        """Makes the target of a new epoch. While many come and go, not more often than the setting says."""
        if self.epoch <= self.assignment_epoch:
            return
        earliest_ms = self.group.assigned_at_ms + self._around.assignment_interval_ms(self.group.group_id)
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
        assignor = preferred_assignor(self.members.values()) or self._around.default_assignor
        group_id = self.group.group_id
        for member_id, target in ASSIGNORS[assignor](specs, topics).items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self.writes.add(records.target_record(group_id, member_id, target))
        self.assignment_epoch = self.epoch
        self.writes.add(records.target_epoch_record(group_id, self.epoch, self.now_ms))

    def _ids_of(self, member: Member, topics: dict[UUID, TopicSpec], ids: dict[str, UUID]) -> list[UUID]:
        found = []
        for name in self.topic_names(member):
            topic_id = ids.get(name)
            if topic_id is None:
                topic = self._around.topics.get(name)
                if topic is None:
                    continue
                topic_id = ids[name] = topic.id
                racks = self._around.topics.racks(name)
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
        """Leads the member on towards its target; returns it as it is afterwards."""
        if member.is_reconciled_to(self.assignment_epoch) and not subscription_changed:
            return member
        subscribed = {
            topic.id for name in self.topic_names(member) if (topic := self._around.topics.get(name)) is not None
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
            self.writes.add(records.assignment_record(self.group.group_id, after))
        return after

    def _owner_of(self, topic_id: UUID, number: int) -> str | None:
        owner = self.group.owner_of(topic_id, number)
        # Who was removed or replaced in this very change owns nothing any more, or owns it under its new name.
        return owner if owner is None or owner in self.members else None


def away(member: Member, epoch: int) -> Member:
    """A static member that said it comes back: what it was about to give up, it has given up by leaving."""
    return replace(member, epoch=epoch, previous_epoch=member.epoch, revoking={})
