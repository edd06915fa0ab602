"""One change of a streams group: members, topology, epoch, target, and the next step of a member towards its target.

`reconcile` is the step: it needs the member, its target, the tasks that it reports, and the holders of tasks.
`GroupChange` collects the records of one operation; the group itself changes when they are replayed.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.state_machine import TopicCatalog, Writes
from millstream.node.groups.core.streams.assignor import MemberSpec, SubtopologySpec, assign
from millstream.node.groups.core.streams.group import (
    NO_TOPOLOGY,
    Member,
    MemberState,
    StreamsGroup,
    assignment_record,
    epoch_record,
    forgotten_member,
    member_record,
    standby_count,
    target_epoch_record,
    target_record,
    topology_record,
)
from millstream.node.groups.core.streams.tasks import NO_TASKS, NOTHING_OWNED, OwnedTasks, Task, Tasks, TaskSet
from millstream.node.groups.core.streams.topology import (
    ConfiguredTopology,
    Status,
    StatusCode,
    Topology,
    configure,
    read_topology,
)

if TYPE_CHECKING:
    from millstream.node.groups.core.streams.groups import StreamsGroups


class _Difference(NamedTuple):
    """What a member keeps, gives up and can get of one role."""

    kept: dict[str, frozenset[int]]
    lost: dict[str, frozenset[int]]
    new: dict[str, frozenset[int]]
    waits: bool
    """Whether it must wait for a task."""


def _difference(current: Mapping[str, Iterable[int]], target: TaskSet, is_held: Callable[[Task], bool]) -> _Difference:
    kept: dict[str, frozenset[int]] = {}
    lost: dict[str, frozenset[int]] = {}
    new: dict[str, frozenset[int]] = {}
    waits = False
    for subtopology in sorted({*current, *target}):
        has, wanted = frozenset(current.get(subtopology, ())), target.get(subtopology, frozenset())
        free = frozenset(number for number in wanted - has if not is_held((subtopology, number)))
        waits |= len(free) < len(wanted - has)
        for found, numbers in ((kept, has & wanted), (lost, has - wanted), (new, free)):
            if numbers:
                found[subtopology] = numbers
    return _Difference(kept, lost, new, waits)


def reconcile(member: Member, epoch: int, target: Tasks, owned: Tasks | None, group: StreamsGroup) -> Member:
    """The member after its next step towards the target of this epoch.

    `owned` has the tasks that it reports; None if it reports none.
    """
    current_epoch = member.epoch
    if member.state is MemberState.STABLE and member.epoch == epoch:
        return member
    if member.state is MemberState.UNREVOKED:
        if owned is None or member.revoking.overlaps(owned):
            return member
        current_epoch += 1
    elif member.state is MemberState.UNKNOWN:
        if owned is None or not owned.is_empty:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
            )
        current_epoch = epoch
    process_id = member.process_id

    def held_for_active(task: Task) -> bool:
        return group.is_active_anywhere(task) or group.is_restored_in(task, process_id)

    def held_in_process(task: Task) -> bool:
        return group.is_active_in(task, process_id) or group.is_restored_in(task, process_id)

    had = member.assigned
    active = _difference(had.active, target.active, held_for_active)
    standby = _difference(had.standby, target.standby, held_in_process)
    warmup = _difference(had.warmup, target.warmup, held_in_process)
    kept_active = {name: {n: had.active[name][n] for n in numbers} for name, numbers in active.kept.items()}
    revoking = OwnedTasks(
        {name: {n: had.active[name][n] for n in numbers} for name, numbers in active.lost.items()},
        standby.lost,
        warmup.lost,
    )
    if not revoking.is_empty and (owned is None or revoking.overlaps(owned)):
        return replace(
            member,
            epoch=current_epoch,
            previous_epoch=member.epoch,
            state=MemberState.UNREVOKED,
            assigned=OwnedTasks(kept_active, standby.kept, warmup.kept),
            revoking=revoking,
        )
    for name, numbers in active.new.items():
        kept_active.setdefault(name, {}).update(dict.fromkeys(numbers, epoch))
    waits = active.waits or standby.waits or warmup.waits
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=MemberState.UNRELEASED if waits else MemberState.STABLE,
        assigned=OwnedTasks(kept_active, _merged(standby), _merged(warmup)),
        revoking=NOTHING_OWNED,
    )


def _merged(role: _Difference) -> TaskSet:
    names = sorted({*role.kept, *role.new})
    return {name: role.kept.get(name, frozenset()) | role.new.get(name, frozenset()) for name in names} or NO_TASKS


class GroupChange:
    def __init__(self, group: StreamsGroup, context: "StreamsGroups", writes: Writes, now_ms: int) -> None:
        self.group = group
        self.writes = writes
        self.now_ms = now_ms
        self.statuses: list[Status] = []
        """States that the response reports."""
        self.members = dict(group.members)
        self.targets = dict(group.targets)
        self.topology = group.topology
        self.configured = group.configured
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self._context = context
        self._configs = context.settings.assignment_configs(group.group_id)
        self._has_changed = False

    # Members and topology

    def put(self, member: Member) -> None:
        """Adds or updates a member."""
        if self.members.get(member.id) != member:
            self.members[member.id] = member
            self.writes.add(member_record(self.group.group_id, member))
            self._has_changed = True

    def remove(self, member: Member) -> None:
        """The group starts a new epoch. The others get the effects with their next heartbeats."""
        group = self.group
        del self.members[member.id]
        self.targets.pop(member.id, None)
        self.writes.extend(forgotten_member(group.group_id, member.id))
        self.epoch += 1
        self.writes.add(
            epoch_record(
                group.group_id,
                self.epoch,
                group.metadata_hash,
                group.validated_topology_epoch,
                group.assignment_configs,
            )
        )

    def use_topology(self, sent: object | None, member: Member) -> None:
        """`sent` is the topology of the request. The first one is the group's; INVALID_REQUEST for another one."""
        known = self.topology
        if sent is not None:
            topology = read_topology(sent)
            if known is None:
                self.topology = topology
                self.writes.add(topology_record(self.group.group_id, topology))
            elif known.epoch <= topology.epoch and known != topology:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        elif known is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The group has no topology: the member must leave and join again."
            )
        if known is not None and member.topology_epoch < known.epoch:
            detail = (
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
                f"{known.epoch}."
            )
            self.statuses.append(Status(StatusCode.STALE_TOPOLOGY, detail))

    # The epoch

    def refresh(self) -> ConfiguredTopology:
        """Starts a new epoch if members, topics or settings changed."""
        group = self.group
        topology = self.topology
        assert topology is not None, "a member that joins has sent a topology"
        configured, metadata_hash = self._configured(topology)
        validated = topology.epoch if configured.is_ready else NO_TOPOLOGY
        if (
            self._has_changed
            or metadata_hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or self._configs != group.assignment_configs
        ):
            self.epoch += 1
            self.writes.add(epoch_record(group.group_id, self.epoch, metadata_hash, validated, self._configs))
        self.configured = configured
        return configured

    def _configured(self, topology: Topology) -> tuple[ConfiguredTopology, int]:
        group, topics = self.group, self._context.topics
        known = group.configured
        if known is not None and known.topology is topology and known.catalog_version == topics.version:
            return known, group.seen_hash
        metadata_hash = _hash(topology, topics)
        configured = configure(topology, topics)

        def remember(error: KafkaError | None) -> None:
            group = self._context.known(self.group.group_id)
            # The record has been replayed: the group has a topology that is equal to this one.
            if error is None and group is not None and group.topology is not None:
                group.configured = replace(configured, topology=group.topology)
                group.seen_hash = metadata_hash

        self.writes.add(then=remember)
        return configured, metadata_hash

    # The target

    def assign(self) -> None:
        """Computes the target of a new epoch, unless the group waits for more members."""
        group_id, now_ms = self.group.group_id, self.now_ms
        if self.epoch <= self.assignment_epoch:
            return
        interval_ms = self._context.settings.assignment_interval_ms(group_id)
        if self.group.assigned_at_ms and now_ms < self.group.assigned_at_ms + interval_ms:
            self._delayed("Assignment delayed due to the configured assignment interval.")
            return
        configured = self.configured
        if configured is not None and configured.is_ready:
            specs = {
                name: SubtopologySpec(each.task_count, each.is_stateful)
                for name, each in configured.subtopologies.items()
            }
            members = [
                MemberSpec(member.id, member.process_id, self.targets.get(member.id, Tasks()))
                for member in self.members.values()
            ]
            targets = assign(members, specs, standby_count(self._configs))
        else:
            targets = dict.fromkeys(self.members, Tasks())
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self.writes.add(target_record(group_id, member_id, target))
        self.assignment_epoch = self.epoch
        self.writes.add(target_epoch_record(group_id, self.epoch, now_ms))

    def wait_for_members(self) -> None:
        """A group that was empty gets its first target later: no member gets tasks until then."""
        self.targets = {}
        self._delayed("Assignment delayed due to the configured initial rebalance delay.")

    def _delayed(self, detail: str) -> None:
        self.statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))

    # One member

    def step(self, member: Member, owned: Tasks | None) -> Member:
        """Moves the member towards its target; returns the member after that."""
        after = reconcile(member, self.assignment_epoch, self.targets.get(member.id, Tasks()), owned, self.group)
        if after != member:
            self.members[member.id] = after
            self.writes.add(assignment_record(self.group.group_id, after))
        return after


def _hash(topology: Topology, topics: TopicCatalog) -> int:
    """A hash of the topics of the topology; 0 if there are none, as in Kafka."""
    digest = hashlib.blake2b(digest_size=8)
    is_empty = True
    for name in sorted(topology.required_topics):
        topic = topics.get(name)
        if topic is not None:
            is_empty = False
            digest.update(repr((name, topic.id.bytes, topic.partition_count)).encode())
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)
