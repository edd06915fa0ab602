"""Tasks of a streams group: sets of them, and their rows in messages and records.

A task is one partition number of one subtopology. It is active at one member. It may be standby or warm-up at others:
these only restore its state. An active task also has the assignment epoch in which its member got it, so that a commit
with an earlier member epoch can be accepted (KIP-1251).
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from millstream.formats.protocol.schema import Message

Task = tuple[str, int]
"""Subtopology id and partition number."""
TaskSet = Mapping[str, frozenset[int]]
"""Partition numbers by subtopology id; no empty sets."""
TaskEpochs = Mapping[str, Mapping[int, int]]
"""As `TaskSet`, each number with its assignment epoch."""

NO_TASKS: Mapping[str, Any] = MappingProxyType({})


class Tasks(NamedTuple):
    """The tasks of one member, as a target or as the member reports them."""

    active: TaskSet = NO_TASKS
    standby: TaskSet = NO_TASKS
    warmup: TaskSet = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)


class OwnedTasks(NamedTuple):
    """The tasks of one member as the group knows them: active ones have their epochs."""

    active: TaskEpochs = NO_TASKS
    standby: TaskSet = NO_TASKS
    warmup: TaskSet = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def overlaps(self, owned: Tasks) -> bool:
        """Whether the member still has one of these tasks, in the same role."""
        return any(
            not owned_set.get(subtopology, frozenset()).isdisjoint(numbers)
            for mine, owned_set in zip(self, owned, strict=True)
            for subtopology, numbers in mine.items()
        )

    def contains(self, owned: Tasks) -> bool:
        return all(
            set(numbers) <= set(mine.get(subtopology, ()))
            for mine, owned_set in zip(self, owned, strict=True)
            for subtopology, numbers in owned_set.items()
        )

    def equals(self, owned: Tasks) -> bool:
        return self.contains(owned) and sum(1 for _ in _every(self)) == sum(1 for _ in _every(owned))


def _every(tasks: Iterable[Mapping[str, Iterable[int]]]) -> "Iterator[Task]":
    return (task for role in tasks for task in each(role))


NOTHING_OWNED = OwnedTasks()


def each(tasks: Mapping[str, Iterable[int]]) -> Iterator[Task]:
    for subtopology, numbers in tasks.items():
        for number in numbers:
            yield subtopology, number


def task_set(tasks: Iterable[Task]) -> TaskSet:
    found: dict[str, set[int]] = {}
    for subtopology, number in tasks:
        found.setdefault(subtopology, set()).add(number)
    return {subtopology: frozenset(found[subtopology]) for subtopology in sorted(found)}


# Rows of messages and records


def rows(tasks: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
    return [
        {"subtopology_id": subtopology, "partitions": sorted(numbers)} for subtopology, numbers in sorted(tasks.items())
    ]


def epoch_rows(tasks: TaskEpochs) -> list[dict[str, Any]]:
    return [
        {"subtopology_id": subtopology, "partitions": numbers, "assignment_epochs": [epochs[n] for n in numbers]}
        for subtopology, epochs in sorted(tasks.items())
        for numbers in [sorted(epochs)]
    ]


def read_rows(found: Iterable[Any]) -> TaskSet:
    return task_set((row.subtopology_id, number) for row in found for number in row.partitions)


def read_epoch_rows(found: Iterable[Message], unknown_epoch: int) -> TaskEpochs:
    """Records before Kafka 4.3 have no epochs; then the member's epoch is used."""
    tasks: dict[str, dict[int, int]] = {}
    for row in found:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [unknown_epoch] * len(row.partitions)
        if row.partitions:
            tasks.setdefault(row.subtopology_id, {}).update(zip(row.partitions, epochs, strict=True))
    return tasks
