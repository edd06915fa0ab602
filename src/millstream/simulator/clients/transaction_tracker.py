"""What is known of every transaction of a run: what its client asked for and was told, what readers were given, and
what the logs say became of it.

A transaction is known by a name that all its records carry. Whoever asked to commit and got no answer does not know the
outcome; whoever never asked knows that nobody may see it.

Which clients have asked for a transactional id, and when: a producer may be fenced only if another one asked for it.

A request without a response may still be carried out later, so it counts until the end of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.formats.records.record import Record


@dataclass(slots=True)
class Claim:
    """One InitProducerId request."""

    by: str
    answered_at: float | None = None


class Claims:
    def __init__(self) -> None:
        self._by_id: dict[str, list[Claim]] = {}

    def claim(self, transactional_id: str, by: str) -> Claim:
        """A client is about to ask for the id."""
        made = Claim(by)
        self._by_id.setdefault(transactional_id, []).append(made)
        return made

    def may_have_changed(self, transactional_id: str, by: str, since: float) -> bool:
        """Whether a request may have taken the id from the client that has had it since then."""
        return any(
            each.answered_at is None or (each.by != by and each.answered_at >= since)
            for each in self._by_id.get(transactional_id, ())
        )


NAME_HEADER = "transaction"
"""The header of a record that says what it is known by: its transaction's name, and its number there."""
At = tuple[str, int]
"""A topic and a partition."""


@dataclass(slots=True)
class Transaction:
    name: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    values: dict[str, At] = field(default_factory=dict)
    """Records that were sent, by what they are known by; all of them were acknowledged before the commit was asked."""
    takes: tuple[int, int] | None = None
    """Of a loop: it takes the inputs from the first offset up to, but not including, the second."""
    asked_to_commit: bool = False
    answer: bool | None = None
    """True: the client was told that it is committed; False: that it is aborted, or it asked for nothing else."""
    fates: dict[At, bool] = field(default_factory=dict)
    """By partition: whether the marker in its log says committed."""
    given_to: str | None = None
    """Who was given a record of it, when reading what is committed, and which."""
    given_early: bool = False
    """Whether that was at a time when nobody could know it to be committed."""

    @property
    def may_be_seen(self) -> bool:
        return self.asked_to_commit and self.answer is not False and False not in self.fates.values()

    @property
    def is_committed(self) -> bool:
        """As far as anybody knows by now."""
        return self.answer is True or True in self.fates.values()

    def __str__(self) -> str:
        return f"transaction {self.name} (producer {self.producer_id}, epoch {self.producer_epoch})"


class TransactionBook:
    def __init__(self, *, tell: Callable[[str, str], None]) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.tell = tell
        self.changed: list[Transaction] = []
        """Those of which more is known since somebody looked."""
        self.claims = Claims()
        self.committed = self.aborted = self.fenced = 0
        """What clients were told, counted."""
        self.committed_at: dict[str, float] = {}
        """By transactional id: when a commit was acknowledged last."""
        self.loop_offset = 0
        """How far the loop's inputs are taken, as far as somebody was told."""

    def begin(self, name: str, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        made = Transaction(name, transactional_id, producer_id, epoch)
        self.transactions[name] = made
        return made

    def of(self, identity: str) -> Transaction | None:
        """The transaction of a record."""
        return self.transactions.get(name_of(identity))

    def will_abort(self, transaction: Transaction) -> None:
        """Its client will not ask to commit it, or was refused for good."""
        transaction.answer = False
        self.changed.append(transaction)

    def answered(self, transaction: Transaction, committed: bool, now: float) -> None:
        """Its client was told that it is over."""
        transaction.answer = committed
        self.changed.append(transaction)
        if not committed:
            self.aborted += 1
            return
        self.committed += 1
        self.committed_at[transaction.transactional_id] = now
        if transaction.takes is not None:
            self.loop_offset = max(self.loop_offset, transaction.takes[1])

    def given(self, transaction: Transaction, reader: str, identity: str) -> None:
        """Somebody who reads what is committed got a record of it."""
        transaction.given_to = f"{reader} ({identity})"
        transaction.given_early = transaction.given_early or not transaction.may_be_seen
        self.changed.append(transaction)

    def decided(self, transaction: Transaction, at: At, committed: bool) -> None:
        """A marker is committed in a log."""
        transaction.fates[at] = committed
        self.changed.append(transaction)


def known_by(record: Record) -> str | None:
    """What a record of a transaction is known by."""
    for name, value in record.headers:
        if name == NAME_HEADER and value is not None:
            return value.decode()
    return None


def name_of(identity: str) -> str:
    return identity.partition("#")[0]
