"""Partitions, one by one: size and offsets of the logs on this node. The only subject that grows with them."""

from millstream.node.metrics.exposition import Page, escaped, gauge
from millstream.node.metrics.subject import ObservedNode, Subject, Turns

_AT = ("topic", "partition")
LOG_BYTES = gauge(
    "millstream_partition_log_bytes",
    "Size of the log of a replica on this node. Logs that nobody has needed since the start are not open yet, and not "
    "here.",
    *_AT,
)
LOG_START = gauge("millstream_partition_log_start_offset", "The first offset that is kept.", *_AT)
LOG_END = gauge("millstream_partition_log_end_offset", "The offset that the next record gets.", *_AT)
HIGH_WATERMARK = gauge(
    "millstream_partition_high_watermark", "Up to where records are committed; where this node leads.", *_AT
)
IN_SYNC = gauge("millstream_partition_in_sync_replicas", "Replicas in sync; where this node leads.", *_AT)
UNREADABLE = gauge(
    "millstream_partition_unreadable_batch",
    "A batch whose records cannot be read: consumers get INVALID_RECORD at its offsets, and go on behind last_offset. "
    "Found where consumers came back for it again and again, since this node has its role.",
    *_AT,
    "first_offset",
    "last_offset",
    "producer_id",
)
_PER_TURN = 50


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.broker is None:
        return
    sizes, starts, ends = page.lines(LOG_BYTES), page.lines(LOG_START), page.lines(LOG_END)
    watermarks, in_sync = page.lines(HIGH_WATERMARK), page.lines(IN_SYNC)
    for count, partition in enumerate(list(node.broker.partitions)):
        if count % _PER_TURN == 0:
            await turns.pause()
        name, index = partition.topic_partition
        labels = f'{{topic="{escaped(name)}",partition="{index}"}}'
        log = partition.opened_log
        if log is not None:
            sizes.append(f"{LOG_BYTES.name}{labels} {log.size_bytes}\n")
            starts.append(f"{LOG_START.name}{labels} {log.log_start_offset}\n")
            ends.append(f"{LOG_END.name}{labels} {log.log_end_offset}\n")
            for batch in partition.unreadable.batches if partition.unreadable is not None else ():
                if batch.last >= log.log_start_offset:
                    page.add(UNREADABLE, 1, name, str(index), str(batch.first), str(batch.last), str(batch.producer_id))
        if partition.is_leader:
            if log is not None:
                watermarks.append(f"{HIGH_WATERMARK.name}{labels} {partition.high_watermark}\n")
            in_sync.append(f"{IN_SYNC.name}{labels} {len(partition.in_sync())}\n")


PARTITIONS = Subject("partitions", (LOG_BYTES, LOG_START, LOG_END, HIGH_WATERMARK, IN_SYNC, UNREADABLE), collect)
