"""Table rows of the Topics page, computed from a snapshot, and the summary shown before a topic is deleted."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from millstream.admin.cluster import Partition
from millstream.console.console import href
from millstream.console.formats import plural, size
from millstream.console.live.snapshot import Snapshot, Topic
from millstream.raw_client import EARLIEST, Cluster, TopicPartition
from millstream.raw_client.model import NO_LEADER

Row = dict[str, Any]


def topic_rows(snapshot: Snapshot, *, internal: bool) -> list[Row]:
    return snapshot.once(_all_topic_rows if internal else _topic_rows)


def _topic_rows(snapshot: Snapshot) -> list[Row]:
    return [row for row in snapshot.once(_all_topic_rows) if not row["_internal"]]


def _all_topic_rows(snapshot: Snapshot) -> list[Row]:
    readers = _readers(snapshot)
    rows: list[Row] = []
    for topic in snapshot.topics.values():
        state, tone = health(topic, snapshot)
        rows.append(
            {
                "topic": topic.name,
                "_internal": topic.is_internal or topic.name.startswith("__"),
                "partitions": len(topic.partitions),
                "replicas": max((len(each.replicas) for each in topic.partitions), default=0),
                "state": state,
                "_tones": {"state": tone},
                "rate": snapshot.rates.get(topic.name),
                "size": snapshot.size(topic) if snapshot.disks else None,
                "readers": readers[topic.name] if snapshot.groups_known else None,
                "_href": href("/topics", topic=topic.name),
            }
        )
    return rows


def health(topic: Topic, snapshot: Snapshot) -> tuple[str, str]:
    """The state of a topic in a few words, and its colour."""
    offline = sum(each.leader == NO_LEADER or not snapshot.is_up(each.leader) for each in topic.partitions)
    if offline and snapshot.brokers:
        return f"{offline} offline", "bad"
    wanted = snapshot.min_in_sync.get(topic.name, 1)
    short = sum(len(each.isr) < min(wanted, len(each.replicas)) for each in topic.partitions)
    if short:
        return f"{short} below min ISR", "bad"
    behind = sum(each.is_under_replicated for each in topic.partitions)
    if behind:
        return f"{behind} under-replicated", "warn"
    return "healthy", "good"


def layout_rows(topic: Topic, snapshot: Snapshot, brokers: list[int]) -> list[Row]:
    """A row per partition with a cell per broker: `b1` is the text, its tone the role of the replica."""
    rows: list[Row] = []
    for partition in topic.partitions:
        row: Row = {
            "partition": partition.index,
            "end": snapshot.ends.get(partition.topic_partition),
            "epoch": partition.leader_epoch,
            "_tones": {},
        }
        for broker in brokers:
            role = _role(partition, broker, snapshot)
            row["_tones"][f"b{broker}"] = role
            row[f"b{broker}"] = _cell(partition, broker, role, snapshot)
        rows.append(row)
    return rows


def brokers_of(topic: Topic, snapshot: Snapshot) -> list[int]:
    """The columns of the layout: all brokers, and those with replicas that are not registered."""
    return sorted(
        {broker.id for broker in snapshot.brokers} | {id for each in topic.partitions for id in each.replicas}
    )


def _role(partition: Partition, broker: int, snapshot: Snapshot) -> str:
    if broker not in partition.replicas:
        return "none"
    if broker not in partition.isr or (snapshot.brokers and not snapshot.is_up(broker)):
        return "behind"
    return "leader" if broker == partition.leader else "insync"


_ROLES = {"leader": "leader", "insync": "in sync", "behind": "not in sync"}


def _cell(partition: Partition, broker: int, role: str, snapshot: Snapshot) -> str:
    if role == "none":
        return "·"
    word = _ROLES[role] if snapshot.is_up(broker) or not snapshot.brokers else "down"
    disk = snapshot.disks.get(broker)
    held = disk.sizes.get(partition.topic_partition) if disk is not None else None
    return word if held is None else f"{word}|{size(held)}"


def _readers(snapshot: Snapshot) -> Counter[str]:
    found: Counter[str] = Counter()
    for group in snapshot.groups.values():
        topics = {topic_partition.topic for topic_partition in group.offsets}
        topics |= {topic_partition.topic for member in group.members for topic_partition in member.assignment}
        found.update(topics)
    return found


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
    """End minus start offsets; compaction and transactions leave fewer records. None if leaders do not respond."""
    size_bytes: int
    """Bytes of all replicas."""
    readers: tuple[Reader, ...]


def readers_of(topic: str, snapshot: Snapshot) -> tuple[Reader, ...]:
    """Groups that have committed offsets in the topic, or members assigned to it; the active ones first."""
    found = []
    for group in snapshot.groups.values():
        members = sum(
            any(topic_partition.topic == topic for topic_partition in member.assignment) for member in group.members
        )
        committed = any(topic_partition.topic == topic for topic_partition in group.offsets)
        if members or committed:
            lag = sum(behind for topic_partition, behind in group.lags.items() if topic_partition.topic == topic)
            found.append(Reader(group.name, group.type, members, lag))
    return tuple(sorted(found, key=lambda reader: (-reader.members, reader.group)))


def log_starts(cluster: Cluster, topic: str, partitions: int) -> dict[int, int]:
    topic_partitions = {TopicPartition(topic, index): EARLIEST for index in range(partitions)}
    return {
        topic_partition.partition: there.offset for topic_partition, there in cluster.offsets(topic_partitions).items()
    }


def contents_of(topic: str, snapshot: Snapshot, starts: dict[int, int] | None) -> Contents:
    """`starts`: log start offsets; None if they could not be read."""
    described = snapshot.topics[topic]
    records = None
    if starts is not None:
        ends = {
            topic_partition.partition: end
            for topic_partition, end in snapshot.ends.items()
            if topic_partition.topic == topic
        }
        records = sum(max(0, end - starts.get(index, end)) for index, end in ends.items())
    return Contents(
        topic,
        len(described.partitions),
        sum(len(partition.replicas) for partition in described.partitions),
        records,
        snapshot.size(described),
        readers_of(topic, snapshot),
    )


def deletion_summary(contents: Contents) -> list[str]:
    """What is deleted with a topic, for the confirmation."""
    records = "an unknown number of records" if contents.records is None else plural(contents.records, "record")
    lines = [
        f"topic {contents.topic}",
        f"{plural(contents.partitions, 'partition')} with {plural(contents.replicas, 'replica')}",
        f"{records}, {size(contents.size_bytes)} on disk",
    ]
    if not contents.readers:
        return [*lines, "no consumer groups"]
    return lines + [
        f"read by group {reader.group} ({reader.kind}, {plural(reader.members, 'member')}, lag {reader.lag:,})"
        for reader in contents.readers
    ]
