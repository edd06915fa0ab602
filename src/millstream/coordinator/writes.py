"""Records that one operation gathers on its way, and what is to happen when they are committed."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from millstream.coordinator.outcome import CoordinatorRecord, Outcome, Reply
from millstream.model.errors import KafkaError

R = TypeVar("R")
OnCommitted = Callable[[KafkaError | None], None]


class Writes:
    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self._on_committed: list[OnCommitted] = []

    def add(self, *records: CoordinatorRecord, then: OnCommitted | None = None) -> None:
        self.records += records
        if then is not None:
            self._on_committed.append(then)

    def extend(self, records: Iterable[CoordinatorRecord]) -> None:
        self.records += records

    def outcome(self, answer: "R | Reply[R]") -> "Outcome[R]":
        return Outcome(answer, self.records, self._committed if self._on_committed else None)

    def _committed(self, error: KafkaError | None) -> None:
        for callback in self._on_committed:
            callback(error)
