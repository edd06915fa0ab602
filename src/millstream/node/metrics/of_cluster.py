"""The cluster as the metadata on this node has it: every node tells the same, so take the maximum, not the sum."""

from millstream.node.metrics.exposition import Page, gauge
from millstream.node.metrics.subject import ObservedNode, Subject, Turns

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


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
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


CLUSTER = Subject("cluster", (BROKERS, DISKS_LOST, TOPICS, PARTITIONS, OFFLINE, NOT_PREFERRED, REASSIGNING), collect)
