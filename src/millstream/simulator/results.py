"""The result of a run: its trace, captured log records, violations and counts."""

import logging
from collections.abc import Callable
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.6f}  {self.where:<10}  {self.what}"


class Trace:
    """The events of a run in virtual time. All are kept; `show` gets each one as it happens."""

    def __init__(self, now: Callable[[], float], show: Callable[[Event], None] | None = None) -> None:
        self._now = now
        self._show = show
        self.events: list[Event] = []

    def log_event(self, where: str, what: str) -> None:
        event = Event(self._now(), where, what)
        self.events.append(event)
        if self._show is not None:
            self._show(event)


class LogCapture(logging.Handler):
    """Captures the log records of nodes. Nothing goes to the real log."""

    def __init__(self, heard: Callable[[logging.LogRecord], None], level: int) -> None:
        super().__init__(level)
        self._on_log_record = heard
        self._logger = logging.getLogger("millstream")
        self._before = (self._logger.level, self._logger.propagate, list(self._logger.handlers))

    def emit(self, record: logging.LogRecord) -> None:
        self._on_log_record(record)

    def __enter__(self) -> "LogCapture":
        self._before = (self._logger.level, self._logger.propagate, list(self._logger.handlers))
        self._logger.handlers = [self]
        self._logger.setLevel(self.level)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        level, self._logger.propagate, self._logger.handlers = self._before
        self._logger.setLevel(level)


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return Violation, (self.invariant, self.what)


@dataclass(slots=True)
class Result:
    seed: int
    violation: Violation | None = None
    fingerprint: int = 0
    virtual_seconds: float = 0.0
    steps: int = 0
    acked: int = 0
    given_up: int = 0
    conditional: int = 0
    """Conditional appends that succeeded."""
    branches: int = 0
    """Branches of topics that were created."""
    refused: int = 0
    """Conditional appends that were refused."""
    read: int = 0
    committed: int = 0
    """Transactions with an acknowledged commit."""
    aborted: int = 0
    fenced: int = 0
    cleanings: int = 0
    elections: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    events: list[Event] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.violation is None
