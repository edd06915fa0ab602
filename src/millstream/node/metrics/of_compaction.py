"""Compaction: how dirty the compacted logs of this node are, and which cannot be cleaned."""

from millstream.node.metrics.exposition import Page, gauge
from millstream.node.metrics.subject import ObservedNode, Subject, Turns

COMPACTED = gauge("millstream_compacted_logs", "Open logs with cleanup.policy=compact.")
DIRTY_RATIO = gauge(
    "millstream_compaction_max_dirty_ratio", "The part of the dirtiest of them that is yet to be cleaned."
)
DIRTY_BYTES = gauge("millstream_compaction_dirty_bytes", "How much of them is yet to be cleaned.")
RUNNING = gauge("millstream_compaction_running", "Logs that are being cleaned.")
UNCLEANABLE = gauge("millstream_compaction_uncleanable_logs", "Logs that cannot be cleaned; the log file says why.")

PASSED_OVER = gauge(
    "millstream_compaction_passed_over_batches",
    "Batches that the last pass over each log kept as they are: they are more than millstream.batch.max.records or "
    "millstream.batch.max.decompressed.bytes allow to open.",
)


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.broker is None:
        return
    count = running = uncleanable = dirty_bytes = passed_over = 0
    ratio = 0.0
    for progress in node.broker.cleaner.look_at_each():
        await turns.pause()
        count += 1
        ratio = max(ratio, progress.ratio)
        dirty_bytes += progress.dirty_bytes
        running += progress.is_running
        uncleanable += bool(progress.uncleanable)
        passed_over += progress.passed_over
    page.add(COMPACTED, count)
    page.add(DIRTY_RATIO, ratio)
    page.add(DIRTY_BYTES, dirty_bytes)
    page.add(RUNNING, running)
    page.add(UNCLEANABLE, uncleanable)
    page.add(PASSED_OVER, passed_over)


COMPACTION = Subject("compaction", (COMPACTED, DIRTY_RATIO, DIRTY_BYTES, RUNNING, UNCLEANABLE, PASSED_OVER), collect)
