"""What must hold of transactions, whatever happens: one object for each.

Clients tell what they know by way of the book of transactions; what became of them is read from the committed part of
the logs, without asking any broker.
"""

from collections.abc import Callable, Container, Iterator

from millstream.formats.records.record import Record
from millstream.simulator.clients.transaction_tracker import At, Transaction, TransactionBook
from millstream.simulator.invariants.cluster import Invariant
from millstream.simulator.invariants.logs import (
    OFFSETS_TOPIC,
    STATE_TOPIC,
    STATE_VALUE,
    STATES,
    CommittedLogs,
    PartitionTransactions,
    Span,
)
from millstream.simulator.invariants.observation import Batch, LogContent, PartitionKey, ReplicaSight, Sight
from millstream.simulator.results import Violation

_MAY_FOLLOW = {
    "Empty": {"Empty", "Ongoing", "PrepareAbort", "Dead"},
    "Ongoing": {"Ongoing", "PrepareCommit", "PrepareAbort"},
    "PrepareCommit": {"PrepareCommit", "CompleteCommit"},
    "PrepareAbort": {"PrepareAbort", "CompleteAbort"},
    "CompleteCommit": {"CompleteCommit", "Empty", "Ongoing", "PrepareAbort", "Dead"},
    "CompleteAbort": {"CompleteAbort", "Empty", "Ongoing", "PrepareAbort", "Dead"},
    "Dead": {"Dead"},
}
"""In the log of a coordinator. An abort of nothing is a decision too where every transaction has its own epoch."""


class TransactionLogs:
    """The transactions of all partitions, as their logs have them."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, PartitionTransactions] = {}

    def __iter__(self) -> Iterator[PartitionTransactions]:
        return iter(self._partitions.values())

    def of(self, key: PartitionKey) -> PartitionTransactions | None:
        return self._partitions.get(key)

    def take(self, seen: ReplicaSight, batch: Batch) -> Span | None:
        """A batch that is committed; returns what it ends, if it is a marker."""
        log = self._partitions.get(seen.key)
        if log is None:
            log = self._partitions[seen.key] = PartitionTransactions((seen.topic, seen.key.partition))
        return log.take(batch)


class TransactionsAreWhole:
    """The markers of a transaction say the same in all partitions, and what its client asked for and was told. One
    marker ends the records of one transaction. At the end, of what is committed every record is there, once."""

    def __init__(self, book: TransactionBook, logs: TransactionLogs) -> None:
        self._book = book
        self._logs = logs

    def ended(self, seen: ReplicaSight, span: Span) -> None:
        """A marker is committed."""
        if len(span.names) > 1:
            raise self._wrong(f"{seen.name} ends {' and '.join(span.names)} with one marker, at {span.end_offset}")
        for name in span.names:
            transaction = self._book.transactions.get(name)
            if transaction is None:
                raise self._wrong(f"{seen.name} has a transaction {name} that nobody began")
            self._book.tell(
                seen.name,
                f"{name} is {_outcome(span.committed)} (offset {span.first_offset}, marker {span.end_offset})",
            )
            self._book.decided(transaction, (seen.topic, seen.key.partition), bool(span.committed))

    def check(self, sight: Sight) -> None:
        for transaction in self._book.changed:
            self._check(transaction)

    def _check(self, transaction: Transaction) -> None:
        fates = transaction.fates
        if len(set(fates.values())) > 1:
            said = ", ".join(f"{_outcome(fate)} in {topic}-{number}" for (topic, number), fate in fates.items())
            raise self._wrong(f"{transaction} is torn: {said}")
        for (topic, number), fate in fates.items():
            if fate and not transaction.asked_to_commit:
                raise self._wrong(f"{transaction} is committed in {topic}-{number}, and nobody asked for that")
            if transaction.answer is not None and transaction.answer is not fate:
                raise self._wrong(
                    f"{transaction} is {_outcome(fate)} in {topic}-{number}, and its client knows it to be "
                    f"{_outcome(transaction.answer)}"
                )

    def check_end(self) -> None:
        """When nothing is under way any more."""
        found: dict[str, At] = {}
        for log in self._logs:
            for span in log.ended:
                for identity in span.identities.values() if span.committed else ():
                    if identity in found and log.at[0] != OFFSETS_TOPIC:  # an offset may be written again
                        raise self._wrong(f"{identity} is committed twice, in {found[identity]} and {log.at}")
                    found[identity] = log.at
        for transaction in self._book.transactions.values():
            if not transaction.is_committed:
                continue
            expected = [*transaction.values, *([f"{transaction.name}#offset"] if transaction.takes else ())]
            if missing := [identity for identity in expected if identity not in found]:
                raise self._wrong(f"{transaction} is committed, and of its records {missing} are not there")

    def _wrong(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


class NoAbortedRead:
    """Who reads what is committed gets no record of a transaction that is aborted, or may yet be."""

    def __init__(self, book: TransactionBook) -> None:
        self._book = book

    def check(self, sight: Sight) -> None:
        for transaction in self._book.changed:
            if transaction.given_to is not None and (transaction.given_early or not transaction.may_be_seen):
                when = "before anybody asked to commit it" if transaction.given_early else "and it is aborted"
                raise Violation(type(self).__name__, f"{transaction} was given to {transaction.given_to}, {when}")


class LastStableOffsetsHold:
    """The last stable offset of a leader does not go back within its epoch, is never behind an undecided transaction,
    and is not before one that is decided either.

    Decided is what has a marker that is committed. A leader whose log was opened or cut anew does not remember of all
    markers in it whether they are committed, here as in Kafka; what they say was decided before they were written.
    """

    def __init__(self, logs: TransactionLogs) -> None:
        self._logs = logs
        self._last: dict[tuple[int, int, PartitionKey, int], int] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.replicas:
            log = self._logs.of(seen.key) if seen.is_leader else None
            if log is None or seen.log is None:
                continue
            now = seen.last_stable_offset
            at = (seen.node_id, seen.life, seen.key, seen.leader_epoch)
            before = self._last.get(at, 0)
            if now < before:
                raise self._wrong(seen, f"went back from {before} to {now}")
            self._last[at] = now
            unstable = log.first_unstable(seen.high_watermark)
            expected = seen.high_watermark if unstable is None else unstable
            if now < expected or (now > expected and now > self._latest(seen, seen.log, log)):
                raise self._wrong(
                    seen, f"is {now}, with {seen.high_watermark} committed and {unstable} the first undecided offset"
                )

    def _latest(self, seen: ReplicaSight, content: LogContent, log: PartitionTransactions) -> int:
        """How far it may be if all markers count that are in the leader's log."""
        tail = [batch.header for batch in content.batches(seen.high_watermark, content.end)]
        ended = {header.producer_id for header in tail if header.is_control}
        unstable = log.first_unstable(seen.high_watermark, but_of=ended)
        return seen.high_watermark if unstable is None else unstable

    def _wrong(self, seen: ReplicaSight, what: str) -> Violation:
        return Violation(
            type(self).__name__,
            f"the last stable offset of {seen.name} on node {seen.node_id}, epoch {seen.leader_epoch}, {what}",
        )


class DecisionsStay:
    """The log of the transaction coordinators goes from state to state as transactions do, whoever coordinates: what
    was decided once is what is done in the end, and epochs only grow."""

    def __init__(self, book: TransactionBook) -> None:
        self._book = book
        self._states: dict[bytes, tuple[str, int, int]] = {}

    def committed(self, seen: ReplicaSight, batch: Batch) -> None:
        if seen.topic != STATE_TOPIC:
            return
        for record in batch.records:
            key, value = record.key or b"", record.value
            name = key[4:].decode(errors="replace")
            if value is None:
                self._states.pop(key, None)
                continue
            _, producer_id, epoch, _, number = STATE_VALUE.unpack_from(value)
            state = STATES[number]
            before = self._states.get(key)
            if before is not None:
                was, former_id, former_epoch = before
                if state not in _MAY_FOLLOW[was]:
                    raise self._wrong(f"{name} went from {was} to {state} (producer {producer_id}, epoch {epoch})")
                if producer_id == former_id and epoch < former_epoch:
                    raise self._wrong(f"{name} went from epoch {former_epoch} to {epoch} of producer {producer_id}")
            if before is None or before != (state, producer_id, epoch):
                self._book.tell(seen.name, f"{name}: {state} (producer {producer_id}, epoch {epoch})")
            self._states[key] = state, producer_id, epoch

    def check(self, sight: Sight) -> None:
        """All is said when it is written."""

    def undecided(self) -> list[str]:
        return [
            f"{key[4:].decode(errors='replace')} is {state}"
            for key, (state, _, _) in self._states.items()
            if state not in ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
        ]

    def _wrong(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


class EachInputOnce:
    """A loop that consumes, transforms and produces has each input in its committed output once."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.outputs: dict[int, str] = {}
        """By the offset of the input: where its output is."""

    def ended(self, seen: ReplicaSight, span: Span) -> None:
        for offset, record in span.records.items() if span.committed else ():
            if record.key != self._key or record.value is None:
                continue
            place = f"{seen.name} offset {offset}"
            known = self.outputs.setdefault(int(record.value), place)
            if known != place:
                raise Violation(
                    type(self).__name__, f"input {int(record.value)} is in the output twice: at {known} and {place}"
                )

    def check(self, sight: Sight) -> None:
        """All is said when it is written."""


class OffsetsAgreeWithOutput:
    """A loop's group is where its output ends: each transaction goes on from the offset that the last one committed,
    and at the end all inputs before it are in the output and none behind it."""

    def __init__(self, book: TransactionBook, outputs: EachInputOnce) -> None:
        self._book = book
        self._outputs = outputs
        self.offset = 0

    def ended(self, seen: ReplicaSight, span: Span) -> None:
        if seen.topic != OFFSETS_TOPIC or not span.committed:
            return
        for name in span.names:
            transaction = self._book.transactions.get(name)
            if transaction is None or transaction.takes is None:
                continue
            begin, end = transaction.takes
            if begin != self.offset:
                raise self._wrong(f"{transaction} took the inputs from {begin} on, and {self.offset} was committed")
            self.offset = end

    def check(self, sight: Sight) -> None:
        """All is said when it is written."""

    def check_end(self) -> None:
        outputs = set(self._outputs.outputs)
        if missing := sorted(set(range(self.offset)) - outputs):
            raise self._wrong(f"the group is at {self.offset}, and inputs {missing} are not in the output")
        if extra := sorted(each for each in outputs if each >= self.offset):
            raise self._wrong(f"the group is at {self.offset}, and inputs {extra} are in the output already")

    def _wrong(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


class TransactionsEnd:
    """When the faults are over and nobody goes on, every transaction is ended within a bounded time."""

    def __init__(self, logs: TransactionLogs, decisions: DecisionsStay) -> None:
        self._logs = logs
        self._decisions = decisions

    def check(self, sight: Sight) -> None:
        """Anything may be open while things go on."""

    def open_ones(self) -> list[str]:
        """What is open now."""
        spans = [
            f"{log.at[0]}-{log.at[1]} has {', '.join(span.names)} of producer {span.producer_id}, epoch "
            f"{span.producer_epoch}, open since offset {span.first_offset}"
            for log in self._logs
            for span in log.open.values()
        ]
        return spans + self._decisions.undecided()

    def check_end(self) -> None:
        if still := self.open_ones():
            raise Violation(type(self).__name__, "; ".join(still))


class TransactionInvariants:
    """All of them, fed from the committed logs."""

    def __init__(self, book: TransactionBook, logs: CommittedLogs, loop_key: bytes) -> None:
        self._spans = TransactionLogs()
        self.whole = TransactionsAreWhole(book, self._spans)
        self.decisions = DecisionsStay(book)
        self.once = EachInputOnce(loop_key)
        self.offsets = OffsetsAgreeWithOutput(book, self.once)
        self.end = TransactionsEnd(self._spans, self.decisions)
        self.all: list[Invariant] = [
            self.whole,
            NoAbortedRead(book),
            LastStableOffsetsHold(self._spans),
            self.decisions,
            self.once,
            self.offsets,
            self.end,
        ]
        logs.listeners.append(self._committed)

    @property
    def logs(self) -> TransactionLogs:
        return self._spans

    def _committed(self, seen: ReplicaSight, batch: Batch) -> None:
        """A batch of some log is committed."""
        span = self._spans.take(seen, batch)
        if span is not None:
            self.whole.ended(seen, span)
            self.once.ended(seen, span)
            self.offsets.ended(seen, span)
        self.decisions.committed(seen, batch)

    def check_read(
        self,
        seen: dict[At, dict[int, Record]],
        cleaned: Container[str],
        is_back: Callable[[At, Record], bool] = lambda at, record: False,
    ) -> None:
        """Who read everything from the beginning got what the logs say is committed: all, or the last of each key.

        `is_back` says of a record whose key is gone whether the leader is one that never heard of that."""
        for log in self._spans:
            if log.at not in seen:
                continue
            expected: dict[int, Record] = {}
            for span in log.ended:
                expected.update(span.records if span.committed else {})
            got = seen[log.at]
            if log.at[0] in cleaned:
                expected, got = _last_of_each_key(expected), _last_of_each_key(got)
                keys = {record.key for record in expected.values()}
                got = {each: got[each] for each in got if got[each].key in keys or not is_back(log.at, got[each])}
            if expected != got:
                offset = min(each for each in {*expected, *got} if expected.get(each) != got.get(each))
                raise Violation(
                    type(self.whole).__name__,
                    f"{log.at[0]}-{log.at[1]} has {expected.get(offset)} at {offset}, and who reads what is committed "
                    f"gets {got.get(offset)}",
                )

    def check_end(self) -> None:
        """When nothing is under way any more."""
        self.end.check_end()
        self.whole.check_end()
        self.offsets.check_end()


def _last_of_each_key(records: dict[int, Record]) -> dict[int, Record]:
    last = {records[offset].key: records[offset] for offset in sorted(records)}
    return {record.offset: record for record in last.values() if record.value is not None}


def _outcome(committed: bool | None) -> str:
    return "committed" if committed else "aborted"
