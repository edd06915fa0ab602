"""The table of a campaign: each fault with what clients felt of it, then the verdict of the checker."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from millstream.testing.history import History, Outcome, Report


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
        lines += [self._fault_row(fault) for fault in self.faults]
        lines += ["", f"errors of sends: {self.send_errors or 'none'}", str(self.report)]
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _fault_row(self, fault: Fault) -> str:
        during = [x for x in self.history.sends if fault.struck_at <= x.invoked_at < fault.over_at]
        counts = [sum(x.outcome is outcome for x in during) for outcome in Outcome]
        silence = f"{longest_silence(self.history, fault.struck_at, fault.over_at):.2f} s"
        back = f"{fault.in_sync_at - fault.healed_at:.1f} s" if fault.in_sync_at else "never"
        return _row(fault.name, len(during), *counts, silence, back, fault.detail)


def longest_silence(history: History, since: float, until: float) -> float:
    """The longest time in which no record of some partition was acknowledged: what a user calls an outage."""
    acked: dict[str, list[float]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.ACKED and send.finished_at is not None:
            acked[send.partition].append(send.finished_at)
    longest = 0.0
    for times in acked.values():
        times.sort()
        inside = [since, *times[bisect_left(times, since) : bisect_left(times, until)], until]
        longest = max(longest, *(later - earlier for earlier, later in pairwise(inside)))
    return longest


def _row(fault: str, *cells: object) -> str:
    *numbers, detail = cells
    return (
        f"{fault:<44}"
        + "".join(f"{cell!s:>{width}}" for cell, width in zip(numbers, _WIDTHS, strict=True))
        + f"  {detail}"
    )


_WIDTHS = (8, 8, 8, 9, 17, 9)
