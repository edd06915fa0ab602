"""What an operation of a coordinator gives back: records to write, and an answer that is due now or later."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

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
