"""Operations of clients with their times: sends, polls, assignments, commits and reads of offsets; the recorder, and
files.

Values must be unique in the history, because a value identifies a record. Partitions have any name. Sends and commits
may be part of a transaction, which has its own outcome.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from millstream.common.lazy_dataclass import dataclass

Value = int | str


class Outcome(StrEnum):
    """How an operation ended, as far as its client knows."""

    ACKED = "acked"
    FAILED = "failed"
    """It did not happen: it was rejected or never sent."""
    UNKNOWN = "unknown"
    """No response, or an ambiguous one: it may have happened or may still happen."""


class Fate(StrEnum):
    """How a transaction ended, as far as its client knows."""

    OPEN = "open"
    """Its commit was not requested, so it can only be aborted."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Its commit was requested without a response: all of it happened, or nothing."""


@dataclass(slots=True)
class Transaction:
    """One transaction of one producer. Its sends and commits refer to its name."""

    name: str
    """Unique in the history, for example a transactional id with a number."""
    producer: str
    began_at: float
    commit_invoked_at: float | None = None
    """When its commit was first requested; None before."""
    ended_at: float | None = None
    fate: Fate = Fate.OPEN


class Source(NamedTuple):
    """The partition and offset of the input record of a copy."""

    partition: str
    offset: int


@dataclass(slots=True)
class Send:
    """One record of one producer. The sends of a producer are in the history in the order of their invocation."""

    producer: str
    partition: str
    value: Value
    invoked_at: float
    finished_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    """The acknowledged offset; None if the client did not get it."""
    transaction: str | None = None
    """The name of the transaction it is part of."""
    source: Source | None = None
    """Its input in a consume-transform-produce loop. Each input must be in the output exactly once."""
    key: str | None = None
    """For compacted partitions, where the last record of each key must remain."""


class Seen(NamedTuple):
    """A record as a consumer got it."""

    partition: str
    offset: int
    value: Value


@dataclass(slots=True)
class Poll:
    """The records of one poll, in order."""

    consumer: str
    invoked_at: float
    finished_at: float
    records: tuple[Seen, ...]


@dataclass(slots=True)
class Assigned:
    """A consumer starts to read at these positions after an assignment, rebalance or seek; None if unknown.

    It reads only the partitions named. `group` is None for a consumer without a group.
    """

    consumer: str
    at: float
    positions: dict[str, int | None]
    group: str | None = None
    committed_only: bool = False
    """Whether it reads with isolation level read_committed."""


@dataclass(slots=True)
class Commit:
    """A group member commits its next offsets."""

    consumer: str
    group: str
    offsets: dict[str, int]
    invoked_at: float
    finished_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    transaction: str | None = None
    """The name of its transaction; the commit is visible only if that is committed."""


@dataclass(slots=True)
class CommittedRead:
    """The committed offsets that a client read; None for a partition without one."""

    group: str
    offsets: dict[str, int | None]
    invoked_at: float
    finished_at: float
    stable: bool = False
    """Whether it was an OffsetFetch with require_stable, which waits for open transactions."""


@dataclass(slots=True)
class EndRead:
    """The end offset of a partition that a client read."""

    reader: str
    partition: str
    end_offset: int
    invoked_at: float
    finished_at: float
    committed_only: bool = False
    """Whether it is the last stable offset (read_committed)."""


@dataclass(slots=True)
class StaleAllowed:
    """A time in which reads may be stale: as in Kafka, an isolated leader responds from its own state."""

    since: float
    until: float
    why: str


@dataclass(slots=True)
class Compacted:
    """A compacted partition."""

    partition: str


Operation = Send | Transaction | Poll | Assigned | Commit | CommittedRead | EndRead | StaleAllowed | Compacted


@dataclass(slots=True)
class History:
    """All operations of one run. Polls and assignments are in one list, in the order of each consumer."""

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
    """Records operations of clients. Thread-safe: an operation is one append, and only its client changes it later."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History()
        self.now = clock

    def begin(self, producer: str, name: str) -> Transaction:
        """Call before the transaction begins. Its name must be unique. Report its end with `committing` and `ended`."""
        operation = Transaction(name, producer, self.now())
        self.history.transactions.append(operation)
        return operation

    def committing(self, transaction: Transaction) -> None:
        """Call before each attempt to commit. The outcome is unknown until `ended`."""
        if transaction.commit_invoked_at is None:
            transaction.commit_invoked_at = self.now()
        transaction.fate = Fate.UNKNOWN

    def ended(self, transaction: Transaction, *, committed: bool) -> None:
        """Call only if the outcome is certain."""
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
        """Call before the send. Report its end with `acked` or `failed`, or not at all if unknown."""
        name = None if transaction is None else transaction.name
        operation = Send(producer, partition, value, self.now(), transaction=name, source=source, key=key)
        self.history.sends.append(operation)
        return operation

    def acked(self, operation: Send, offset: int | None) -> None:
        operation.finished_at, operation.offset, operation.outcome = self.now(), offset, Outcome.ACKED

    def failed(self, operation: Send | Commit) -> None:
        """Call only if the operation certainly did not happen."""
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
        """Call before the commit. Report its end with `committed` or `failed`, or not at all if unknown."""
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
    """The list of each type of operation."""
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
