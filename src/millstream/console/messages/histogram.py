"""How many records of a topic are of which time: counted by offsets (ListOffsets by time), not by reading records.

The cost is one request for each edge of a bucket, whatever the topic holds. Where times of records go back, a bucket is
an estimate. Gaps in offsets (compaction, transactions) count as records.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nicegui import ui

from millstream.raw_client import LATEST, Cluster, TopicPartition

BUCKETS = 48
_MAX_LOOKUPS = 6000
"""Partitions times edges of one histogram."""
_MAX_TIMESTAMP = -3
"""ListOffsets: the record with the largest time (KIP-734)."""


class Bucket(NamedTuple):
    start_ms: int
    records: int


def time_histogram(cluster: Cluster, topic: str, partition: int | None = None, most: int = BUCKETS) -> list[Bucket]:
    """Empty if the topic is empty, or has more partitions than can be looked at."""
    wanted = range(cluster.partitions_of(topic)) if partition is None else [partition]
    places = [TopicPartition(topic, index) for index in wanted]
    buckets = min(most, _MAX_LOOKUPS // max(1, len(places)) - 4)
    if buckets < 2:
        return []
    ends = {place: found.offset for place, found in cluster.offsets(dict.fromkeys(places, LATEST)).items()}
    firsts = cluster.offsets(dict.fromkeys(places, 0))
    known = [found.timestamp for found in firsts.values() if found.offset >= 0]
    latest = [
        found.timestamp
        for found in cluster.offsets(dict.fromkeys(places, _MAX_TIMESTAMP)).values()
        if found.timestamp >= 0
    ]
    if not known or not latest:
        return []
    first, last = min(known), max(latest)
    width = max(1, -(-(last + 1 - first) // buckets))
    counts: list[int] = []
    before = _total(firsts, ends)
    for number in range(1, buckets + 1):
        edge = first + number * width
        after = _total(cluster.offsets(dict.fromkeys(places, edge)), ends)
        counts.append(max(0, after - before))
        before = max(before, after)
        if edge > last:
            break
    return [Bucket(first + place * width, count) for place, count in enumerate(counts)]


def _total(found: Any, ends: dict[TopicPartition, int]) -> int:
    """The sum of the offsets; the end of a partition that has no record since that time."""
    return sum(ends[place] if each.offset < 0 else min(each.offset, ends[place]) for place, each in found.items())


class HistogramChart:
    """Bars by time. `pick` is called with the start of a bar that was clicked, in milliseconds."""

    def __init__(self, pick: Callable[[int], Any]) -> None:
        self._buckets: Sequence[Bucket] = ()
        ink, line = "#8a94a6", "rgba(138,148,166,0.22)"
        self.chart = (
            ui.echart(
                {
                    "animation": False,
                    "color": ["#3b82f6"],
                    "grid": {"left": 8, "right": 14, "top": 8, "bottom": 4, "containLabel": True},
                    # Drawn on the canvas, not as HTML.
                    "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
                    "xAxis": {"type": "time", "axisLabel": {"color": ink, "hideOverlap": True}},
                    "yAxis": {
                        "type": "value",
                        "splitNumber": 2,
                        "axisLabel": {"color": ink},
                        "splitLine": {"lineStyle": {"color": line}},
                    },
                    "series": [{"name": "records", "type": "bar", "barWidth": "92%", "data": []}],
                },
                on_point_click=lambda event: pick(self._buckets[event.data_index].start_ms),
            )
            .style("height: 96px")
            .classes("ms-chart ms-histogram")
            .props('data-testid=histogram aria-label="Records by time"')
        )
        self.chart.set_visibility(False)

    def show(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self.chart.set_visibility(bool(buckets))
        self.chart.options["series"][0]["data"] = [[each.start_ms, each.records] for each in buckets]
        self.chart.update()
