"""Metrics of the cluster and of the metadata quorum, as known to this node.

Every node reports the same values for the cluster: use the maximum, not the sum.
"""

from millstream.common.prometheus import Page, gauge
from millstream.node.consensus.raft.roles import Role
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices

BROKERS = gauge("millstream_cluster_brokers", "Registered brokers by state: active, fenced, stopping.", "state")
DISKS_LOST = gauge(
    "millstream_cluster_brokers_with_offline_log_directory",
    "Brokers that are fenced because their log directory failed.",
)
TOPICS = gauge("millstream_cluster_topics", "Topics, internal ones included.")
PARTITIONS = gauge("millstream_cluster_partitions", "Partitions.")
OFFLINE = gauge("millstream_cluster_offline_partitions", "Partitions without a leader. They cannot be written or read.")
NOT_PREFERRED = gauge(
    "millstream_cluster_not_preferred_leaders", "Partitions whose leader is not the preferred replica."
)
REASSIGNING = gauge("millstream_cluster_reassigning_partitions", "Partitions with a reassignment in progress.")
_PER_TURN = 200


async def collect_cluster(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    if node.loader is None:
        return
    image = node.loader.image
    states = {"active": 0, "fenced": 0, "stopping": 0}
    for broker in image.brokers.values():
        states["active" if broker.active else "fenced" if broker.fenced else "stopping"] += 1
    for state, count in states.items():
        page.add(BROKERS, count, state)
    page.add(DISKS_LOST, sum(broker.has_offline_log_dir for broker in image.brokers.values()))
    partitions = offline = not_preferred = reassigning = 0
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partitions % _PER_TURN == 0:
                await turns.pause()
            partitions += 1
            if not partition.has_leader:
                offline += 1
            elif partition.replicas and partition.leader != partition.replicas[0]:
                not_preferred += 1
            if partition.adding_replicas or partition.removing_replicas:
                reassigning += 1
    page.add(TOPICS, len(image.topics))
    page.add(PARTITIONS, partitions)
    page.add(OFFLINE, offline)
    page.add(NOT_PREFERRED, not_preferred)
    page.add(REASSIGNING, reassigning)


CLUSTER = MetricsSubject(
    "cluster", (BROKERS, DISKS_LOST, TOPICS, PARTITIONS, OFFLINE, NOT_PREFERRED, REASSIGNING), collect_cluster
)


ACTIVE = gauge("millstream_active_controller", "1 if this node is the active controller (the leader of the quorum).")
ROLE = gauge("millstream_quorum_role", "1 for the role of this node in the quorum, 0 for all others.", "role")
VOTER = gauge("millstream_quorum_voter", "1 if this node is a voter; 0 for an observer, for example a broker.")
VOTERS = gauge("millstream_quorum_voters", "Voters of the quorum, as this node knows them.")
EPOCH = gauge("millstream_quorum_epoch", "The epoch of the quorum. Each election increments it.")
LEADER = gauge("millstream_quorum_leader_id", "The leader of the quorum; -1 if this node knows none.")
HIGH_WATERMARK = gauge(
    "millstream_quorum_high_watermark", "The high watermark of the metadata log, as known to this node."
)
LOG_END = gauge("millstream_quorum_log_end_offset", "The log end offset of this node's metadata log.")
UNPUBLISHED = gauge(
    "millstream_quorum_unapplied_records", "Committed metadata records that this node has not applied yet."
)
LAG = gauge(
    "millstream_quorum_replica_lag_records",
    "The lag of each replica of the metadata log; reported by the leader. kind is voter or observer.",
    "replica",
    "kind",
)


async def collect_quorum(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    quorum = node.quorum
    if quorum is None or not quorum.is_started:
        return
    page.add(ACTIVE, quorum.is_leader)
    for role in Role:
        page.add(ROLE, quorum.replica.role is role, role.value)
    page.add(VOTER, quorum.is_voter)
    page.add(VOTERS, len(quorum.voters))
    page.add(EPOCH, quorum.epoch)
    page.add(LEADER, -1 if quorum.leader_id is None else quorum.leader_id)
    page.add(HIGH_WATERMARK, max(quorum.high_watermark, 0))
    page.add(LOG_END, quorum.log_end_offset)
    page.add(UNPUBLISHED, max(quorum.high_watermark - quorum.published_offset, 0))
    if quorum.is_leader:
        described = quorum.replica.describe_quorum(quorum.now_ms())
        for kind, replicas in (("voter", described.voters), ("observer", described.observers)):
            for progress in replicas:
                behind = quorum.log_end_offset - max(progress.log_end_offset, 0)
                page.add(LAG, max(behind, 0), str(progress.replica.id), kind)


QUORUM = MetricsSubject(
    "quorum",
    (ACTIVE, ROLE, VOTER, VOTERS, EPOCH, LEADER, HIGH_WATERMARK, LOG_END, UNPUBLISHED, LAG),
    collect_quorum,
)
