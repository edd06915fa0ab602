"""Where client threads write down what they do; and a history as a file, one operation a line, for later."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millstream.testing.history.operations import (
    Assigned,
    Commit,
    CommittedRead,
    EndRead,
    History,
    Operation,
    Outcome,
    Poll,
    Seen,
    Send,
    StaleAllowed,
    Value,
)


class Recorder:
    """Safe to use from many threads: every operation is one append, and only its own client changes it afterwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History()
        self.now = clock

    def send(self, producer: str, partition: str, value: Value) -> Send:
        """Call it before the send; tell its end with `acked`, `failed` or not at all."""
        operation = Send(producer, partition, value, self.now())
        self.history.sends.append(operation)
        return operation

    def acked(self, operation: Send, offset: int | None) -> None:
        operation.finished_at, operation.offset, operation.outcome = self.now(), offset, Outcome.ACKED

    def failed(self, operation: Send | Commit) -> None:
        """Only for what certainly did not happen."""
        operation.finished_at, operation.outcome = self.now(), Outcome.FAILED

    def assigned(self, consumer: str, positions: Mapping[str, int | None], group: str | None = None) -> None:
        self.history.reading.append(Assigned(consumer, self.now(), dict(positions), group))

    def poll(self, consumer: str, invoked_at: float, records: Iterable[Seen]) -> None:
        self.history.reading.append(Poll(consumer, invoked_at, self.now(), tuple(records)))

    def commit(self, consumer: str, group: str, offsets: Mapping[str, int]) -> Commit:
        """Call it before the commit; tell its end with `committed`, `failed` or not at all."""
        operation = Commit(consumer, group, dict(offsets), self.now())
        self.history.commits.append(operation)
        return operation

    def committed(self, operation: Commit) -> None:
        operation.finished_at, operation.outcome = self.now(), Outcome.ACKED

    def committed_read(self, group: str, invoked_at: float, offsets: Mapping[str, int | None]) -> None:
        self.history.committed_reads.append(CommittedRead(group, dict(offsets), invoked_at, self.now()))

    def end_read(self, reader: str, partition: str, invoked_at: float, end_offset: int) -> None:
        self.history.end_reads.append(EndRead(reader, partition, end_offset, invoked_at, self.now()))

    def stale_allowed(self, since: float, until: float, why: str) -> None:
        self.history.stale_allowed.append(StaleAllowed(since, until, why))


_KINDS: dict[str, type[Any]] = {
    each.__name__: each for each in (Send, Poll, Assigned, Commit, CommittedRead, EndRead, StaleAllowed)
}


def save(history: History, path: Path) -> None:
    groups: tuple[Iterable[Operation], ...] = (
        history.sends,
        history.reading,
        history.commits,
        history.committed_reads,
        history.end_reads,
        history.stale_allowed,
    )
    with path.open("w") as file:
        for operation in (each for group in groups for each in group):
            json.dump({"kind": type(operation).__name__, **asdict(operation)}, file)
            file.write("\n")


def load(path: Path) -> History:
    history = History()
    places: dict[str, list[Any]] = {
        "Send": history.sends,
        "Poll": history.reading,
        "Assigned": history.reading,
        "Commit": history.commits,
        "CommittedRead": history.committed_reads,
        "EndRead": history.end_reads,
        "StaleAllowed": history.stale_allowed,
    }
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        kind = fields.pop("kind")
        if "outcome" in fields:
            fields["outcome"] = Outcome(fields["outcome"])
        if "records" in fields:
            fields["records"] = tuple(Seen(*each) for each in fields["records"])
        places[kind].append(_KINDS[kind](**fields))
    return history
