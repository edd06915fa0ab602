"""Runs of offsets: neighbouring offsets in the same state, in one sorted list; and the states of records.

The work of a share group is per run, not per record.

    available --acquire--> acquired --accept--> acknowledged
        ^                     |-----reject, gap--------------> archived
        |-- release, timeout -|-----at the delivery limit----> archived
                              (with a dead-letter topic: -> archiving -> archived)

Acknowledged and archived are final. A record that was never acquired is in no run: it is only in the log.
"""

from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple


class RecordState(IntEnum):
    """Kafka's numbers, as persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """A dead letter is being written (KIP-1191)."""
    ARCHIVED = 4

    @property
    def final(self) -> bool:
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


class Acknowledgement(IntEnum):
    """An acknowledgement of a consumer, with Kafka's numbers."""

    GAP = 0
    """There is no record at this offset: removed by compaction, or a control record."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class StateBatch(NamedTuple):
    """Offsets first to last, both included, with the same state and delivery count."""

    first: int
    last: int
    state: int
    deliveries: int


class Acquired(NamedTuple):
    """Offsets that a member has just acquired."""

    first: int
    last: int
    deliveries: int


class DeadLetter(NamedTuple):
    """Offsets that were given up, with the reason."""

    first: int
    last: int
    deliveries: int
    reason: str


REJECTED = "the consumer rejected the record"
LIMIT_REACHED = "the record reached its delivery count limit"


NO_MEMBER = ""
_MAX_DELIVERIES = (1 << 15) - 1
"""The limit of the protocol's field."""
_first = attrgetter("first")


class Run:
    """Offsets first to last, both included."""

    __slots__ = (
        "deadline_ms",
        "deliveries",
        "due_ms",
        "first",
        "key",
        "last",
        "member",
        "state",
        "target",
        "transition",
    )

    def __init__(self, first: int, last: int, state: RecordState, deliveries: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        """The delivery count."""
        self.member = NO_MEMBER
        self.deadline_ms = 0
        """The end of the member's lock."""
        self.key: bytes | None = None
        self.due_ms = 0
        self.transition: Any = None
        """The change that is being persisted. Until then no other change may touch the run."""
        self.target = state

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"Run({self.first}-{self.last} {self.state.name} x{self.deliveries})"

    def acquire(self, member: str, deadline_ms: int) -> None:
        self.state = RecordState.ACQUIRED
        self.deliveries = min(self.deliveries + 1, _MAX_DELIVERIES)
        self.member = member
        self.deadline_ms = deadline_ms


class RunList:
    """The runs of one share-partition, sorted, without overlaps. Offsets between them were not read yet."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def index_at(self, offset: int) -> int:
        """The index of the run with `offset`, or of the first run after it."""
        at = bisect_right(self.runs, offset, key=_first) - 1
        return at if at >= 0 and self.runs[at].last >= offset else at + 1

    def find(self, offset: int) -> Run | None:
        at = self.index_at(offset)
        if at < len(self.runs) and self.runs[at].first <= offset:
            return self.runs[at]
        return None

    def overlapping(self, first: int, last: int) -> list[Run]:
        found = []
        for at in range(self.index_at(first), len(self.runs)):
            run = self.runs[at]
            if run.first > last:
                break
            found.append(run)
        return found

    def holes(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first..last without a run."""
        found = []
        position = first
        for run in self.overlapping(first, last):
            if run.first > position:
                found.append((position, run.first - 1))
            position = run.last + 1
        if position <= last:
            found.append((position, last))
        return found

    def insert(self, runs: list[Run]) -> None:
        """Adds neighbouring runs, sorted, where there is no run."""
        if not self.runs or self.runs[-1].last < runs[0].first:
            self.runs += runs
        else:
            at = self.index_at(runs[0].first)
            self.runs[at:at] = runs

    def cut_out(self, run: Run, first: int, last: int) -> Run:
        """Splits a run so that first..last is a run; returns that."""
        if run.first == first and run.last == last:
            return run
        at = self.index_at(run.first)
        pieces = []
        if run.first < first:
            pieces.append(_part(run, run.first, first - 1))
        middle = _part(run, first, last)
        pieces.append(middle)
        if run.last > last:
            pieces.append(_part(run, last + 1, run.last))
        self.runs[at : at + 1] = pieces
        return middle

    def join_final(self, run: Run) -> None:
        """Merges a final run with its final neighbours of the same state, whatever their delivery counts."""
        at = self.index_at(run.first)
        low = high = at
        while low > 0 and _joins(self.runs[low - 1], self.runs[low]):
            low -= 1
        while high + 1 < len(self.runs) and _joins(self.runs[high], self.runs[high + 1]):
            high += 1
        if low < high:
            joined = self.runs[low]
            joined.last = self.runs[high].last
            joined.deliveries = max(each.deliveries for each in self.runs[low : high + 1])
            del self.runs[low + 1 : high + 1]

    def put(self, batch: StateBatch) -> None:
        """Sets the state of a range."""
        for run in self.overlapping(batch.first, batch.last):
            part = self.cut_out(run, max(run.first, batch.first), min(run.last, batch.last))
            del self.runs[self.index_at(part.first)]
        run = Run(batch.first, batch.last, RecordState(batch.state), batch.deliveries)
        self.insert([run])
        self.join_final(run)

    def drop_before(self, offset: int) -> list[Run]:
        """Removes the runs before `offset`, splitting a run that spans it; returns the removed runs."""
        at = self.index_at(offset)
        dropped = self.runs[:at]
        del self.runs[:at]
        if self.runs and self.runs[0].first < offset:
            spanning = self.runs[0]
            dropped.append(_part(spanning, spanning.first, offset - 1))
            spanning.first = offset  # in place: a transition may refer to it
        return dropped

    def batches(self) -> list[StateBatch]:
        return [StateBatch(run.first, run.last, run.state, run.deliveries) for run in self.runs]


def _part(run: Run, first: int, last: int) -> Run:
    part = Run(first, last, run.state, run.deliveries)
    part.member = run.member
    part.deadline_ms = run.deadline_ms
    part.key = run.key
    part.due_ms = run.due_ms
    part.transition = run.transition
    part.target = run.target
    return part


def _joins(left: Run, right: Run) -> bool:
    return (
        left.last + 1 == right.first
        and left.state is right.state
        and left.state.final
        and left.transition is None
        and right.transition is None
    )
