"""A group that changes its kind while it runs: classic to consumer when the first member of the new protocol joins, and
back when the last one leaves. Members, their partitions, and the offsets stay."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from millstream.config.table import groups as classic_settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.node.coordination.core.topic_catalog import TopicCatalog
from millstream.node.coordination.core.writes import Writes
from millstream.node.groups.core.classic.classic_group import ClassicGroup
from millstream.node.groups.core.classic.group_state import GroupState
from millstream.node.groups.core.classic.member import Client
from millstream.node.groups.core.classic.member import Member as ClassicMember
from millstream.node.groups.core.classic.member import Protocol as ClassicProtocol
from millstream.node.groups.core.consumer import consumer_records as records
from millstream.node.groups.core.consumer.consumer_group import ConsumerGroup
from millstream.node.groups.core.consumer.consumer_protocol import (
    PROTOCOL_TYPE,
    assignment_bytes,
    by_topic_id,
    read_assignment,
    read_subscription,
    subscription_version,
)
from millstream.node.groups.core.consumer.consumer_settings import ConsumerSettings
from millstream.node.groups.core.consumer.member import ClassicSide, Member, Protocol

if TYPE_CHECKING:
    from millstream.node.groups.core.group_shard import GroupShard

_COMMON_PROTOCOLS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Their members do without what the leader told them beside the partitions; librdkafka's leaders do tell something.
What an assignor of one's own tells (that of Kafka Streams, say) would be lost, and so such a group cannot go over."""
_GENERATIONS_AHEAD = 100
"""More than a group begins before it writes one down."""


class Migration:
    def __init__(self, shard: "GroupShard", settings: ConsumerSettings) -> None:
        self._shard = shard
        self._settings = settings

    # Classic to consumer

    def upgrade(self, old: ClassicGroup, writes: Writes) -> ConsumerGroup:
        """The group as a consumer group; its records go before those of the member that caused this."""
        if old.is_empty:
            writes.extend(old.deletion_records())
            return ConsumerGroup(old.group_id)
        self._check_upgrade(old)
        new = ConsumerGroup(old.group_id)
        new.epoch = new.assignment_epoch = old.generation
        try:
            for classic in old.members.values():
                member = _from_classic(classic, old, self._shard.topics)
                new.put(member)
                new.targets[member.id] = {topic_id: frozenset(owned) for topic_id, owned in member.assigned.items()}
        except MalformedMessage as error:
            raise _refused(old.group_id, f"the embedded consumer protocol is malformed ({error})") from None
        # Whoever waits in the old group is told to come again when its tombstone is written, and finds the new one.
        writes.extend(old.deletion_records())
        group_id = new.group_id
        writes.extend(records.member_record(group_id, member) for member in new.members.values())
        writes.add(records.epoch_record(group_id, new.epoch, new.metadata_hash))
        writes.extend(records.target_record(group_id, member_id, target) for member_id, target in new.targets.items())
        writes.add(records.target_epoch_record(group_id, new.assignment_epoch, new.assigned_at_ms))
        writes.extend(records.assignment_record(group_id, member) for member in new.members.values())
        return new

    def _check_upgrade(self, old: ClassicGroup) -> None:
        if not self._settings.allows_upgrade:
            raise _refused(old.group_id, "online upgrade is disabled")
        if old.protocol_type != PROTOCOL_TYPE:
            raise _refused(old.group_id, "the group does not use the consumer embedded protocol")
        if len(old.members) > self._settings.max_size:
            raise _refused(old.group_id, "the group size exceeds the consumer group maximum size")

    # Consumer to classic

    def can_downgrade(self, members: Collection[Member]) -> bool:
        """Whether a group of just these members is better off as a classic one."""
        return (
            bool(members)
            and all(member.classic is not None for member in members)
            and self._settings.allows_downgrade
            and len(members) <= self._shard.config()[classic_settings.GROUP_MAX_SIZE]
        )

    def downgrade(self, old: ConsumerGroup, members: Collection[Member], writes: Writes, now_ms: int) -> None:
        """Writes the group as a classic one with these members, and has them join it as soon as that is written."""
        new = ClassicGroup(old.group_id, now_ms)
        for member in members:
            new.add(_to_classic(member, self._shard.topics), None, PROTOCOL_TYPE)
        new.protocol = new.elect_protocol()
        new.state = GroupState.STABLE
        new.learn_topics()
        assignments = {member.id: member.assignment for member in new.members.values()}
        # A member that is in this generation is told to join again; one that is not loses its partitions first.
        generation = max(old.assignment_epoch, *(member.epoch for member in members))
        # Should we die before they have joined, nothing else would say that they must: so the record is of a generation
        # that nobody is in.
        new.generation = generation + _GENERATIONS_AHEAD
        record = new.metadata_record(assignments)
        new.generation = generation

        def written(error: KafkaError | None) -> None:
            if error is None:
                self._shard.groups[new.group_id] = new
                self._shard.classic.adopt(new, now_ms)

        writes.extend(old.deletion_records())
        writes.add(record, then=written)


def _refused(group_id: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
    )


def _from_classic(classic: ClassicMember, group: ClassicGroup, topics: TopicCatalog) -> Member:
    subscription = read_subscription(classic.metadata(group.protocol) or classic.protocols[0].metadata)
    assignment = read_assignment(classic.assignment)
    if assignment.user_data and group.protocol not in _COMMON_PROTOCOLS:
        raise _refused(group.group_id, "an unsupported custom assignor is in use")
    owned = by_topic_id(assignment.assigned_partitions, topics)
    return Member(
        classic.id,
        classic.instance_id,
        subscription.rack_id,
        classic.client.client_id,
        classic.client.host,
        frozenset(subscription.topics),
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        classic=ClassicSide(classic.session_timeout_ms, tuple(Protocol(*each) for each in classic.protocols)),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={topic_id: dict.fromkeys(sorted(numbers), group.generation) for topic_id, numbers in owned.items()},
    )


def _to_classic(member: Member, topics: TopicCatalog) -> ClassicMember:
    assert member.classic is not None
    protocols = tuple(ClassicProtocol(*each) for each in member.classic.protocols)
    return ClassicMember(
        member.id,
        member.instance_id,
        Client(member.client_id, member.client_host),
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        protocols,
        assignment_bytes(member.assigned, topics, subscription_version(protocols[0].metadata)),
    )
