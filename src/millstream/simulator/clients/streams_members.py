"""Members of a streams group (KIP-1071), which check that no task is active twice and that every task is assigned.

One client plays three members in turn, so that what they have can be compared at any time. Downtimes are much shorter
than the session timeouts, as for the other group members (`group_members.py`): a member whose responses all arrived is
never removed, so its tasks are no other's.
"""

from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.simulator.clients.acknowledged_state import CheckingClient, Progress
from millstream.simulator.clients.workload import Workload
from millstream.simulator.machine import Process

STREAMS_GROUP = "application"
SOURCE_TOPIC = "orders"
CHANGELOG_TOPIC = "application-store-changelog"
"""Created by the broker."""
_REBALANCE_MS = 40_000
_MEMBERS = 3
_NOT_A_MEMBER = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND))
_ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
_TOPOLOGY: dict[str, Any] = {
    "epoch": 0,
    "subtopologies": [
        {
            "subtopology_id": "0",
            "source_topics": [SOURCE_TOPIC],
            "source_topic_regex": [],
            "state_changelog_topics": [
                {
                    "name": CHANGELOG_TOPIC,
                    "partitions": 0,
                    "replication_factor": 0,
                    "topic_configs": [{"key": "cleanup.policy", "value": "compact"}],
                }
            ],
            "repartition_sink_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
    ],
}


class _Member:
    def __init__(self, member_id: str) -> None:
        self.id = member_id
        self.epoch = 0
        self.tasks: frozenset[int] = frozenset()
        """Active tasks that it processes."""
        self.told: frozenset[int] = frozenset()
        """Active tasks that it should have."""
        self.is_certain = True
        """Whether the response to its last heartbeat arrived."""

    def forget(self) -> None:
        self.epoch, self.tasks, self.told = 0, frozenset(), frozenset()


class StreamsMembers(CheckingClient):
    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress
    ) -> None:
        super().__init__(process, bootstrap, workload, progress)
        self._lives = 0
        self._leaving: list[_Member] = []
        self._members = [self._new() for _ in range(_MEMBERS)]

    def _new(self) -> _Member:
        self._lives += 1
        return _Member(f"{self.name}-{self._lives}")

    async def step(self) -> None:
        if self._leaving:
            await self._send(self._leaving[0], -1)  # again if the response is lost: the tasks are free only then
            del self._leaving[0]
            return
        at = self.randomness.randrange(_MEMBERS)
        member = self._members[at]
        if member.epoch > 0 and self.randomness.random() < 0.05:
            self._members[at] = self._new()
            self._leaving.append(member)
            return
        if self.randomness.random() < 0.8:
            member.tasks = member.told  # otherwise it is still busy with revocation
        await self._beat(member)
        self._check()

    async def _beat(self, member: _Member) -> None:
        fields: dict[str, Any] = {}
        if member.epoch == 0:
            member.forget()
            fields = {"rebalance_timeout_ms": _REBALANCE_MS, "process_id": member.id, "topology": _TOPOLOGY}
        rows = [{"subtopology_id": "0", "partitions": sorted(member.tasks)}] if member.tasks else []
        fields |= {"active_tasks": rows, "standby_tasks": [], "warmup_tasks": []}
        was_certain, member.is_certain = member.is_certain, False
        error, response = await self._send(member, member.epoch, **fields)
        member.is_certain = True
        if error in _NOT_A_MEMBER:
            if was_certain and member.epoch > 0:
                self.report_loss(f"got {error.name} as {member.id} in epoch {member.epoch}, which was acknowledged")
            member.forget()
        elif error == ErrorCode.NONE:
            if response.member_epoch < member.epoch:
                self.report_loss(f"{member.id} got epoch {response.member_epoch}, but had {member.epoch}")
            member.epoch = response.member_epoch
            if response.active_tasks is not None:
                member.told = frozenset(number for row in response.active_tasks for number in row.partitions)
                member.tasks |= member.told

    async def _send(self, member: _Member, epoch: int, **fields: Any) -> tuple[ErrorCode, Any]:
        unchanged = dict.fromkeys((*_ROLES, "topology", "client_tags", "task_offsets", "task_end_offsets"))
        identity = {"group_id": STREAMS_GROUP, "member_id": member.id, "member_epoch": epoch}
        return await self.request_coordinator(
            STREAMS_GROUP, "streams_group_heartbeat", {**identity, **unchanged, **fields}
        )

    def _check(self) -> None:
        """Progress is that all tasks are assigned."""
        owners: dict[int, str] = {}
        for member in self._members:
            for number in member.tasks:
                other = owners.setdefault(number, member.id)
                if other != member.id:
                    self.workload.report("TaskIsActiveOnce", f"task 0_{number} is active at {other} and {member.id}")
        plan = next(each for each in self.workload.topics if each.name == SOURCE_TOPIC)
        if len(owners) >= plan.partitions:
            self.acked(f"all {len(owners)} tasks are assigned")
