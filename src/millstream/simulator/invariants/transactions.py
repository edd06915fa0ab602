"""Invariants of transactions: atomicity, isolation, last stable offsets, coordinator states, exactly-once output.

Clients report their requests and responses to the tracker. The outcome of a transaction is read from the committed
logs.
"""

from collections.abc import Callable, Container, Iterator

from millstream.formats.records.record import Record
from millstream.simulator.clients.transaction_tracker import At, Transaction, TransactionTracker
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
from millstream.simulator.invariants.observation import Batch, LogContent, Observation, ObservedReplica, PartitionKey
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
"""Valid state changes. With one epoch per transaction (version 2), an abort without records is also a decision."""


class TransactionLogs:
    """The transactions of all partitions, read from their logs."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionKey, PartitionTransactions] = {}

    def __iter__(self) -> Iterator[PartitionTransactions]:
        return iter(self._partitions.values())

    def of(self, key: PartitionKey) -> PartitionTransactions | None:
        return self._partitions.get(key)

    def take(self, seen: ObservedReplica, batch: Batch) -> Span | None:
        """Takes a committed batch. Returns the span that it ends, if it is a marker."""
        log = self._partitions.get(seen.key)
        if log is None:
            log = self._partitions[seen.key] = PartitionTransactions((seen.topic, seen.key.partition))
        return log.take(batch)


class TransactionsAreAtomic:
    """The markers of a transaction agree in all partitions, and with the requests and responses of its client. A marker
    ends one transaction. At the end, every record of a committed transaction is there once."""

    def __init__(self, tracker: TransactionTracker, logs: TransactionLogs) -> None:
        self._tracker = tracker
        self._logs = logs

    def ended(self, seen: ObservedReplica, span: Span) -> None:
        """Called for a committed marker."""
        if len(span.names) > 1:
            raise self._wrong(
                f"{seen.name} ends {' and '.join(span.names)} with one marker, at offset {span.end_offset}"
            )
        for name in span.names:
            transaction = self._tracker.transactions.get(name)
            if transaction is None:
                raise self._wrong(f"{seen.name} has an unknown transaction {name}")
            self._tracker.log_event(
                seen.name,
                f"{name} is {_outcome(span.committed)} (offset {span.first_offset}, marker {span.end_offset})",
            )
            self._tracker.decided(transaction, (seen.topic, seen.key.partition), bool(span.committed))

    def check(self, observation: Observation) -> None:
        for transaction in self._tracker.changed:
            self._check(transaction)

    def _check(self, transaction: Transaction) -> None:
        fates = transaction.fates
        if len(set(fates.values())) > 1:
            said = ", ".join(f"{_outcome(fate)} in {topic}-{number}" for (topic, number), fate in fates.items())
            raise self._wrong(f"{transaction} has different outcomes: {said}")
        for (topic, number), fate in fates.items():
            if fate and not transaction.commit_requested:
                raise self._wrong(f"{transaction} is committed in {topic}-{number}, but no commit was requested")
            if transaction.outcome is not None and transaction.outcome is not fate:
                raise self._wrong(
                    f"{transaction} is {_outcome(fate)} in {topic}-{number}, but for its client it is "
                    f"{_outcome(transaction.outcome)}"
                )

    def check_end(self) -> None:
        """Called when no transaction is open any more."""
        found: dict[str, At] = {}
        for log in self._logs:
            for span in log.ended:
                for identity in span.identities.values() if span.committed else ():
                    if identity in found and log.at[0] != OFFSETS_TOPIC:  # an offset may be written again
                        raise self._wrong(f"{identity} is committed twice, in {found[identity]} and {log.at}")
                    found[identity] = log.at
        for transaction in self._tracker.transactions.values():
            if not transaction.is_committed:
                continue
            expected = [*transaction.values, *([f"{transaction.name}#offset"] if transaction.takes else ())]
            if missing := [identity for identity in expected if identity not in found]:
                raise self._wrong(f"{transaction} is committed, but its records {missing} are missing")

    def _wrong(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


class NoAbortedRead:
    """read_committed consumers get no record of a transaction that is aborted or can still be aborted."""

    def __init__(self, tracker: TransactionTracker) -> None:
        self._tracker = tracker
        self.missed_its_end: Callable[[At, int], bool] = lambda at, offset: False
        """Whether a replica with this record never got the abort marker, a known limit (`invariants.compaction`)."""

    def check(self, observation: Observation) -> None:
        for transaction in self._tracker.changed:
            if transaction.read_by is None or (transaction.may_be_visible and not transaction.read_early):
                continue
            if not all(self.missed_its_end(*place) for place in transaction.read_at):
                when = "before its commit was requested" if transaction.read_early else "but it is aborted"
                raise Violation(type(self).__name__, f"{transaction} was read by {transaction.read_by}, {when}")


class LastStableOffsetIsCorrect:
    """The last stable offset of a leader does not decrease within its epoch, and is the first offset of the first
    undecided transaction.

    A transaction is decided when its marker is committed. A leader whose log was opened or truncated again does not
    know of all markers whether they are committed, as in Kafka; the decision was made before the marker was written.
    """

    def __init__(self, logs: TransactionLogs) -> None:
        self._logs = logs
        self._last: dict[tuple[int, int, PartitionKey, int], int] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.replicas:
            log = self._logs.of(seen.key) if seen.is_leader else None
            if log is None or seen.log is None:
                continue
            now = seen.last_stable_offset
            at = (seen.node_id, seen.life, seen.key, seen.leader_epoch)
            before = self._last.get(at, 0)
            if now < before:
                raise self._wrong(seen, f"decreased from {before} to {now}")
            self._last[at] = now
            unstable = log.first_unstable(seen.high_watermark)
            expected = seen.high_watermark if unstable is None else unstable
            if now < expected or (now > expected and now > self._latest(seen, seen.log, log)):
                raise self._wrong(
                    seen,
                    f"is {now}; the high watermark is {seen.high_watermark}, the first undecided offset {unstable}",
                )

    def _latest(self, seen: ObservedReplica, content: LogContent, log: PartitionTransactions) -> int:
        """The last stable offset if all markers in the leader's log count as committed."""
        tail = [batch.header for batch in content.batches(seen.high_watermark, content.end)]
        ended = {header.producer_id for header in tail if header.is_control}
        unstable = log.first_unstable(seen.high_watermark, but_of=ended)
        return seen.high_watermark if unstable is None else unstable

    def _wrong(self, seen: ObservedReplica, what: str) -> Violation:
        return Violation(
            type(self).__name__,
            f"the last stable offset of {seen.name} on node {seen.node_id}, epoch {seen.leader_epoch}, {what}",
        )


class TransactionStatesAreValid:
    """The state log of the transaction coordinators has only valid state changes, over all coordinators: a decision is
    carried out, and epochs only grow."""

    def __init__(self, tracker: TransactionTracker) -> None:
        self._tracker = tracker
        self._states: dict[bytes, tuple[str, int, int]] = {}

    def committed(self, seen: ObservedReplica, batch: Batch) -> None:
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
                self._tracker.log_event(seen.name, f"{name}: {state} (producer {producer_id}, epoch {epoch})")
            self._states[key] = state, producer_id, epoch

    def check(self, observation: Observation) -> None:
        """Nothing: violations are found when batches are committed."""

    def undecided(self) -> list[str]:
        return [
            f"{key[4:].decode(errors='replace')} is {state}"
            for key, (state, _, _) in self._states.items()
            if state not in ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
        ]

    def _wrong(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


class EachInputIsCopiedOnce:
    """Each input of the copying loop is in its committed output at most once."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.outputs: dict[int, str] = {}
        """By input offset: the position of the output."""

    def ended(self, seen: ObservedReplica, span: Span) -> None:
        for offset, record in span.records.items() if span.committed else ():
            if record.key != self._key or record.value is None:
                continue
            place = f"{seen.name} offset {offset}"
            known = self.outputs.setdefault(int(record.value), place)
            if known != place:
                raise Violation(
                    type(self).__name__, f"input {int(record.value)} is in the output twice: {known} and {place}"
                )

    def check(self, observation: Observation) -> None:
        """Nothing: violations are found when batches are committed."""


class OffsetsMatchOutput:
    """The committed offset of the copying loop matches its output: each transaction starts at the offset that the last
    one committed. At the end, all inputs before the offset are in the output, and none after it."""

    def __init__(self, tracker: TransactionTracker, outputs: EachInputIsCopiedOnce) -> None:
        self._tracker = tracker
        self._outputs = outputs
        self.offset = 0

    def ended(self, seen: ObservedReplica, span: Span) -> None:
        if seen.topic != OFFSETS_TOPIC or not span.committed:
            return
        for name in span.names:
            transaction = self._tracker.transactions.get(name)
            if transaction is None or transaction.takes is None:
                continue
            begin, end = transaction.takes
            if begin != self.offset:
                raise self._wrong(f"{transaction} read inputs from offset {begin}, but {self.offset} was committed")
            self.offset = end

    def check(self, observation: Observation) -> None:
        """Nothing: violations are found when batches are committed."""

    def check_end(self) -> None:
        outputs = set(self._outputs.outputs)
        if missing := sorted(set(range(self.offset)) - outputs):
            raise self._wrong(f"the group has offset {self.offset}, but inputs {missing} are not in the output")
        if extra := sorted(each for each in outputs if each >= self.offset):
            raise self._wrong(f"the group has offset {self.offset}, but inputs {extra} are already in the output")

    def _wrong(self, what: str) -> Violation:
        return Violation(type(self).__name__, what)


class TransactionsEnd:
    """After the faults, and when all clients have stopped, every transaction ends within a bounded time."""

    def __init__(self, logs: TransactionLogs, decisions: TransactionStatesAreValid) -> None:
        self._logs = logs
        self._decisions = decisions

    def check(self, observation: Observation) -> None:
        """Nothing: transactions may be open during the run."""

    def open_ones(self) -> list[str]:
        """The open transactions."""
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
    """All transaction invariants, fed with the committed batches."""

    def __init__(self, tracker: TransactionTracker, logs: CommittedLogs, loop_key: bytes) -> None:
        self._spans = TransactionLogs()
        self.whole = TransactionsAreAtomic(tracker, self._spans)
        self.decisions = TransactionStatesAreValid(tracker)
        self.once = EachInputIsCopiedOnce(loop_key)
        self.offsets = OffsetsMatchOutput(tracker, self.once)
        self.end = TransactionsEnd(self._spans, self.decisions)
        self.reads = NoAbortedRead(tracker)
        self.all: list[Invariant] = [
            self.whole,
            self.reads,
            LastStableOffsetIsCorrect(self._spans),
            self.decisions,
            self.once,
            self.offsets,
            self.end,
        ]
        logs.listeners.append(self._committed)

    @property
    def logs(self) -> TransactionLogs:
        return self._spans

    def _committed(self, seen: ObservedReplica, batch: Batch) -> None:
        """Called for each committed batch."""
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
        missed_its_end: Callable[[At, int], bool] = lambda at, offset: False,
    ) -> None:
        """A consumer that read everything got all committed records, or the last record of each key.

        `is_back`: whether the leader has a deleted record because it never got the tombstone. `missed_its_end`: whether
        a replica takes an aborted record for committed because it never got the marker; it may supersede others."""
        for log in self._spans:
            if log.at not in seen:
                continue
            expected: dict[int, Record] = {}
            for span in log.ended:
                expected.update(span.records if span.committed else {})
            got = seen[log.at]
            if log.at[0] in cleaned:
                wrong = {got[each].key for each in got if missed_its_end(log.at, each)}
                expected = {each: expected[each] for each in expected if expected[each].key not in wrong}
                got = {each: got[each] for each in got if got[each].key not in wrong}
                expected, got = _last_of_each_key(expected), _last_of_each_key(got)
                keys = {record.key for record in expected.values()}
                got = {each: got[each] for each in got if got[each].key in keys or not is_back(log.at, got[each])}
            if expected != got:
                offset = min(each for each in {*expected, *got} if expected.get(each) != got.get(each))
                raise Violation(
                    type(self.whole).__name__,
                    f"{log.at[0]}-{log.at[1]} has {expected.get(offset)} at {offset}, but a read_committed consumer "
                    f"got {got.get(offset)}",
                )

    def check_end(self) -> None:
        """Called when no transaction is open any more."""
        self.end.check_end()
        self.whole.check_end()
        self.offsets.check_end()


def _last_of_each_key(records: dict[int, Record]) -> dict[int, Record]:
    last = {records[offset].key: records[offset] for offset in sorted(records)}
    return {record.offset: record for record in last.values() if record.value is not None}


def _outcome(committed: bool | None) -> str:
    return "committed" if committed else "aborted"
