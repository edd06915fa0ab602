"""One streams group: epochs, topology, members, targets, holders of tasks; its records and settings.

The group is what its records describe. Members are immutable: a change makes a new one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.common.lazy_dataclass import dataclass
from millstream.config.group_config import (
    STREAMS_ASSIGNMENT_INTERVAL_MS,
    STREAMS_HEARTBEAT_INTERVAL_MS,
    STREAMS_INITIAL_REBALANCE_DELAY_MS,
    STREAMS_NUM_STANDBY_REPLICAS,
    STREAMS_SESSION_TIMEOUT_MS,
    GroupConfig,
)
from millstream.config.table import streams as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.state_machine import CoordinatorRecord, Topic
from millstream.node.groups.core.group import Group, GroupType
from millstream.node.groups.core.records import RecordType, group_record
from millstream.node.groups.core.streams.tasks import (
    NOTHING_OWNED,
    OwnedTasks,
    Task,
    Tasks,
    each,
    epoch_rows,
    read_epoch_rows,
    read_rows,
    rows,
)
from millstream.node.groups.core.streams.topology import ConfiguredTopology, Topology, described

if TYPE_CHECKING:
    from millstream.node.groups.core.shard import GroupShard

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
FIRST_EPOCH = 1
"""The epoch of a group without members, and of its first, empty target. The first member starts the next one."""
NO_TOPOLOGY = -1


class MemberState(IntEnum):
    """The member's progress towards its target, with the numbers of the record. Consumer groups have other numbers."""

    STABLE = 1
    UNREVOKED = 2
    """It must revoke tasks, and has not confirmed that."""
    UNRELEASED = 3
    """It waits for tasks that other members, or other roles in its process, still have."""
    UNKNOWN = 127
    """Written by a version with more states."""

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        return cls.UNKNOWN


class Endpoint(NamedTuple):
    """The address of an application for interactive queries."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: OwnedTasks = NOTHING_OWNED
    revoking: OwnedTasks = NOTHING_OWNED
    """Tasks that it must revoke and has not confirmed."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def metadata_value(self) -> dict[str, Any]:
        """The value of the member's metadata record."""
        return {
            "instance_id": self.instance_id,
            "rack_id": self.rack,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "topology_epoch": self.topology_epoch,
            "process_id": self.process_id,
            "user_endpoint": None if self.endpoint is None else self.endpoint._asdict(),
            "client_tags": [{"key": key, "value": value} for key, value in self.client_tags],
        }

    def assignment_value(self) -> dict[str, Any]:
        """The value of the member's assignment record."""
        return {
            "member_epoch": self.epoch,
            "previous_member_epoch": self.previous_epoch,
            "state": self.state,
            "active_tasks": epoch_rows(self.assigned.active),
            "standby_tasks": rows(self.assigned.standby),
            "warmup_tasks": rows(self.assigned.warmup),
            "active_tasks_pending_revocation": epoch_rows(self.revoking.active),
            "standby_tasks_pending_revocation": rows(self.revoking.standby),
            "warmup_tasks_pending_revocation": rows(self.revoking.warmup),
        }


def metadata_fields(value: Message) -> dict[str, Any]:
    """The fields of `Member` in its metadata record."""
    endpoint = value.user_endpoint
    return {
        "instance_id": value.instance_id,
        "rack": value.rack_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "rebalance_timeout_ms": value.rebalance_timeout_ms,
        "topology_epoch": value.topology_epoch,
        "process_id": value.process_id,
        "endpoint": None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        "client_tags": tuple((tag.key, tag.value) for tag in value.client_tags),
    }


def assignment_fields(value: Message) -> dict[str, Any]:
    """The fields of `Member` in its assignment record."""
    epoch = value.member_epoch
    return {
        "epoch": epoch,
        "previous_epoch": value.previous_member_epoch,
        "state": MemberState(value.state),
        "assigned": OwnedTasks(
            read_epoch_rows(value.active_tasks, epoch), read_rows(value.standby_tasks), read_rows(value.warmup_tasks)
        ),
        "revoking": OwnedTasks(
            read_epoch_rows(value.active_tasks_pending_revocation, epoch),
            read_rows(value.standby_tasks_pending_revocation),
            read_rows(value.warmup_tasks_pending_revocation),
        ),
    }


def unassigned(member: Member) -> Member:
    """The member after the tombstone of its assignment."""
    return replace(
        member,
        epoch=LEAVE_EPOCH,
        previous_epoch=LEAVE_EPOCH,
        state=MemberState.STABLE,
        assigned=NOTHING_OWNED,
        revoking=NOTHING_OWNED,
    )


# Records


def _of_group(kind: RecordType, group_id: str, value: Mapping[str, Any] | None) -> CoordinatorRecord:
    return group_record(kind, {"group_id": group_id}, value)


def _of_member(kind: RecordType, group_id: str, member_id: str, value: Mapping[str, Any] | None) -> CoordinatorRecord:
    return group_record(kind, {"group_id": group_id, "member_id": member_id}, value)


def epoch_record(
    group_id: str, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
) -> CoordinatorRecord:
    value = {
        "epoch": epoch,
        "metadata_hash": metadata_hash,
        "validated_topology_epoch": validated_topology_epoch,
        "last_assignment_configs": [{"key": key, "value": value} for key, value in sorted(configs.items())],
    }
    return _of_group(RecordType.STREAMS_GROUP_METADATA, group_id, value)


def topology_record(group_id: str, topology: Topology) -> CoordinatorRecord:
    return _of_group(RecordType.STREAMS_GROUP_TOPOLOGY, group_id, topology.value())


def member_record(group_id: str, member: Member) -> CoordinatorRecord:
    return _of_member(RecordType.STREAMS_GROUP_MEMBER_METADATA, group_id, member.id, member.metadata_value())


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    value = {"assignment_epoch": epoch, "assignment_timestamp": now_ms}
    return _of_group(RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA, group_id, value)


def target_record(group_id: str, member_id: str, target: Tasks) -> CoordinatorRecord:
    value = {
        "active_tasks": rows(target.active),
        "standby_tasks": rows(target.standby),
        "warmup_tasks": rows(target.warmup),
    }
    return _of_member(RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER, group_id, member_id, value)


def assignment_record(group_id: str, member: Member) -> CoordinatorRecord:
    value = member.assignment_value()
    return _of_member(RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT, group_id, member.id, value)


def forgotten_member(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Tombstones for all records of a member, in Kafka's order."""
    return [
        _of_member(kind, group_id, member_id, None)
        for kind in (
            RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT,
            RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER,
            RecordType.STREAMS_GROUP_MEMBER_METADATA,
        )
    ]


_FIRST_COMMIT_WITH_MEMBER_EPOCH = 9


class GroupState(StrEnum):
    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of the topology are missing, or not partitioned as they must be."""
    ASSIGNING = "Assigning"
    """The group has changed since the target was computed."""
    RECONCILING = "Reconciling"
    """Members are moving to the target."""
    STABLE = "Stable"


class StreamsGroup(Group):
    type = GroupType.STREAMS

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        """A hash of the topics of the topology, in this epoch."""
        self.validated_topology_epoch = NO_TOPOLOGY
        """The epoch of the topology whose topics are valid; NO_TOPOLOGY while they are not."""
        self.assignment_configs: Mapping[str, str] = {}
        """The settings of the last assignment, with Kafka's names."""
        self.assignment_epoch = FIRST_EPOCH
        """The epoch of the targets."""
        self.assigned_at_ms = 0
        self.topology: Topology | None = None
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Tasks] = {}
        self._active: dict[Task, set[str]] = {}
        self._restoring: dict[Task, set[str]] = {}
        # Not in the log
        self.sessions: dict[str, int] = {}
        """For each member, the end of its session."""
        self.configured: ConfiguredTopology | None = None
        self.seen_hash = 0
        """The hash of the topics at the version of `configured`."""
        self.endpoint_epoch = 0
        """Grows when the tasks of a member with an endpoint change."""
        self.shutdown_member: str | None = None
        """The member that requested the shutdown of the whole application; kept until the group is empty."""

    # Changes by records

    def put(self, member: Member) -> None:
        self._release(self.members.get(member.id))
        self.members[member.id] = member
        for tasks in (member.assigned, member.revoking):
            for task in each(tasks.active):
                self._active.setdefault(task, set()).add(member.id)
            for role in (tasks.standby, tasks.warmup):
                for task in each(role):
                    self._restoring.setdefault(task, set()).add(member.id)

    def remove(self, member_id: str) -> None:
        self._release(self.members.pop(member_id, None))
        if not self.members:
            self.shutdown_member = None

    def _release(self, member: Member | None) -> None:
        if member is None:
            return
        for tasks in (member.assigned, member.revoking):
            _discard(self._active, each(tasks.active), member.id)
            for role in (tasks.standby, tasks.warmup):
                _discard(self._restoring, each(role), member.id)

    # Reading

    def is_active_anywhere(self, task: Task) -> bool:
        return bool(self._active.get(task))

    def is_active_in(self, task: Task, process_id: str) -> bool:
        return self._is_in(self._active, task, process_id)

    def is_restored_in(self, task: Task, process_id: str) -> bool:
        """Whether a member of the process has the task as standby or warm-up."""
        return self._is_in(self._restoring, task, process_id)

    def _is_in(self, holders: Mapping[Task, set[str]], task: Task, process_id: str) -> bool:
        return any(self.members[member_id].process_id == process_id for member_id in holders.get(task, ()))

    def find_member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return GroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state

    @property
    def protocol_type(self) -> str:
        return "streams"

    @property
    def is_empty(self) -> bool:
        return not self.members

    # For offsets and admin requests

    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int, version: int) -> None:
        if generation < 0 and not self.members:
            return  # an admin
        member = self.find_member(member_id)
        if version < _FIRST_COMMIT_WITH_MEMBER_EPOCH:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the streams group protocol",
            )
        _check_epoch(member, generation)

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        if generation < 0 and (not self.members or (not member_id and instance_id is None)):
            return  # no member is named: an old producer
        _check_epoch(self.find_member(member_id), generation)

    def may_commit_late(self, member_id: str, generation: int, topic: Topic, partition: int) -> bool:
        """Whether a member may commit in an earlier epoch, for a task that it has had since then."""
        member = self.members.get(member_id)
        if member is None or self.topology is None or not 0 < generation < member.epoch:
            return False
        subtopology = self.topology.readers.get(topic.name)
        if subtopology is None:
            return False
        given_in = member.assigned.active.get(subtopology, {}).get(partition)
        if given_in is None:
            given_in = member.revoking.active.get(subtopology, {}).get(partition)
        return given_in is not None and given_in <= generation

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        _check_epoch(self.find_member(member_id or ""), member_epoch)

    def check_offset_delete(self) -> None:
        return

    def check_deletion(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and self.topology is not None and topic in self.topology.readers

    def expiry_base_ms(self, committed_at_ms: int) -> int | None:
        return committed_at_ms

    def deletion_records(self) -> list[CoordinatorRecord]:
        made = [record for member_id in self.members for record in forgotten_member(self.group_id, member_id)]
        return [
            *made,
            *(
                _of_group(kind, self.group_id, None)
                for kind in (
                    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA,
                    RecordType.STREAMS_GROUP_METADATA,
                    RecordType.STREAMS_GROUP_TOPOLOGY,
                )
            ),
        ]

    def describe(self) -> dict[str, Any]:
        """The group's row in the response to StreamsGroupDescribe."""
        return {
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "topology": None if self.topology is None else described(self.topology, self.configured),
            "members": [self._described(member) for member in self.members.values()],
        }

    def _described(self, member: Member) -> dict[str, Any]:
        metadata = member.metadata_value()
        del metadata["rebalance_timeout_ms"]
        return {
            **metadata,
            "member_id": member.id,
            "member_epoch": member.epoch,
            "task_offsets": [],
            "task_end_offsets": [],
            "assignment": task_fields(member.assigned),
            "target_assignment": task_fields(self.targets.get(member.id, Tasks())),
            "is_classic": False,
        }


def task_fields(tasks: Tasks | OwnedTasks) -> dict[str, Any]:
    """The fields of messages with the tasks of a member."""
    return {
        "active_tasks": rows(tasks.active),
        "standby_tasks": rows(tasks.standby),
        "warmup_tasks": rows(tasks.warmup),
    }


def _discard(holders: dict[Task, set[str]], tasks: Iterable[Task], member_id: str) -> None:
    for task in tasks:
        at = holders.get(task)
        if at is not None:
            at.discard(member_id)
            if not at:
                del holders[task]


def _check_epoch(member: Member, epoch: int) -> None:
    if epoch != member.epoch:
        raise KafkaError(
            ErrorCode.STALE_MEMBER_EPOCH,
            f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
        )


class StreamsSettings:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard

    def session_timeout_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[STREAMS_SESSION_TIMEOUT_MS])

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[STREAMS_HEARTBEAT_INTERVAL_MS])

    def assignment_interval_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[STREAMS_ASSIGNMENT_INTERVAL_MS])

    def initial_delay_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[STREAMS_INITIAL_REBALANCE_DELAY_MS])

    def assignment_configs(self, group_id: str) -> dict[str, str]:
        """The settings that an assignment depends on. The group's record has them, so that a change is noticed."""
        return {"num.standby.replicas": str(self._of_group(group_id)[STREAMS_NUM_STANDBY_REPLICAS])}

    @property
    def max_size(self) -> int:
        return self._shard.config()[settings.MAX_SIZE]

    def _of_group(self, group_id: str) -> GroupConfig:
        return GroupConfig(self._shard.group_settings(group_id), self._shard.config())


def standby_count(configs: Mapping[str, str]) -> int:
    return int(configs["num.standby.replicas"])
