"""Metrics of brokers (`GET /metrics` on the Kafka port), the rates computed from them, and their history for charts.

Brokers of Apache Kafka have no such page. The charts then say so.
"""

import math
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millstream.admin.broker_metrics import MetricsError, Sample, read_metrics
from millstream.console.live.snapshot import Broker, Snapshot, Topic
from millstream.raw_client import Cluster, TopicPartition

_AGAIN_AFTER_SECONDS = 10.0
"""Retry interval for a broker without a metrics page."""
BYTES_IN = "millstream_topic_received_bytes_total"
BYTES_OUT = "millstream_topic_sent_bytes_total"
_ACQUIRED = "millstream_share_group_acquired_records"
LATENCY = "millstream_request_duration_seconds_bucket"


@dataclass(frozen=True, slots=True)
class _Page:
    at: float
    sums: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]
    """By API: cumulative request counts by duration in seconds."""


class BrokerRates:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pages: dict[str, _Page] = {}
        self._absent: dict[str, float] = {}

    def read(self, broker: Broker) -> dict[str, float] | None:
        """Rates by name since the last poll; None if this broker has no metrics."""
        now = time.monotonic()
        if now < self._absent.get(broker.address, 0.0):
            return None
        try:
            samples = read_metrics(self._cluster, broker.id, broker.host, broker.port, ("topics", "requests"))
            page = _page(time.monotonic(), samples)
        except MetricsError as error:
            if error.is_no_page:
                self._absent[broker.address] = now + _AGAIN_AFTER_SECONDS
            return None
        before = self._pages.get(broker.address)
        self._pages[broker.address] = page
        return {} if before is None else _between(before, page)


def read_acquired(cluster: Cluster, broker: Broker) -> dict[str, dict[TopicPartition, int]]:
    """Records in flight of share groups on the partitions that this broker leads, by group."""
    found: dict[str, dict[TopicPartition, int]] = {}
    try:
        samples = read_metrics(cluster, broker.id, broker.host, broker.port, ("groups",))
    except MetricsError:
        return found
    for name, labels, value in samples:
        if name == _ACQUIRED:
            topic_partition = TopicPartition(labels["topic"], int(labels["partition"]))
            found.setdefault(labels["group"], {})[topic_partition] = int(value)
    return found


def _page(now: float, samples: Sequence[Sample]) -> _Page:
    sums = {BYTES_IN: 0.0, BYTES_OUT: 0.0}  # topics at rest have no samples
    buckets: dict[str, dict[float, float]] = {}
    for name, labels, value in samples:
        if name in (BYTES_IN, BYTES_OUT):
            sums[name] += value
        elif name == LATENCY and "le" in labels:
            api = labels.get("api", "").lower()
            bound = float(labels["le"].replace("+Inf", "inf"))
            theirs = buckets.setdefault(api, {})
            theirs[bound] = theirs.get(bound, 0.0) + value
    return _Page(now, sums, buckets)


def _between(before: _Page, after: _Page) -> dict[str, float]:
    span = after.at - before.at
    found: dict[str, float] = {}
    if span <= 0:
        return found
    for name, total in (("bytes_in", BYTES_IN), ("bytes_out", BYTES_OUT)):
        found[name] = max(0.0, after.sums[total] - before.sums[total]) / span
    # Only Produce: the duration of a Fetch is chosen by the client.
    counts = {
        bound: max(0.0, count - before.buckets.get("produce", {}).get(bound, 0.0))
        for bound, count in after.buckets.get("produce", {}).items()
    }
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        seconds = quantile(counts, share)
        if seconds is not None:
            found[f"produce_{name}_ms"] = seconds * 1000
    return found


def quantile(cumulative: Mapping[float, float], share: float) -> float | None:
    """Interpolates within a bucket, as Prometheus' histogram_quantile does."""
    bounds = sorted(cumulative)
    if not bounds or cumulative[bounds[-1]] <= 0:
        return None
    rank = share * cumulative[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = cumulative[bound]
        if count >= rank:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (rank - below) / max(count - below, 1e-9)
        lower, below = bound, count
    return lower


KEPT_POINTS = 900
_GAP_SECONDS = 4.0


class Series:
    def __init__(self, kept: int = KEPT_POINTS) -> None:
        self._kept = kept
        self._times = array("d")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at: float, value: float, every_s: float = 1.0) -> None:
        """`every_s`: how often values are read now. After a longer time without one, there is a gap: a value that is
        not a number."""
        if self._times and at <= self._times[-1]:
            return
        if self._times and at - self._times[-1] > max(_GAP_SECONDS, 3 * every_s):
            self._times.append((self._times[-1] + at) / 2)
            self._values.append(math.nan)
        self._times.append(at)
        self._values.append(value)
        if len(self._times) > self._kept * 5 // 4:  # in larger steps, because each deletion moves all values
            cut = len(self._times) - self._kept
            del self._times[:cut]
            del self._values[:cut]

    def points(self, since: float = 0.0) -> Iterator[tuple[float, float]]:
        for position in range(bisect_left(self._times, since), len(self._times)):
            yield self._times[position], self._values[position]

    def last(self, since: float = 0.0) -> float | None:
        """The last value; None if it is older than `since`."""
        return self._values[-1] if self._values and self._times[-1] >= since else None


_RATE_OVER_SECONDS = 5.0
_PACE_OVER_SECONDS = 20.0
"""Window of the commit rate: commits come in steps, those of Spark in large ones."""
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
        """Lag of each group."""
        self.paces: dict[str, float] = {}
        """Records per second that each group commits, over the last seconds."""
        self.moved_at: dict[str, float] = {}
        """When the offsets of a group last moved."""
        self._read: dict[str, deque[tuple[float, int]]] = {}
        self._ends: deque[tuple[float, Mapping[str, int]]] = deque()
        self._known: dict[TopicPartition, int] = {}

    def note_ends(self, now: float, ends: Mapping[TopicPartition, int], topics: Mapping[str, Topic]) -> None:
        """Adds end offsets. A partition whose leader does not respond keeps its last end offset."""
        self._known.update(ends)
        totals: dict[str, int] = {}
        for topic in topics.values():
            known = [
                self._known[each.topic_partition] for each in topic.partitions if each.topic_partition in self._known
            ]
            if len(known) == len(topic.partitions):  # otherwise the missing ones would look like a burst later
                totals[topic.name] = sum(known)
        for topic_partition in [
            topic_partition for topic_partition in self._known if topic_partition.topic not in topics
        ]:
            del self._known[topic_partition]
        self._ends.append((now, totals))
        while len(self._ends) > 2 and self._ends[1][0] <= now - _RATE_OVER_SECONDS:
            self._ends.popleft()

    def rates(self, now: float) -> dict[str, float]:
        """Records per second over the last few seconds; 0 for a topic that was created again."""
        if len(self._ends) < 2:
            return {}
        then, before = self._ends[0]
        _, after = self._ends[-1]
        span = now - then
        if span <= 0:
            return {}
        return {name: max(0.0, (total - before[name]) / span) for name, total in after.items() if name in before}

    def note_rates(self, at: float, rates: Mapping[str, float], topics: Mapping[str, Topic], every_s: float) -> None:
        """After new end offsets. `every_s`: how often they are read now."""
        if len(self._ends) > 1:
            self.records_in.add(at, sum(self._last_rates().values()), every_s)
        for name, rate in rates.items():
            self.topics.setdefault(name, Series(300)).add(at, rate, every_s)
        for name in self.topics.keys() - topics.keys():
            del self.topics[name]

    def note_metrics(self, at: float, metrics: Iterable[Mapping[str, float]], every_s: float) -> None:
        """After new metrics of brokers."""
        for name, total in (
            ("bytes_in", sum),
            ("bytes_out", sum),
            ("produce_p50_ms", max),
            ("produce_p99_ms", max),
        ):
            known = [each[name] for each in metrics if name in each]
            if known:
                getattr(self, name).add(at, total(known), every_s)

    def note_groups(self, snapshot: Snapshot, every_s: float) -> None:
        """After new offsets of groups, or new end offsets."""
        for name, group in snapshot.groups.items():
            if name in self.lags or len(self.lags) < _MOST_GROUPS:
                self.lags.setdefault(name, Series()).add(snapshot.at, group.lag, every_s)
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
            while len(known) > 2 and known[1][0] <= snapshot.at - _PACE_OVER_SECONDS:
                known.popleft()
            span = known[-1][0] - known[0][0]
            self.paces[name] = max(0.0, (read - known[0][1]) / span) if span > 0 else 0.0
        for name in self._read.keys() - snapshot.groups.keys():
            for kept in (self._read, self.paces, self.moved_at):
                kept.pop(name, None)

    def _last_rates(self) -> dict[str, float]:
        """Rates between the last two polls, for the chart. An average would hide short changes."""
        (then, before), (now, after) = self._ends[-2], self._ends[-1]
        span = max(0.001, now - then)
        return {name: max(0.0, (total - before[name]) / span) for name, total in after.items() if name in before}
