"""All that is known about one partition, from every client, side by side; made once and read by all checks."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream.testing.history.operations import Assigned, History, Outcome, Poll, Send, Value


@dataclass(slots=True)
class PartitionEvidence:
    """What acknowledgements and polls say about a partition."""

    name: str
    sends: dict[Value, Send] = field(default_factory=dict)
    values_at: dict[int, set[Value]] = field(default_factory=lambda: defaultdict(set))
    """By offset: the values that acknowledgements and polls put there; more than one is a contradiction."""
    read_at: dict[Value, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By value: the offsets at which consumers got it."""
    highest_read: int = -1

    def offset_of(self, send: Send) -> int | None:
        """Where the record is, as it was read or else acknowledged; None when nobody knows."""
        read = self.read_at.get(send.value)
        return min(read) if read else send.offset


@dataclass(slots=True)
class ConsumerRun:
    """What a consumer read of one partition from one assignment to the next."""

    consumer: str
    group: str | None
    partition: str
    position: int | None
    offsets: list[int] = field(default_factory=list)


class RisingBound:
    """The highest value known by each moment."""

    def __init__(self, points: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []
        for at, value in sorted(points):
            if not self._highest or value > self._highest[-1]:
                self._times.append(at)
                self._highest.append(value)

    def before(self, moment: float) -> int | None:
        """The highest known strictly before then."""
        at = bisect_left(self._times, moment)
        return self._highest[at - 1] if at else None


class Evidence:
    """A history, arranged."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.partitions: dict[str, PartitionEvidence] = {}
        self.runs: list[ConsumerRun] = []
        for send in history.sends:
            here = self.partition(send.partition)
            here.sends[send.value] = send
            if send.outcome is Outcome.ACKED and send.offset is not None:
                here.values_at[send.offset].add(send.value)
        self._read(history.reading)

    def partition(self, name: str) -> PartitionEvidence:
        found = self.partitions.get(name)
        if found is None:
            found = self.partitions[name] = PartitionEvidence(name)
        return found

    def stale_allowed(self, begun: float, ended: float) -> bool:
        return any(begun <= each.until and each.since <= ended for each in self.history.stale_allowed)

    def _read(self, reading: Iterable[Poll | Assigned]) -> None:
        open_runs: dict[str, dict[str, ConsumerRun]] = defaultdict(dict)
        groups: dict[str, str | None] = {}
        for each in reading:
            runs = open_runs[each.consumer]
            if isinstance(each, Assigned):
                groups[each.consumer] = each.group
                runs.clear()
                for name, position in each.positions.items():
                    runs[name] = self._begin(each.consumer, each.group, name, position)
                continue
            for seen in each.records:
                name, offset, value = seen
                here = self.partition(name)
                here.values_at[offset].add(value)
                here.read_at[value].add(offset)
                here.highest_read = max(here.highest_read, offset)
                run = runs.get(name)
                if run is None:
                    run = runs[name] = self._begin(each.consumer, groups.get(each.consumer), name, None)
                run.offsets.append(offset)

    def _begin(self, consumer: str, group: str | None, partition: str, position: int | None) -> ConsumerRun:
        run = ConsumerRun(consumer, group, partition, position)
        self.runs.append(run)
        return run


def missing_between(known: list[int], first: int, last: int) -> list[int]:
    """Those of the sorted `known` offsets that lie strictly between the two."""
    return known[bisect_right(known, first) : bisect_left(known, last)]
