"""Records that one operation gathers on its way, and what is to happen when they are written."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from millstream.formats.model.errors import KafkaError
from millstream.node.coordination.core.outcome import CoordinatorRecord, Outcome, Reply

R = TypeVar("R")
OnWritten = Callable[[KafkaError | None], None]


class Writes:
    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self._on_written: list[OnWritten] = []

    def add(self, *records: CoordinatorRecord, then: OnWritten | None = None) -> None:
        self.records += records
        if then is not None:
            self._on_written.append(then)

    def extend(self, records: Iterable[CoordinatorRecord]) -> None:
        self.records += records

    def outcome(self, answer: "R | Reply[R]") -> "Outcome[R]":
        return Outcome(answer, self.records, self._done if self._on_written else None)

    def _done(self, error: KafkaError | None) -> None:
        for callback in self._on_written:
            callback(error)
