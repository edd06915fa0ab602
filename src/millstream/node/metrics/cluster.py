"""The cluster as the metadata on this node has it: every node tells the same, so take the maximum, not the sum.

The metadata quorum as this node sees it: its role, who leads, how far everybody is.
"""

from millstream.node.consensus.raft.roles import Role
from millstream.node.metrics.exposition import Page, gauge
from millstream.node.metrics.observed_node import ObservedNode, Subject, Turns

BROKERS = gauge(
    "millstream_cluster_brokers", "Registered brokers: active, fenced (silent or starting), stopping.", "state"
)
DISKS_LOST = gauge(
    "millstream_cluster_brokers_with_offline_log_directory",
    "Brokers that left the cluster because their log directory failed, and are not back yet.",
)
TOPICS = gauge("millstream_cluster_topics", "Topics, internal ones included.")
PARTITIONS = gauge("millstream_cluster_partitions", "Partitions.")
OFFLINE = gauge("millstream_cluster_offline_partitions", "Partitions without a leader: nobody can write or read them.")
NOT_PREFERRED = gauge(
    "millstream_cluster_not_preferred_leaders", "Partitions led by another replica than the first of them."
)
REASSIGNING = gauge("millstream_cluster_reassigning_partitions", "Partitions whose replicas are being moved.")
_PER_TURN = 200


async def collect_cluster(node: ObservedNode, page: Page, turns: Turns) -> None:
    if node.loader is None:
        return
    image = node.loader.image
    states = {"active": 0, "fenced": 0, "stopping": 0}
    for broker in image.brokers.values():
        states["active" if broker.active else "fenced" if broker.fenced else "stopping"] += 1
    for state, count in states.items():
        page.add(BROKERS, count, state)
    page.add(DISKS_LOST, sum(broker.has_lost_its_disk for broker in image.brokers.values()))
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


CLUSTER = Subject(
    "cluster", (BROKERS, DISKS_LOST, TOPICS, PARTITIONS, OFFLINE, NOT_PREFERRED, REASSIGNING), collect_cluster
)


ACTIVE = gauge("millstream_active_controller", "1 where this node is the active controller: leads the quorum.")
ROLE = gauge("millstream_quorum_role", "1 for the role of this node in the quorum, 0 for all others.", "role")
VOTER = gauge("millstream_quorum_voter", "1 where this node may vote; 0 for an observer, as brokers are.")
VOTERS = gauge("millstream_quorum_voters", "Voters of the quorum, as this node knows them.")
EPOCH = gauge("millstream_quorum_epoch", "The epoch: each election raises it.")
LEADER = gauge("millstream_quorum_leader_id", "The node that leads; -1 where this node knows of none.")
HIGH_WATERMARK = gauge("millstream_quorum_high_watermark", "Up to where metadata is committed, as this node knows.")
LOG_END = gauge("millstream_quorum_log_end_offset", "Where this node's copy of the metadata log ends.")
UNPUBLISHED = gauge(
    "millstream_quorum_unapplied_records", "Committed metadata records that this node has yet to act on."
)
LAG = gauge(
    "millstream_quorum_replica_lag_records",
    "How far each replica of the metadata log is behind; told by the leader. kind is voter or observer.",
    "replica",
    "kind",
)


async def collect_quorum(node: ObservedNode, page: Page, turns: Turns) -> None:
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


QUORUM = Subject(
    "quorum",
    (ACTIVE, ROLE, VOTER, VOTERS, EPOCH, LEADER, HIGH_WATERMARK, LOG_END, UNPUBLISHED, LAG),
    collect_quorum,
)
