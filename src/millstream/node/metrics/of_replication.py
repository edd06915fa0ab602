"""Replication: how many partitions are in which state here, and what throttles do."""

from millstream.node.metrics.exposition import Page, counter, gauge
from millstream.node.metrics.subject import ObservedNode, Subject, Turns
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.replica_manager import ReplicaManager

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
_PER_TURN = 100


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
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
        if number % _PER_TURN == 0:
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
    collect,
)
