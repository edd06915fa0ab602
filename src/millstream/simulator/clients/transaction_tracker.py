"""Tracks every transaction of a run: requests and responses of its client, its markers in the logs, and its readers.

All records of a transaction carry its name. Without a response to a commit request the outcome is unknown; without a
commit request the records must never be visible.
"""

from collections.abc import Callable
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.records.record import Record


@dataclass(slots=True)
class Claim:
    """One InitProducerId request of a client."""

    by: str
    responded_at: float | None = None


class Claims:
    """InitProducerId requests by transactional id: a producer may be fenced only if another client requested its id.

    A request without a response may still be executed later, so it counts until the end of the run.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, list[Claim]] = {}

    def claim(self, transactional_id: str, by: str) -> Claim:
        """Called before a client requests the id."""
        made = Claim(by)
        self._by_id.setdefault(transactional_id, []).append(made)
        return made

    def may_have_changed(self, transactional_id: str, by: str, since: float) -> bool:
        """Whether another request may have taken the id from the client that got it at `since`."""
        return any(
            each.responded_at is None or (each.by != by and each.responded_at >= since)
            for each in self._by_id.get(transactional_id, ())
        )


NAME_HEADER = "transaction"
"""The record header with the record's identity: the name of its transaction and its number in it."""
At = tuple[str, int]
"""A topic and a partition."""


@dataclass(slots=True)
class Transaction:
    name: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    values: dict[str, At] = field(default_factory=dict)
    """Partitions of its records, by identity. All were acknowledged before the commit request."""
    takes: tuple[int, int] | None = None
    """Of a copying loop: its inputs, from the first offset to before the second."""
    commit_requested: bool = False
    outcome: bool | None = None
    """True: the commit was acknowledged. False: it is aborted, or only an abort was requested."""
    fates: dict[At, bool] = field(default_factory=dict)
    """By partition: whether its marker is a commit."""
    read_by: str | None = None
    """A read_committed consumer that got a record of it, and the record."""
    read_at: set[tuple[At, int]] = field(default_factory=set)
    """Where its records were read: partition and offset."""
    read_early: bool = False
    """Whether that was before the commit could have happened."""

    @property
    def may_be_visible(self) -> bool:
        return self.commit_requested and self.outcome is not False and False not in self.fates.values()

    @property
    def is_committed(self) -> bool:
        """Whether the commit was acknowledged or a commit marker was seen."""
        return self.outcome is True or True in self.fates.values()

    def __str__(self) -> str:
        return f"transaction {self.name} (producer {self.producer_id}, epoch {self.producer_epoch})"


class TransactionTracker:
    def __init__(self, *, log_event: Callable[[str, str], None]) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.log_event = log_event
        self.changed: list[Transaction] = []
        """Transactions that changed since the last check."""
        self.claims = Claims()
        self.committed = self.aborted = self.fenced = 0
        """Counts of acknowledged ends."""
        self.committed_at: dict[str, float] = {}
        """By transactional id: time of the last acknowledged commit."""
        self.loop_offset = 0
        """The acknowledged input offset of the copying loop."""

    def begin(self, name: str, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        made = Transaction(name, transactional_id, producer_id, epoch)
        self.transactions[name] = made
        return made

    def of(self, identity: str) -> Transaction | None:
        """The transaction of a record, by the record's identity."""
        return self.transactions.get(name_of(identity))

    def will_abort(self, transaction: Transaction) -> None:
        """Its client will not request a commit, or got a final error."""
        transaction.outcome = False
        self.changed.append(transaction)

    def ended(self, transaction: Transaction, committed: bool, now: float) -> None:
        """Its end was acknowledged."""
        transaction.outcome = committed
        self.changed.append(transaction)
        if not committed:
            self.aborted += 1
            return
        self.committed += 1
        self.committed_at[transaction.transactional_id] = now
        if transaction.takes is not None:
            self.loop_offset = max(self.loop_offset, transaction.takes[1])

    def note_read(self, transaction: Transaction, reader: str, identity: str, at: At, offset: int) -> None:
        """A read_committed consumer got a record of it."""
        transaction.read_by = f"{reader} at {at[0]}-{at[1]} offset {offset} ({identity})"
        transaction.read_at.add((at, offset))
        transaction.read_early = transaction.read_early or not transaction.may_be_visible
        self.changed.append(transaction)

    def decided(self, transaction: Transaction, at: At, committed: bool) -> None:
        """Its marker is committed in a partition."""
        transaction.fates[at] = committed
        self.changed.append(transaction)


def known_by(record: Record) -> str | None:
    """The identity of a transactional record."""
    for name, value in record.headers:
        if name == NAME_HEADER and value is not None:
            return value.decode()
    return None


def name_of(identity: str) -> str:
    return identity.partition("#")[0]
