"""The sticky assignor of streams groups: active tasks and their standbys.

Every task is active at exactly one member, and members have as equal a number of active tasks as possible: first of
those with state, then of all. A member keeps its tasks within that. A task that must move goes to a member with its
state, a standby, if there is one. A task has at most one replica in a process, because a standby in the same process
would be lost with it; standbys go to the processes with the fewest tasks per member.

Warm-up tasks are not assigned, as in Kafka 4.3: its clients do not report how far they have restored a task.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream.node.groups.core.streams.tasks import Task, Tasks, each, task_set


class MemberSpec(NamedTuple):
    id: str
    process_id: str
    """Members of one application instance have the same."""
    current: Tasks
    """Its target in the last assignment."""


class SubtopologySpec(NamedTuple):
    task_count: int
    is_stateful: bool


def assign(
    members: Sequence[MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standby_count: int
) -> dict[str, Tasks]:
    """The target of each member."""
    if not members:
        return {}
    return _Assignment(members, subtopologies).assign(standby_count)


class _Assignment:
    def __init__(self, members: Sequence[MemberSpec], subtopologies: Mapping[str, SubtopologySpec]) -> None:
        self._members = sorted(members)
        self._process_of = {member.id: member.process_id for member in self._members}
        self._members_in: dict[str, list[str]] = {}
        for member in self._members:
            self._members_in.setdefault(member.process_id, []).append(member.id)
        self._stateful = _tasks(subtopologies, is_stateful=True)
        self._stateless = _tasks(subtopologies, is_stateful=False)
        self._active: dict[str, set[Task]] = {member.id: set() for member in self._members}
        self._standby: dict[str, set[Task]] = {member.id: set() for member in self._members}
        self._count = dict.fromkeys(self._active, 0)
        """All tasks of a member."""
        self._load = dict.fromkeys(self._members_in, 0)
        """All tasks of a process."""
        self._at: dict[Task, set[str]] = {}
        """The processes that have a replica of a task."""
        self._was_active: dict[Task, str] = {}
        self._was_standby: dict[Task, list[str]] = {}
        for member in self._members:
            for task in each(member.current.active):
                self._was_active.setdefault(task, member.id)
            for role in (member.current.standby, member.current.warmup):
                for task in each(role):
                    self._was_standby.setdefault(task, []).append(member.id)

    def assign(self, standby_count: int) -> dict[str, Tasks]:
        self._deal(self._stateful)
        self._deal(self._stateless)
        if standby_count > 0:
            self._add_standbys(standby_count)
        return {
            member_id: Tasks(task_set(active), task_set(self._standby[member_id]))
            for member_id, active in self._active.items()
        }

    # Active tasks

    def _deal(self, tasks: Sequence[Task]) -> None:
        """Each member gets `least` tasks, and `more` members one more; those dealt before count."""
        least, more = divmod(sum(self._count.values()) + len(tasks), len(self._count))
        more -= sum(count > least for count in self._count.values())
        left = list(tasks)
        for candidates in (self._previous_owner, self._previous_standbys):
            rest = []
            for task in left:
                member_id = next((m for m in candidates(task) if self._count[m] < least + (more > 0)), None)
                if member_id is None:
                    rest.append(task)
                    continue
                more -= self._count[member_id] == least
                self._give(member_id, task, self._active)
            left = rest
        heap = [(self._rank(member_id), member_id) for member_id in self._count]
        heapq.heapify(heap)
        for task in left:
            rank, member_id = heapq.heappop(heap)
            while rank != (current := self._rank(member_id)):  # its process got tasks since
                rank, member_id = heapq.heappushpop(heap, (current, member_id))
            self._give(member_id, task, self._active)
            heapq.heappush(heap, (self._rank(member_id), member_id))

    def _rank(self, member_id: str) -> tuple[int, float]:
        process_id = self._process_of[member_id]
        return self._count[member_id], self._load[process_id] / len(self._members_in[process_id])

    def _previous_owner(self, task: Task) -> Iterable[str]:
        owner = self._was_active.get(task)
        return () if owner is None else (owner,)

    def _previous_standbys(self, task: Task) -> Iterable[str]:
        return sorted(self._was_standby.get(task, ()), key=lambda member_id: self._count[member_id])

    def _give(self, member_id: str, task: Task, role: dict[str, set[Task]]) -> None:
        role[member_id].add(task)
        self._count[member_id] += 1
        process_id = self._process_of[member_id]
        self._load[process_id] += 1
        self._at.setdefault(task, set()).add(process_id)

    # Standby tasks

    def _add_standbys(self, standby_count: int) -> None:
        per_task = min(standby_count, len(self._members_in) - 1)
        total = sum(self._count.values()) + per_task * len(self._stateful)
        most = -(-total // len(self._count))
        left: list[tuple[Task, int]] = []
        for task in self._stateful:
            missing = per_task
            for member_id in (*self._previous_standbys(task), *self._previous_owner(task)):
                is_free = self._process_of[member_id] not in self._at[task]
                if missing and is_free and self._count[member_id] < most:
                    self._give(member_id, task, self._standby)
                    missing -= 1
            left.append((task, missing))
        heap = [(self._tasks_per_member(process_id), process_id) for process_id in self._members_in]
        heapq.heapify(heap)
        for task, missing in left:
            passed = []
            while missing:
                load, process_id = heapq.heappop(heap)
                if process_id in self._at[task]:
                    passed.append((load, process_id))
                    continue
                member_id = min(self._members_in[process_id], key=lambda each_id: self._count[each_id])
                self._give(member_id, task, self._standby)
                passed.append((self._tasks_per_member(process_id), process_id))
                missing -= 1
            for entry in passed:
                heapq.heappush(heap, entry)

    def _tasks_per_member(self, process_id: str) -> float:
        return self._load[process_id] / len(self._members_in[process_id])


def _tasks(subtopologies: Mapping[str, SubtopologySpec], *, is_stateful: bool) -> list[Task]:
    return [
        (subtopology, number)
        for subtopology, spec in sorted(subtopologies.items())
        if spec.is_stateful == is_stateful
        for number in range(spec.task_count)
    ]
