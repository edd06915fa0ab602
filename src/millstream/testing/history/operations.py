"""What clients did, each with its times on one clock: sends, polls, assignments, commits, and reads of positions.

Values must be unique over the whole history: a value is how a record is known again. Partitions are named by any text.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Value = int | str


class Outcome(StrEnum):
    """How an operation ended, as far as its client could know."""

    ACKED = "acked"
    FAILED = "failed"
    """It certainly did not happen: it was refused, or never left the client."""
    UNKNOWN = "unknown"
    """No answer, or one that leaves it open: it may have happened, or may yet."""


@dataclass(slots=True)
class Send:
    """One record of one producer; a producer's sends stand in the history in the order in which they were invoked."""

    producer: str
    partition: str
    value: Value
    invoked_at: float
    finished_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    """Where it was acknowledged to be; None where the client was not told."""


class Seen(NamedTuple):
    """A record as a consumer got it."""

    partition: str
    offset: int
    value: Value


@dataclass(slots=True)
class Poll:
    """What one poll returned, in the order in which it returned it."""

    consumer: str
    invoked_at: float
    finished_at: float
    records: tuple[Seen, ...]


@dataclass(slots=True)
class Assigned:
    """A consumer starts to read at these positions, by assignment, rebalance or seek; None where it was not told.

    Partitions that are not named are not read from here on. `group` is None for a consumer without one.
    """

    consumer: str
    at: float
    positions: dict[str, int | None]
    group: str | None = None


@dataclass(slots=True)
class Commit:
    """A group member commits the offsets it will go on from."""

    consumer: str
    group: str
    offsets: dict[str, int]
    invoked_at: float
    finished_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class CommittedRead:
    """The committed offsets of the partitions asked for, as a client was told; None where there is none."""

    group: str
    offsets: dict[str, int | None]
    invoked_at: float
    finished_at: float


@dataclass(slots=True)
class EndRead:
    """The end of a partition (the offset after its last readable record) as a client was told."""

    reader: str
    partition: str
    end_offset: int
    invoked_at: float
    finished_at: float


@dataclass(slots=True)
class StaleAllowed:
    """A time in which positions may be stale: Kafka lets a leader that is cut off answer from what it has."""

    since: float
    until: float
    why: str


Operation = Send | Poll | Assigned | Commit | CommittedRead | EndRead | StaleAllowed


@dataclass(slots=True)
class History:
    """Everything recorded in one run. Polls and assignments are in one list, in the order of each consumer."""

    sends: list[Send] = field(default_factory=list)
    reading: list[Poll | Assigned] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    end_reads: list[EndRead] = field(default_factory=list)
    stale_allowed: list[StaleAllowed] = field(default_factory=list)

    @property
    def polls(self) -> list[Poll]:
        return [each for each in self.reading if isinstance(each, Poll)]
