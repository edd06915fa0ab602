"""The metadata quorum as this node sees it: its role, who leads, how far everybody is."""

from millstream.node.consensus.raft.roles import Role
from millstream.node.metrics.exposition import Page, gauge
from millstream.node.metrics.subject import ObservedNode, Subject, Turns

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


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
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
    collect,
)
