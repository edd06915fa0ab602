"""What clients did, each with its times on one clock: sends, polls, assignments, commits, and reads of positions.

Values must be unique over the whole history: a value is how a record is known again. Partitions are named by any text.
Sends and commits may be part of a transaction, which has an outcome of its own.
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


class Fate(StrEnum):
    """What became of a transaction, as far as its client could know."""

    OPEN = "open"
    """Nobody asked for it to be committed: whoever ends it can only abort it."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Its client asked to commit it and got no answer: all of it happened, or nothing."""


@dataclass(slots=True)
class Transaction:
    """One transaction of one producer; its sends and commits bear its name."""

    name: str
    """Unique over the whole history: a transactional id with a number, for example."""
    producer: str
    began_at: float
    commit_invoked_at: float | None = None
    """When its client first asked to commit it; None while it has not."""
    ended_at: float | None = None
    fate: Fate = Fate.OPEN


class Source(NamedTuple):
    """Where the record was read of which another is a copy."""

    partition: str
    offset: int


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
    transaction: str | None = None
    """The name of the transaction it is part of."""
    source: Source | None = None
    """What it is a copy of, in a consume-transform-produce loop: each input is to be in the output exactly once."""
    key: str | None = None
    """Matters in compacted partitions only, where the last record of each key must remain."""


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
    committed_only: bool = False
    """Whether it reads with isolation level read_committed."""


@dataclass(slots=True)
class Commit:
    """A group member commits the offsets it will go on from."""

    consumer: str
    group: str
    offsets: dict[str, int]
    invoked_at: float
    finished_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    transaction: str | None = None
    """The name of the transaction it is part of: it counts when that is committed, and only then."""


@dataclass(slots=True)
class CommittedRead:
    """The committed offsets of the partitions asked for, as a client was told; None where there is none."""

    group: str
    offsets: dict[str, int | None]
    invoked_at: float
    finished_at: float
    stable: bool = False
    """Whether the answer waited for transactions under way (OffsetFetch with require_stable)."""


@dataclass(slots=True)
class EndRead:
    """The end of a partition (the offset after its last readable record) as a client was told."""

    reader: str
    partition: str
    end_offset: int
    invoked_at: float
    finished_at: float
    committed_only: bool = False
    """Whether it is the end for read_committed (the last stable offset)."""


@dataclass(slots=True)
class StaleAllowed:
    """A time in which positions may be stale: Kafka lets a leader that is cut off answer from what it has."""

    since: float
    until: float
    why: str


@dataclass(slots=True)
class Compacted:
    """A partition in which a record may go once a later one has its key."""

    partition: str


Operation = Send | Transaction | Poll | Assigned | Commit | CommittedRead | EndRead | StaleAllowed | Compacted


@dataclass(slots=True)
class History:
    """Everything recorded in one run. Polls and assignments are in one list, in the order of each consumer."""

    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    reading: list[Poll | Assigned] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    end_reads: list[EndRead] = field(default_factory=list)
    stale_allowed: list[StaleAllowed] = field(default_factory=list)
    compacted: list[Compacted] = field(default_factory=list)

    @property
    def polls(self) -> list[Poll]:
        return [each for each in self.reading if isinstance(each, Poll)]
