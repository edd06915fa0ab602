"""What an operation of a coordinator gives back: records to write, and an answer that is due now or later.

Records that one operation gathers on its way, and what is to happen when they are written.

Deadlines by key. The state machine sets them, the shell asks when the next one is and runs what is due.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import ProducerIdentity

R = TypeVar("R")


class CoordinatorRecord(NamedTuple):
    """One record of an internal topic; a value of None deletes the key."""

    key: bytes
    value: bytes | None


class Reply(Generic[R]):
    """An answer that a later event will give: a member waits for the others, a reader for a record."""

    __slots__ = ("_on_resolved", "resolved", "value")

    def __init__(self) -> None:
        self.resolved = False
        self.value: R | None = None
        self._on_resolved: Callable[[R], None] | None = None

    def resolve(self, value: R) -> None:
        """Gives the answer; only the first counts, so that whoever comes late needs no bookkeeping."""
        if self.resolved:
            return
        self.resolved = True
        self.value = value
        if self._on_resolved is not None:
            self._on_resolved(value)

    def when_resolved(self, callback: Callable[[R], None]) -> None:
        if self.resolved:
            callback(self.value)  # type: ignore[arg-type]
        else:
            self._on_resolved = callback


@dataclass(slots=True)
class Outcome(Generic[R]):
    """Records are appended as one batch, atomically; then replayed; the answer goes out when they are committed."""

    answer: R | Reply[R]
    records: Sequence[CoordinatorRecord] = field(default_factory=list)
    on_written: Callable[[KafkaError | None], None] | None = None
    """Called when the records are in the log and replayed, or with the error if they could not be written (then nothing
    changed). What it does to the state, clients hear of only when the records are committed."""
    producer: ProducerIdentity | None = None
    """In whose transaction the records are written; they are pending until it ends."""


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


Action = Callable[[int], Outcome[Any] | None]
"""Takes the time; returns what is to be written, if anything."""
_STALE_ENTRIES = 64


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []
        self._current: dict[Hashable, tuple[int, int, Action]] = {}
        self._order = count()
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when a deadline was set that is earlier than all others: the shell must look sooner."""

    def set(self, key: Hashable, deadline_ms: int, action: Action) -> None:
        """Sets or moves the deadline of `key`."""
        earliest = self.next_deadline_ms
        number = next(self._order)
        self._current[key] = (deadline_ms, number, action)
        heapq.heappush(self._heap, (deadline_ms, number, key))
        self._drop_stale()
        if earliest is None or deadline_ms < earliest:
            self.on_earlier()

    def cancel(self, key: Hashable) -> None:
        self._current.pop(key, None)
        self._drop_stale()

    def _drop_stale(self) -> None:
        """What was moved or cancelled stays in the heap; not for ever, if its time is far away."""
        if len(self._heap) > 2 * len(self._current) + _STALE_ENTRIES:
            self._heap = [(deadline_ms, number, key) for key, (deadline_ms, number, _) in self._current.items()]
            heapq.heapify(self._heap)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._current

    @property
    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline_ms, number, key = self._heap[0]
            current = self._current.get(key)
            if current is not None and current[1] == number:
                return deadline_ms
            heapq.heappop(self._heap)  # moved or cancelled
        return None

    def take_due(self, now_ms: int) -> Action | None:
        """One action whose time has come, earliest first; None when there is none."""
        deadline_ms = self.next_deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        return self._current.pop(key)[2]
