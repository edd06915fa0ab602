"""Where client threads write down what they do; and a history as a file, one operation a line, for later."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millstream.simulator.history.operations import (
    Assigned,
    Commit,
    CommittedRead,
    Compacted,
    EndRead,
    Fate,
    History,
    Outcome,
    Poll,
    Seen,
    Send,
    Source,
    StaleAllowed,
    Transaction,
    Value,
)


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
