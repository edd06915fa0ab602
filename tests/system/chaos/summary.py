"""The table of a campaign: each fault with what clients felt of it, then the verdict of the checker."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from millstream.simulator.history import History, Outcome, Report


@dataclass(slots=True)
class Fault:
    """One strike of a nemesis, on the history's clock."""

    name: str
    detail: str
    struck_at: float
    healed_at: float = 0.0
    in_sync_at: float = 0.0
    over_at: float = 0.0
    """The next strike, or the end."""
    victims: frozenset[str] = frozenset()
    """The addresses of the nodes that were struck."""


@dataclass(slots=True)
class Summary:
    """What came of a campaign."""

    title: str
    faults: list[Fault]
    history: History
    report: Report
    send_errors: str
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.report.clean and not self.problems

    def __str__(self) -> str:
        lines = [self.title, "", _row("fault", "sends", "acked", "failed", "unknown", "longest silence", "in sync", "")]
        acked = acknowledged_times(self.history)
        silences = [longest_silence(acked, fault.struck_at, fault.over_at) for fault in self.faults]
        lines += map(self._fault_row, self.faults, silences)
        lines += ["", f"errors of sends: {self.send_errors or 'none'}", str(self.report)]
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        lines += ["", *self._by_kind(silences), "", self.verdict]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """The last line."""
        faults = f"{len(self.faults)} faults of {len({fault.name for fault in self.faults})} kinds"
        if self.clean:
            return f"VERDICT: clean. {faults}, {self.report.acked:,} acknowledged records, no anomaly, no problem."
        return f"VERDICT: NOT CLEAN. {faults}: {len(self.report.anomalies)} anomalies, {len(self.problems)} problems."

    def _by_kind(self, silences: list[float]) -> list[str]:
        """For each kind of fault how often it struck, and how long some partition was without acknowledgements."""
        of_kind: dict[str, list[float]] = defaultdict(list)
        for fault, silence in zip(self.faults, silences, strict=True):
            of_kind[fault.name].append(silence)
        lines = [f"{'time without acknowledgements, by fault':<48}{'times':>6}{'median':>11}{'longest':>11}"]
        lines += [
            f"{name:<48}{len(found):>6}{median(found):>9.2f} s{max(found):>9.2f} s"
            for name, found in sorted(of_kind.items())
        ]
        return lines

    def _fault_row(self, fault: Fault, silence: float) -> str:
        during = [x for x in self.history.sends if fault.struck_at <= x.invoked_at < fault.over_at]
        counts = [sum(x.outcome is outcome for x in during) for outcome in Outcome]
        back = f"{fault.in_sync_at - fault.healed_at:.1f} s" if fault.in_sync_at else "never"
        return _row(fault.name, len(during), *counts, f"{silence:.2f} s", back, fault.detail)


@dataclass(frozen=True, slots=True)
class EndedLogin:
    """A connection that ended during a login, which librdkafka reports as a failed login."""

    at: float
    client: str
    text: str
    """Of librdkafka: it begins with the address of the node."""

    def is_explained_by(self, fault: Fault) -> bool:
        """A node that is struck ends its connections. A node that is well ends none."""
        return fault.struck_at <= self.at <= fault.over_at and any(f"//{each}/" in self.text for each in fault.victims)


def unexplained(logins: list[EndedLogin], faults: list[Fault]) -> list[str]:
    """The ended logins that belong to no fault of their node, as problems."""
    return [
        f"{login.client} was refused at {login.at:.1f} s, by a node that was well: {login.text}"
        for login in logins
        if not any(login.is_explained_by(fault) for fault in faults)
    ]


def acknowledged_times(history: History) -> list[list[float]]:
    """For each partition the times of its acknowledgements, in order; found once, since there may be millions."""
    acked: dict[str, list[float]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.ACKED and send.finished_at is not None:
            acked[send.partition].append(send.finished_at)
    return [sorted(times) for times in acked.values()]


def longest_silence(acked: list[list[float]], since: float, until: float) -> float:
    """The longest time in which no record of some partition was acknowledged: what a user calls an outage."""
    longest = 0.0
    for times in acked:
        inside = [since, *times[bisect_left(times, since) : bisect_left(times, until)], until]
        longest = max(longest, *(later - earlier for earlier, later in pairwise(inside)))
    return longest


def _row(fault: str, *cells: object) -> str:
    *numbers, detail = cells
    return (
        f"{fault:<48}"
        + "".join(f"{cell!s:>{width}}" for cell, width in zip(numbers, _WIDTHS, strict=True))
        + f"  {detail}"
    )


_WIDTHS = (8, 8, 8, 9, 17, 9)
