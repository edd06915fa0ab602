"""Metrics of tiered storage: bytes that wait, that were copied and read, and failures."""

from millstream.common.prometheus import Page, counter, gauge
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices
from millstream.node.tier.manager import lag

PARTITIONS = gauge("millstream_tier_partitions", "Tiered partitions that this broker leads.")
LAG_SEGMENTS = gauge(
    "millstream_tier_lag_segments", "Closed segments of these partitions that are not in the tier yet."
)
LAG_BYTES = gauge(
    "millstream_tier_lag_bytes", "The size of these segments. They stay on the disk until they are copied."
)
REFUSED = gauge(
    "millstream_tier_refused_partitions",
    "Partitions whose tier does not fit to their log. Nothing is copied or read; the node's log has the reason.",
)
COPIED = counter("millstream_tier_copied_segments_total", "Segments copied to the tier.")
COPIED_BYTES = counter("millstream_tier_copied_bytes_total", "Bytes copied to the tier.")
DELETED = counter("millstream_tier_deleted_segments_total", "Segments deleted from the tier.")
ERRORS = counter("millstream_tier_errors_total", "Failed operations of the store.", "operation")
READS = counter("millstream_tier_reads_total", "Ranges read from the tier.")
READ_BYTES = counter("millstream_tier_read_bytes_total", "Bytes read from the tier.")
CACHE_BYTES = gauge("millstream_tier_cache_bytes", "The size of the cache of ranges on the disk.")
CACHE_LOOKUPS = counter(
    "millstream_tier_cache_lookups_total", "Reads of tiered records, by whether the cache had them.", "result"
)

EVENTS = counter(
    "millstream_tier_events_total",
    "Events for the topic __remote_log_metadata: written, or dropped because too many were waiting.",
    "result",
)


async def collect_tier(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    if node.broker is None:
        return
    manager = node.broker.tier
    partitions = segments = size = refused = 0
    for each in manager.tiers():
        refused += each.refusal is not None
        if each.partition.is_leader:
            partitions += 1
            waiting, waiting_bytes = lag(each.log, each.end_offset)
            segments += waiting
            size += waiting_bytes
        await turns.pause()
    page.add(PARTITIONS, partitions)
    page.add(LAG_SEGMENTS, segments)
    page.add(LAG_BYTES, size)
    page.add(REFUSED, refused)
    counters, cache = manager.counters, manager.cache
    page.add(COPIED, counters.copied_segments)
    page.add(COPIED_BYTES, counters.copied_bytes)
    page.add(DELETED, counters.deleted_segments)
    page.add(ERRORS, counters.copy_errors, "copy")
    page.add(ERRORS, counters.read_errors, "read")
    page.add(READS, counters.reads)
    page.add(READ_BYTES, counters.read_bytes)
    page.add(CACHE_BYTES, cache.size_bytes)
    page.add(CACHE_LOOKUPS, cache.hits, "hit")
    page.add(CACHE_LOOKUPS, cache.misses, "miss")
    if manager.events is not None:
        page.add(EVENTS, manager.events.written, "written")
        page.add(EVENTS, manager.events.dropped, "dropped")


TIER = MetricsSubject(
    "tier",
    (
        PARTITIONS,
        LAG_SEGMENTS,
        LAG_BYTES,
        REFUSED,
        COPIED,
        COPIED_BYTES,
        DELETED,
        ERRORS,
        READS,
        READ_BYTES,
        CACHE_BYTES,
        CACHE_LOOKUPS,
        EVENTS,
    ),
    collect_tier,
)
