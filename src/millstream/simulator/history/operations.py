"""What clients did, each with its times on one clock: sends, polls, assignments, commits, and reads of positions.

Values must be unique over the whole history: a value is how a record is known again. Partitions are named by any text.
Sends and commits may be part of a transaction, which has an outcome of its own.

Where client threads write down what they do; and a history as a file, one operation a line, for later.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

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


class Recorder:
    """Safe to use from many threads: every operation is one append, and only its own client changes it afterwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History()
        self.now = clock

    def begin(self, producer: str, name: str) -> Transaction:
        """Call it before the transaction begins; its name must be unique. Tell its end with the next two."""
        operation = Transaction(name, producer, self.now())
        self.history.transactions.append(operation)
        return operation

    def committing(self, transaction: Transaction) -> None:
        """Call it before each attempt to commit: from here on its fate is unknown until it is told."""
        if transaction.commit_invoked_at is None:
            transaction.commit_invoked_at = self.now()
        transaction.fate = Fate.UNKNOWN

    def ended(self, transaction: Transaction, *, committed: bool) -> None:
        """Only for what is certain."""
        transaction.ended_at = self.now()
        transaction.fate = Fate.COMMITTED if committed else Fate.ABORTED

    def send(
        self,
        producer: str,
        partition: str,
        value: Value,
        *,
        transaction: Transaction | None = None,
        source: Source | None = None,
        key: str | None = None,
    ) -> Send:
        """Call it before the send; tell its end with `acked`, `failed` or not at all."""
        name = None if transaction is None else transaction.name
        operation = Send(producer, partition, value, self.now(), transaction=name, source=source, key=key)
        self.history.sends.append(operation)
        return operation

    def acked(self, operation: Send, offset: int | None) -> None:
        operation.finished_at, operation.offset, operation.outcome = self.now(), offset, Outcome.ACKED

    def failed(self, operation: Send | Commit) -> None:
        """Only for what certainly did not happen."""
        operation.finished_at, operation.outcome = self.now(), Outcome.FAILED

    def assigned(
        self,
        consumer: str,
        positions: Mapping[str, int | None],
        group: str | None = None,
        *,
        committed_only: bool = False,
    ) -> None:
        self.history.reading.append(Assigned(consumer, self.now(), dict(positions), group, committed_only))

    def poll(self, consumer: str, invoked_at: float, records: Iterable[Seen]) -> None:
        self.history.reading.append(Poll(consumer, invoked_at, self.now(), tuple(records)))

    def commit(
        self, consumer: str, group: str, offsets: Mapping[str, int], *, transaction: Transaction | None = None
    ) -> Commit:
        """Call it before the commit; tell its end with `committed`, `failed` or not at all."""
        name = None if transaction is None else transaction.name
        operation = Commit(consumer, group, dict(offsets), self.now(), transaction=name)
        self.history.commits.append(operation)
        return operation

    def committed(self, operation: Commit) -> None:
        operation.finished_at, operation.outcome = self.now(), Outcome.ACKED

    def committed_read(
        self, group: str, invoked_at: float, offsets: Mapping[str, int | None], *, stable: bool = False
    ) -> None:
        self.history.committed_reads.append(CommittedRead(group, dict(offsets), invoked_at, self.now(), stable))

    def end_read(
        self, reader: str, partition: str, invoked_at: float, end_offset: int, *, committed_only: bool = False
    ) -> None:
        self.history.end_reads.append(EndRead(reader, partition, end_offset, invoked_at, self.now(), committed_only))

    def stale_allowed(self, since: float, until: float, why: str) -> None:
        self.history.stale_allowed.append(StaleAllowed(since, until, why))

    def compacted(self, partition: str) -> None:
        self.history.compacted.append(Compacted(partition))


def _places(history: History) -> dict[type[Any], list[Any]]:
    """The list in which each kind of operation is kept."""
    return {
        Send: history.sends,
        Transaction: history.transactions,
        Poll: history.reading,
        Assigned: history.reading,
        Commit: history.commits,
        CommittedRead: history.committed_reads,
        EndRead: history.end_reads,
        StaleAllowed: history.stale_allowed,
        Compacted: history.compacted,
    }


def save(history: History, path: Path) -> None:
    lists = {id(each): each for each in _places(history).values()}
    with path.open("w") as file:
        for operation in (each for found in lists.values() for each in found):
            json.dump({"kind": type(operation).__name__, **asdict(operation)}, file)
            file.write("\n")


def load(path: Path) -> History:
    history = History()
    places = {kind.__name__: (kind, found) for kind, found in _places(history).items()}
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        kind, place = places[fields.pop("kind")]
        if "outcome" in fields:
            fields["outcome"] = Outcome(fields["outcome"])
        if "fate" in fields:
            fields["fate"] = Fate(fields["fate"])
        if fields.get("source") is not None:
            fields["source"] = Source(*fields["source"])
        if "records" in fields:
            fields["records"] = tuple(Seen(*each) for each in fields["records"])
        place.append(kind(**fields))
    return history
