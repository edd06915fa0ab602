"""What a topic holds and who reads it: what would go if it were deleted."""

from dataclasses import dataclass

from millstream.console.live.snapshot import Snapshot
from millstream.raw_client import EARLIEST, Cluster, TopicPartition


@dataclass(frozen=True, slots=True)
class Reader:
    group: str
    kind: str
    members: int
    lag: int


@dataclass(frozen=True, slots=True)
class Contents:
    topic: str
    partitions: int
    replicas: int
    records: int | None
    """Offsets between start and end: compaction and transactions leave fewer records. None if leaders do not answer."""
    size_bytes: int
    """Of all replicas."""
    readers: tuple[Reader, ...]


def readers_of(topic: str, snapshot: Snapshot) -> tuple[Reader, ...]:
    """Groups that have committed offsets in the topic, or members assigned to it; the active ones first."""
    found = []
    for group in snapshot.groups.values():
        members = sum(any(place.topic == topic for place in member.partitions) for member in group.members)
        committed = any(place.topic == topic for place in group.offsets)
        if members or committed:
            lag = sum(behind for place, behind in group.lags.items() if place.topic == topic)
            found.append(Reader(group.name, group.kind, members, lag))
    return tuple(sorted(found, key=lambda reader: (-reader.members, reader.group)))


def log_starts(cluster: Cluster, topic: str, partitions: int) -> dict[int, int]:
    places = {TopicPartition(topic, index): EARLIEST for index in range(partitions)}
    return {place.partition: there.offset for place, there in cluster.offsets(places).items()}


def contents_of(topic: str, snapshot: Snapshot, starts: dict[int, int] | None) -> Contents:
    """`starts`: where the logs begin, if that could be asked."""
    described = snapshot.topics[topic]
    records = None
    if starts is not None:
        ends = {place.partition: end for place, end in snapshot.ends.items() if place.topic == topic}
        records = sum(max(0, end - starts.get(index, end)) for index, end in ends.items())
    return Contents(
        topic,
        len(described.partitions),
        sum(len(partition.replicas) for partition in described.partitions),
        records,
        snapshot.size(described),
        readers_of(topic, snapshot),
    )
