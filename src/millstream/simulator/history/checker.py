"""Runs all checks on a history and makes a report."""

from collections import Counter

from millstream.common.lazy_dataclass import dataclass
from millstream.simulator.history import checks, transaction_checks
from millstream.simulator.history.evidence import Anomaly, Evidence, Kind
from millstream.simulator.history.operations import Fate, History, Outcome

_SHOWN_PER_KIND = 5


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of operations, and the anomalies found."""

    sends: int
    acked: int
    failed: int
    unknown: int
    unknown_seen: int
    """Sends of unknown outcome whose record is in the log."""
    polls: int
    records_read: int
    position_reads: int
    commits: int
    transactions: int
    fates: dict[Fate, int]
    """Transactions by their outcome, as known to their clients."""
    anomalies: tuple[Anomaly, ...]

    @property
    def clean(self) -> bool:
        return not self.anomalies

    def count(self, kind: Kind) -> int:
        return sum(each.kind is kind for each in self.anomalies)

    def __str__(self) -> str:
        lines = [
            f"{self.sends:,} sends: {self.acked:,} acked, {self.failed:,} failed, {self.unknown:,} unknown "
            f"({self.unknown_seen:,} of them in the log); {self.polls:,} polls with {self.records_read:,} records; "
            f"{self.position_reads:,} reads of positions; {self.commits:,} commits",
        ]
        if self.transactions:
            ended = ", ".join(f"{count:,} {fate}" for fate, count in self.fates.items())
            lines.append(f"{self.transactions:,} transactions: {ended}")
        lines.append(f"{len(self.anomalies):,} anomalies")
        shown: Counter[Kind] = Counter()
        for anomaly in self.anomalies:
            shown[anomaly.kind] += 1
            if shown[anomaly.kind] <= _SHOWN_PER_KIND:
                lines.append(f"  {anomaly}")
        for kind, count in shown.items():
            if count > _SHOWN_PER_KIND:
                lines.append(f"  … and {count - _SHOWN_PER_KIND:,} more {kind.name}")
        return "\n".join(lines)


def check(history: History, *, read_to_end: bool = True) -> Report:
    """Finds all anomalies in the history.

    `read_to_end`: a consumer has read every partition to its end, so an acknowledged record that was never read is an
    anomaly at any offset.
    """
    evidence = Evidence(history, read_to_end=read_to_end)
    found = [anomaly for each in (*checks.ALL, *transaction_checks.ALL) for anomaly in each(evidence)]
    if not read_to_end:
        found = [anomaly for anomaly in found if anomaly.kind is not Kind.UNSEEN_TAIL]
    outcomes = Counter(send.outcome for send in history.sends)
    fates = Counter(transaction.fate for transaction in history.transactions)
    polled = history.polls
    return Report(
        sends=len(history.sends),
        acked=outcomes[Outcome.ACKED],
        failed=outcomes[Outcome.FAILED],
        unknown=outcomes[Outcome.UNKNOWN],
        unknown_seen=sum(
            send.outcome is Outcome.UNKNOWN and send.value in evidence.partitions[send.partition].read_at
            for send in history.sends
        ),
        polls=len(polled),
        records_read=sum(len(poll.records) for poll in polled),
        position_reads=len(history.end_reads) + len(history.committed_reads),
        commits=len(history.commits),
        transactions=len(history.transactions),
        fates={fate: fates[fate] for fate in Fate if fates[fate]},
        anomalies=tuple(found),
    )
