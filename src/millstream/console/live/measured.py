"""From a broker's counters to rates and latencies: each page of metrics is compared with the one before."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.console.live.broker_metrics import MetricsError, Sample, fetch_metrics
from millstream.console.live.snapshot import Broker
from millstream.raw_client import TopicPartition

_TIMEOUT_S = 0.9
_AGAIN_AFTER_S = 10.0
"""A broker that has no such page is asked again only so often."""
BYTES_IN = "millstream_topic_received_bytes_total"
BYTES_OUT = "millstream_topic_sent_bytes_total"
_ACQUIRED = "millstream_share_group_acquired_records"
LATENCY = "millstream_request_duration_seconds_bucket"


@dataclass(frozen=True, slots=True)
class _Page:
    at: float
    sums: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]
    """By API: how many requests took at most so many seconds."""


class Measured:
    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}
        self._absent: dict[str, float] = {}

    def read(self, broker: Broker) -> dict[str, float] | None:
        """Numbers by name, of the time since the last look; None if this broker has none."""
        now = time.monotonic()
        if now < self._absent.get(broker.address, 0.0):
            return None
        try:
            page = _page(now, fetch_metrics(broker.host, broker.port, ("topics", "requests"), _TIMEOUT_S))
        except MetricsError as error:
            if error.is_no_page:
                self._absent[broker.address] = now + _AGAIN_AFTER_S
            return None
        before = self._pages.get(broker.address)
        self._pages[broker.address] = page
        return {} if before is None else _between(before, page)


def read_acquired(broker: Broker) -> dict[str, dict[TopicPartition, int]]:
    """Records that members of share groups hold now, of partitions that this broker leads; by group."""
    found: dict[str, dict[TopicPartition, int]] = {}
    try:
        samples = fetch_metrics(broker.host, broker.port, ("groups",), _TIMEOUT_S)
    except MetricsError:
        return found
    for name, labels, value in samples:
        if name == _ACQUIRED:
            place = TopicPartition(labels["topic"], int(labels["partition"]))
            found.setdefault(labels["group"], {})[place] = int(value)
    return found


def _page(now: float, samples: Sequence[Sample]) -> _Page:
    sums: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    for name, labels, value in samples:
        if name in (BYTES_IN, BYTES_OUT):
            sums[name] = sums.get(name, 0.0) + value
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
        if total in after.sums:
            found[name] = max(0.0, after.sums[total] - before.sums.get(total, 0.0)) / span
    # Of Produce only: a Fetch takes as long as its caller wants to wait.
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
    """As Prometheus' histogram_quantile does: within a bucket, evenly."""
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
