"""Leaders and replicas on their way: which partitions are not led as preferred, how far a move is, elections."""

from collections.abc import Sequence

from millstream.console.live.snapshot import NO_LEADER, Partition, Reassignment, Snapshot
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster, TopicPartition
from millstream.raw_client.errors import error_code, refusal

_TIMEOUT_MS = 30_000


def not_preferred(snapshot: Snapshot) -> list[Partition]:
    """Those that could be led by the first of their replicas, since it is in sync, and are not."""
    return [
        each
        for each in snapshot.partitions
        if each.replicas and each.leader not in (NO_LEADER, each.replicas[0]) and each.replicas[0] in each.isr
    ]


def progress_of(snapshot: Snapshot, move: Reassignment) -> float:
    """How much of the leader's log the new replicas have by now, in percent; the slowest decides."""
    topic = snapshot.topics.get(move.place.topic)
    if topic is None or move.place.partition >= len(topic.partitions) or not move.adding:
        return 100.0
    leader = snapshot.disks.get(topic.partitions[move.place.partition].leader)
    whole = leader.sizes.get(move.place, 0) if leader is not None else 0
    copied = [
        snapshot.disks[number].sizes.get(move.place, 0) if number in snapshot.disks else 0 for number in move.adding
    ]
    return 100.0 if not whole else min(100.0, 100.0 * min(copied) / whole)


def elect_preferred(cluster: Cluster, places: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
    """What could not be, and why."""
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    answer = cluster.call(
        "elect_leaders",
        election_type=0,
        topic_partitions=[{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
        timeout_ms=_TIMEOUT_MS,
    )
    if answer.error_code:
        raise refusal("the election", error_code(answer.error_code))
    return {
        TopicPartition(topic.topic, row.partition_id): row.error_message or error_code(row.error_code).name
        for topic in answer.replica_election_results
        for row in topic.partition_result
        if row.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    }
