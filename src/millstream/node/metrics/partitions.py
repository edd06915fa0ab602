"""Metrics of topics, partitions, replication and compaction on this node."""

from collections.abc import Iterable
from operator import attrgetter

from millstream.common.prometheus import Page, counter, escaped, gauge
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices
from millstream.node.replicas.manager import ReplicaManager
from millstream.node.replicas.partition import Partition

RECEIVED_BYTES = counter(
    "millstream_topic_received_bytes_total", "Bytes of record batches appended by this node as leader.", "topic"
)
RECEIVED_RECORDS = counter(
    "millstream_topic_received_records_total", "Records appended by this node as leader.", "topic"
)
SENT_BYTES = counter(
    "millstream_topic_sent_bytes_total",
    "Bytes of record batches sent to consumers and members of share groups.",
    "topic",
)
SENT_RECORDS = counter(
    "millstream_topic_sent_records_total",
    "Records sent to consumers and members of share groups. Batches are not opened: the number is estimated from "
    "offsets if a response ends inside a segment, and gaps of compaction are counted.",
    "topic",
)
REPLICA_RECEIVED_BYTES = counter(
    "millstream_topic_replica_received_bytes_total", "Bytes copied by this node as follower.", "topic"
)
REPLICA_SENT_BYTES = counter(
    "millstream_topic_replica_sent_bytes_total", "Bytes sent by this node to followers.", "topic"
)
ISR_SHRINKS = counter(
    "millstream_isr_shrinks_total", "The number of times the ISR of a partition led by this node shrank.", "topic"
)
ISR_EXPANDS = counter(
    "millstream_isr_expands_total", "The number of times the ISR of a partition led by this node expanded.", "topic"
)
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


async def collect_topics(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    if node.broker is None:
        return
    columns = [(page.lines(family), family.name, attrgetter(field)) for family, field in _FIELDS.items()]
    for count, (name, traffic) in enumerate(sorted(node.broker.partitions.traffic.items())):
        values = [value(traffic) for _, _, value in columns]
        if any(values):  # a topic at rest has no samples
            label = escaped(name.decode())
            for (lines, family, _), value in zip(columns, values, strict=True):
                lines.append(f'{family}{{topic="{label}"}} {value}\n')
        if count % _TOPICS_PER_TURN == 0:
            await turns.pause()


TOPICS = MetricsSubject("topics", tuple(_FIELDS), collect_topics)


_AT = ("topic", "partition")
LOG_BYTES = gauge(
    "millstream_partition_log_bytes",
    "The size of the log of a replica on this node. Logs that were not used since the start are not open and not "
    "listed.",
    *_AT,
)
LOG_START = gauge("millstream_partition_log_start_offset", "The log start offset.", *_AT)
LOG_END = gauge("millstream_partition_log_end_offset", "The log end offset.", *_AT)
HIGH_WATERMARK = gauge(
    "millstream_partition_high_watermark", "The high watermark, of partitions led by this node.", *_AT
)
IN_SYNC = gauge("millstream_partition_in_sync_replicas", "The size of the ISR, of partitions led by this node.", *_AT)
UNREADABLE = gauge(
    "millstream_partition_unreadable_batch",
    "1 for a batch whose records cannot be read: consumers get INVALID_RECORD at its offsets, and can continue after "
    "last_offset. Such batches are found when consumers fetch them repeatedly.",
    *_AT,
    "first_offset",
    "last_offset",
    "producer_id",
)
_PARTITIONS_PER_TURN = 50


async def collect_partitions(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
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
        if partition.is_leader:
            if log is not None:
                watermarks.append(f"{HIGH_WATERMARK.name}{labels} {partition.high_watermark}\n")
            in_sync.append(f"{IN_SYNC.name}{labels} {len(partition.in_sync())}\n")


PARTITIONS = MetricsSubject(
    "partitions", (LOG_BYTES, LOG_START, LOG_END, HIGH_WATERMARK, IN_SYNC), collect_partitions, is_default=False
)


TOPIC_LOG_BYTES = gauge(
    "millstream_topic_log_bytes",
    "The size of the logs of a topic's replicas on this node. Logs that were not used since the start do not count.",
    "topic",
)
REPLICAS = gauge("millstream_replicas", "Replicas on this node by role: leader, follower, offline.", "role")
UNDER_REPLICATED = gauge(
    "millstream_under_replicated_partitions", "Partitions led by this node whose replicas are not all in sync."
)
UNDER_MIN_ISR = gauge(
    "millstream_under_min_isr_partitions",
    "Partitions led by this node with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
)
AT_MIN_ISR = gauge(
    "millstream_at_min_isr_partitions",
    "Partitions led by this node with exactly min.insync.replicas in-sync replicas. Partitions with a single replica "
    "do not count.",
)
FOLLOWER_LAG = gauge(
    "millstream_follower_lag_max_records", "The highest lag of a follower, of partitions led by this node."
)
FAILED_LOGS = gauge("millstream_failed_logs", "Logs that accept no more writes because of a disk failure.")
OPEN_LOGS = gauge("millstream_open_logs", "Open logs. Other logs are opened when they are needed.")
THROTTLED_BYTES = counter(
    "millstream_replication_throttled_bytes_total",
    "Bytes copied under a replication throttle; direction is leader (sent) or follower (received).",
    "direction",
)
THROTTLE_PAUSES = counter(
    "millstream_replication_throttle_pauses_total",
    "The number of times a replica waited because of a replication throttle.",
    "direction",
)
THROTTLE_LIMIT = gauge(
    "millstream_replication_throttle_limit_bytes_per_second",
    "leader.replication.throttled.rate and follower.replication.throttled.rate.",
    "direction",
)
_REPLICAS_PER_TURN = 100


async def collect_replication(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    broker = node.broker
    if broker is None:
        return
    replicas = broker.replicas
    counts = await _count(replicas, turns)
    await _logs(broker.partitions, page, turns)
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


async def _logs(partitions: Iterable[Partition], page: Page, turns: TimeSlices) -> None:
    sizes: dict[str, int] = {}
    for number, partition in enumerate(list(partitions)):
        if number % _REPLICAS_PER_TURN == 0:
            await turns.pause()
        log, (name, index) = partition.opened_log, partition.topic_partition
        if log is None:
            continue
        sizes[name] = sizes.get(name, 0) + log.size_bytes
        for batch in partition.unreadable.batches if partition.unreadable is not None else ():
            if batch.last >= log.log_start_offset:
                page.add(UNREADABLE, 1, name, str(index), str(batch.first), str(batch.last), str(batch.producer_id))
    for topic, size in sizes.items():
        if size:
            page.add(TOPIC_LOG_BYTES, size, topic)


async def _count(replicas: ReplicaManager, turns: TimeSlices) -> dict[str, int]:
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


REPLICATION = MetricsSubject(
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
        TOPIC_LOG_BYTES,
        UNREADABLE,
    ),
    collect_replication,
)


COMPACTED = gauge("millstream_compacted_logs", "Open logs with cleanup.policy=compact.")
DIRTY_RATIO = gauge("millstream_compaction_max_dirty_ratio", "The highest dirty ratio of all compacted logs.")
DIRTY_BYTES = gauge("millstream_compaction_dirty_bytes", "The dirty bytes (not compacted yet) of all compacted logs.")
RUNNING = gauge("millstream_compaction_running", "Logs that are being compacted.")
UNCLEANABLE = gauge("millstream_compaction_uncleanable_logs", "Logs that cannot be compacted; see the node's log.")

PASSED_OVER = gauge(
    "millstream_compaction_passed_over_batches",
    "Batches that the last pass over each log kept unchanged, because they exceed millstream.batch.max.records or "
    "millstream.batch.max.decompressed.bytes, or because their records are malformed.",
)


async def collect_compaction(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
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


COMPACTION = MetricsSubject(
    "compaction", (COMPACTED, DIRTY_RATIO, DIRTY_BYTES, RUNNING, UNCLEANABLE, PASSED_OVER), collect_compaction
)
