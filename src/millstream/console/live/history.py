"""Throughput, latency and lag over time, as long as somebody watches; what charts are drawn from."""

from collections import deque
from collections.abc import Mapping

from millstream.console.live.series import Series
from millstream.console.live.snapshot import Snapshot, Topic
from millstream.raw_client import TopicPartition

_RATE_OVER_S = 5.0
_PACE_OVER_S = 20.0
"""Commits come in steps, those of Spark's batches in large ones."""
_MOST_GROUPS = 2000


class History:
    def __init__(self) -> None:
        self.records_in = Series()
        self.bytes_in = Series()
        self.bytes_out = Series()
        self.produce_p99_ms = Series()
        self.produce_p50_ms = Series()
        self.topics: dict[str, Series] = {}
        """Records per second into each topic."""
        self.lags: dict[str, Series] = {}
        """Of each group."""
        self.paces: dict[str, float] = {}
        """Records per second that each group commits, over the last seconds."""
        self.moved_at: dict[str, float] = {}
        """When a group was last seen to have moved on."""
        self._read: dict[str, deque[tuple[float, int]]] = {}
        self._ends: deque[tuple[float, Mapping[str, int]]] = deque()
        self._known: dict[TopicPartition, int] = {}

    def note_ends(self, now: float, ends: Mapping[TopicPartition, int], topics: Mapping[str, Topic]) -> None:
        """A partition whose leader is silent keeps the end it had: it takes no records either."""
        self._known.update(ends)
        totals: dict[str, int] = {}
        for topic in topics.values():
            known = [self._known[each.place] for each in topic.partitions if each.place in self._known]
            if len(known) == len(topic.partitions):  # or else the rest, once known, would look like a burst
                totals[topic.name] = sum(known)
        for place in [place for place in self._known if place.topic not in topics]:
            del self._known[place]
        self._ends.append((now, totals))
        while len(self._ends) > 2 and self._ends[1][0] <= now - _RATE_OVER_S:
            self._ends.popleft()

    def rates(self, now: float) -> dict[str, float]:
        """Records per second over the last few seconds; a topic made anew begins at nothing."""
        if len(self._ends) < 2:
            return {}
        then, before = self._ends[0]
        _, after = self._ends[-1]
        span = now - then
        if span <= 0:
            return {}
        return {name: max(0.0, (total - before[name]) / span) for name, total in after.items() if name in before}

    def note(self, snapshot: Snapshot) -> None:
        at = snapshot.at
        if snapshot.trouble is None and len(self._ends) > 1:
            self.records_in.add(at, sum(self._last_rates().values()))
        for number in ("bytes_in", "bytes_out"):
            known = [each[number] for each in snapshot.metrics.values() if number in each]
            if known:
                getattr(self, number).add(at, sum(known))
        for number in ("produce_p50_ms", "produce_p99_ms"):
            known = [each[number] for each in snapshot.metrics.values() if number in each]
            if known:
                getattr(self, number).add(at, max(known))
        for name, rate in snapshot.rates.items():
            self.topics.setdefault(name, Series(300)).add(at, rate)
        for name in self.topics.keys() - snapshot.topics.keys():
            del self.topics[name]
        for name, group in snapshot.groups.items():
            if name in self.lags or len(self.lags) < _MOST_GROUPS:
                self.lags.setdefault(name, Series()).add(at, group.lag)
        self._note_paces(snapshot)
        if snapshot.groups_known:
            for name in self.lags.keys() - snapshot.groups.keys():
                del self.lags[name]

    def _note_paces(self, snapshot: Snapshot) -> None:
        for name, group in snapshot.groups.items():
            read = sum(group.offsets.values())
            known = self._read.setdefault(name, deque())
            if known and read > known[-1][1]:
                self.moved_at[name] = snapshot.at
            known.append((snapshot.at, read))
            while len(known) > 2 and known[1][0] <= snapshot.at - _PACE_OVER_S:
                known.popleft()
            span = known[-1][0] - known[0][0]
            self.paces[name] = max(0.0, (read - known[0][1]) / span) if span > 0 else 0.0
        for name in self._read.keys() - snapshot.groups.keys():
            for kept in (self._read, self.paces, self.moved_at):
                kept.pop(name, None)

    def _last_rates(self) -> dict[str, float]:
        """Between the last two looks, for the chart: an average would smear what happened."""
        (then, before), (now, after) = self._ends[-2], self._ends[-1]
        span = max(0.001, now - then)
        return {name: max(0.0, (total - before[name]) / span) for name, total in after.items() if name in before}
