"""Topics: what goes in and out of them on this node, and how their in-sync sets change.

Partitions, one by one: size and offsets of the logs on this node. The only subject that grows with them.

Replication: how many partitions are in which state here, and what throttles do.

Compaction: how dirty the compacted logs of this node are, and which cannot be cleaned.
"""

from operator import attrgetter

from millstream.node.metrics.exposition import Page, counter, escaped, gauge
from millstream.node.metrics.observed_node import ObservedNode, Subject, Turns
from millstream.node.replicas.manager import ReplicaManager
from millstream.node.replicas.partition import Partition

RECEIVED_BYTES = counter(
    "millstream_topic_received_bytes_total", "Bytes of record batches appended here as leader.", "topic"
)
RECEIVED_RECORDS = counter("millstream_topic_received_records_total", "Records appended here as leader.", "topic")
SENT_BYTES = counter(
    "millstream_topic_sent_bytes_total",
    "Bytes of record batches sent to consumers and members of share groups.",
    "topic",
)
SENT_RECORDS = counter(
    "millstream_topic_sent_records_total",
    "Records sent to them, by offsets: batches are not opened, so where an answer ends in the middle of a segment this "
    "is its share of the segment's records, and gaps that compaction left are counted.",
    "topic",
)
REPLICA_RECEIVED_BYTES = counter(
    "millstream_topic_replica_received_bytes_total", "Bytes copied from other leaders, as follower.", "topic"
)
REPLICA_SENT_BYTES = counter(
    "millstream_topic_replica_sent_bytes_total", "Bytes copied by followers, from here.", "topic"
)
ISR_SHRINKS = counter(
    "millstream_isr_shrinks_total", "In-sync sets of partitions led here that lost a member.", "topic"
)
ISR_EXPANDS = counter("millstream_isr_expands_total", "In-sync sets of partitions led here that gained one.", "topic")
_FIELDS = {
    RECEIVED_BYTES: "received_bytes",
    RECEIVED_RECORDS: "received_records",
    SENT_BYTES: "sent_bytes",
    SENT_RECORDS: "sent_records",
    REPLICA_RECEIVED_BYTES: "replica_received_bytes",
    REPLICA_SENT_BYTES: "replica_sent_bytes",
    ISR_SHRINKS: "isr_shrinks",
    ISR_EXPANDS: "isr_expands",
}
_TOPICS_PER_TURN = 50


async def collect_topics(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.broker is None:
        return
    columns = [(page.lines(family), family.name, attrgetter(field)) for family, field in _FIELDS.items()]
    for count, (name, traffic) in enumerate(sorted(node.broker.partitions.traffic.items())):
        label = escaped(name.decode())
        for lines, family, value in columns:
            lines.append(f'{family}{{topic="{label}"}} {value(traffic)}\n')
        if count % _TOPICS_PER_TURN == 0:
            await turns.pause()


TOPICS = Subject("topics", tuple(_FIELDS), collect_topics)


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
_PARTITIONS_PER_TURN = 50


async def collect_partitions(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.broker is None:
        return
    sizes, starts, ends = page.lines(LOG_BYTES), page.lines(LOG_START), page.lines(LOG_END)
    watermarks, in_sync = page.lines(HIGH_WATERMARK), page.lines(IN_SYNC)
    for count, partition in enumerate(list(node.broker.partitions)):
        if count % _PARTITIONS_PER_TURN == 0:
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


PARTITIONS = Subject(
    "partitions", (LOG_BYTES, LOG_START, LOG_END, HIGH_WATERMARK, IN_SYNC, UNREADABLE), collect_partitions
)


REPLICAS = gauge("millstream_replicas", "Replicas on this node, by their role: leader, follower, offline.", "role")
UNDER_REPLICATED = gauge(
    "millstream_under_replicated_partitions", "Partitions led here of which not all replicas are in sync."
)
UNDER_MIN_ISR = gauge(
    "millstream_under_min_isr_partitions",
    "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
)
AT_MIN_ISR = gauge(
    "millstream_at_min_isr_partitions",
    "Partitions led here that lose acks=all with the next replica. Those with a single replica are not meant.",
)
FOLLOWER_LAG = gauge(
    "millstream_follower_lag_max_records", "How far the follower is behind that is furthest, of partitions led here."
)
FAILED_LOGS = gauge("millstream_failed_logs", "Logs that take no more writes because the disk failed them.")
OPEN_LOGS = gauge("millstream_open_logs", "Logs that are open; the others are opened when they are needed.")
THROTTLED_BYTES = counter(
    "millstream_replication_throttled_bytes_total",
    "Bytes copied under a replication throttle; direction is leader (sent) or follower (received).",
    "direction",
)
THROTTLE_PAUSES = counter(
    "millstream_replication_throttle_pauses_total",
    "How often a replica had to wait because of a replication throttle.",
    "direction",
)
THROTTLE_LIMIT = gauge(
    "millstream_replication_throttle_limit_bytes_per_second",
    "leader.replication.throttled.rate and follower.replication.throttled.rate.",
    "direction",
)
_REPLICAS_PER_TURN = 100


async def collect_replication(node: ObservedNode, page: Page, turns: Turns) -> None:
    broker = node.broker
    if broker is None:
        return
    replicas = broker.replicas
    counts = await _count(replicas, turns)
    for role in ("leader", "follower", "offline"):
        page.add(REPLICAS, counts.get(role, 0), role)
    page.add(UNDER_REPLICATED, counts["under replicated"])
    page.add(UNDER_MIN_ISR, counts["under min"])
    page.add(AT_MIN_ISR, counts["at min"])
    page.add(FOLLOWER_LAG, counts["lag"])
    logs = broker.logs.loaded()
    page.add(FAILED_LOGS, sum(log.failure is not None for log in logs))
    page.add(OPEN_LOGS, len(logs))
    for direction, throttle in (("leader", replicas.leader_throttle), ("follower", replicas.follower_throttle)):
        page.add(THROTTLED_BYTES, throttle.bytes, direction)
        page.add(THROTTLE_PAUSES, throttle.pauses, direction)
        page.add(THROTTLE_LIMIT, throttle.limit, direction)


async def _count(replicas: ReplicaManager, turns: Turns) -> dict[str, int]:
    counts = {"under replicated": 0, "under min": 0, "at min": 0, "lag": 0}
    min_in_sync: dict[str, int] = {}
    for number, partition in enumerate(list(replicas.partitions)):
        if number % _REPLICAS_PER_TURN == 0:
            await turns.pause()
        role = partition.role.value
        counts[role] = counts.get(role, 0) + 1
        state = partition.state
        if not partition.is_leader or state is None:
            continue
        topic = partition.topic_partition.topic
        if topic not in min_in_sync:
            min_in_sync[topic] = replicas.roles.min_in_sync(topic)
        in_sync, every = len(partition.in_sync()), len(state.replicas)
        required = min(min_in_sync[topic], every)
        counts["under replicated"] += in_sync < every
        counts["under min"] += in_sync < required
        counts["at min"] += in_sync == required and every > 1
        counts["lag"] = max(counts["lag"], _follower_lag(partition))
    return counts


def _follower_lag(partition: Partition) -> int:
    log = partition.opened_log
    if log is None:
        return 0
    ends = [follower.log_end for follower in partition.followers().values() if follower.log_end >= 0]
    return max((log.log_end_offset - end for end in ends), default=0)


REPLICATION = Subject(
    "replication",
    (
        REPLICAS,
        UNDER_REPLICATED,
        UNDER_MIN_ISR,
        AT_MIN_ISR,
        FOLLOWER_LAG,
        FAILED_LOGS,
        OPEN_LOGS,
        THROTTLED_BYTES,
        THROTTLE_PAUSES,
        THROTTLE_LIMIT,
    ),
    collect_replication,
)


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


async def collect_compaction(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.broker is None:
        return
    count = running = uncleanable = dirty_bytes = passed_over = 0
    ratio = 0.0
    for progress in node.broker.cleaner.iterate_progress():
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


COMPACTION = Subject(
    "compaction", (COMPACTED, DIRTY_RATIO, DIRTY_BYTES, RUNNING, UNCLEANABLE, PASSED_OVER), collect_compaction
)
