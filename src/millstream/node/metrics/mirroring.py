"""Metrics of mirroring: how far the partitions that this node copies are behind the source, for each link."""

from millstream.common.prometheus import Page, counter, gauge
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices

PARTITIONS = gauge("millstream_mirror_partitions", "Partitions that this node copies from the source.", "link")
FAILING = gauge(
    "millstream_mirror_failing_partitions",
    "Those that cannot be copied now: `millstream mirror status` has the reasons.",
    "link",
)
LAG_RECORDS = gauge("millstream_mirror_lag_records", "Offsets of the source that are not copied yet.", "link")
LAG_BYTES = gauge("millstream_mirror_lag_bytes", "The same in bytes, estimated by the records that came last.", "link")
LAG_SECONDS = gauge(
    "millstream_mirror_lag_seconds",
    "The time since the partition that is furthest behind last had everything.",
    "link",
)
BYTES = counter("millstream_mirror_bytes_total", "Bytes of batches copied from the source.", "link")
SKIPPED = counter(
    "millstream_mirror_skipped_records_total", "Offsets that the source had removed before they were copied.", "link"
)
TRUNCATED = counter(
    "millstream_mirror_truncated_records_total",
    "Offsets that were cut because the source lost or replaced them.",
    "link",
)


async def collect_mirroring(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    if node.broker is None:
        return
    now = node.broker.mirroring.now()
    for name, driver in tuple(node.broker.mirroring.links.items()):
        pulled = tuple(driver.partitions.values())
        page.add(PARTITIONS, len(pulled), name)
        page.add(FAILING, sum(bool(driver.problem_of(each)) for each in pulled), name)
        page.add(LAG_RECORDS, sum(each.lag_records for each in pulled), name)
        page.add(LAG_BYTES, sum(each.lag_bytes for each in pulled), name)
        page.add(LAG_SECONDS, max((each.lag_seconds(now) for each in pulled), default=0.0), name)
        totals = driver.totals()
        page.add(BYTES, totals.bytes_copied, name)
        page.add(SKIPPED, totals.records_skipped, name)
        page.add(TRUNCATED, totals.records_truncated, name)
        await turns.pause()


MIRRORING = MetricsSubject(
    "mirroring",
    (PARTITIONS, FAILING, LAG_RECORDS, LAG_BYTES, LAG_SECONDS, BYTES, SKIPPED, TRUNCATED),
    collect_mirroring,
)
