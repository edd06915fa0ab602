"""The state of the cluster at one time, combined from several responses. Immutable, so pages can keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millstream.admin.cluster import Broker as RegisteredBroker
from millstream.admin.cluster import LogDirectories, Partition, Quorum, Reassignment
from millstream.admin.groups import Group
from millstream.raw_client import TopicPartition
from millstream.raw_client.model import NO_LEADER


@dataclass(frozen=True, slots=True)
class Broker(RegisteredBroker):
    """A registered broker, and whether it responds."""

    error: str | None = None
    """Why it does not respond; None if it does."""

    @property
    def is_up(self) -> bool:
        return not self.fenced and self.error is None


@dataclass(frozen=True, slots=True)
class CertificateEnd:
    """A certificate, and the time at which it expires."""

    owner: str
    """`broker 2 (host:port)`, `listener SSL of broker 2`, or `the gateway`."""
    ends_at: float
    """Seconds since 1970."""
    is_of_gateway: bool = False

    @property
    def end_text(self) -> str:
        return datetime.fromtimestamp(self.ends_at, UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    is_internal: bool
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    number: int = 0
    at: float = 0.0
    """Seconds since 1970."""
    error: str | None = "no response from the cluster yet"
    """Why no broker responds. The other values are then the last known ones."""
    cluster_id: str = ""
    controller: int = NO_LEADER
    brokers: tuple[Broker, ...] = ()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    quorum: Quorum | None = None
    """None if the brokers do not support DescribeQuorum."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Records per second written to each topic, over the last seconds."""
    disks: Mapping[int, LogDirectories] = field(default_factory=dict)
    failed_directories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Log directories with a failed disk, by broker."""
    min_in_sync: Mapping[str, int] = field(default_factory=dict)
    reassignments: tuple[Reassignment, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    groups_known: bool = False
    """Whether the groups have been read yet."""
    metrics: Mapping[int, "Mapping[str, float]"] = field(default_factory=dict)
    """Rates from the /metrics page of each broker that has one."""
    acquired: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Records in flight of share groups, from the metrics of the leaders; by group."""
    certificates: tuple[CertificateEnd, ...] = ()
    """When certificates expire."""

    @property
    def partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def broker(self, number: int) -> Broker | None:
        return next((each for each in self.brokers if each.id == number), None)

    def is_up(self, number: int) -> bool:
        broker = self.broker(number)
        return broker is not None and broker.is_up

    def size(self, topic: Topic) -> int:
        """Bytes of all its replicas on brokers that responded."""
        return sum(disk.sizes.get(each.topic_partition, 0) for disk in self.disks.values() for each in topic.partitions)


def not_preferred(snapshot: Snapshot) -> list[Partition]:
    """Partitions whose preferred replica is in sync and does not lead."""
    return [
        each
        for each in snapshot.partitions
        if each.replicas and not each.is_led_as_preferred and each.replicas[0] in each.isr
    ]


def progress_of(snapshot: Snapshot, move: Reassignment) -> float:
    """Percentage of the leader's log that the slowest new replica has copied."""
    topic = snapshot.topics.get(move.partition.topic)
    if topic is None or move.partition.partition >= len(topic.partitions) or not move.adding:
        return 100.0
    leader = snapshot.disks.get(topic.partitions[move.partition.partition].leader)
    whole = leader.sizes.get(move.partition, 0) if leader is not None else 0
    copied = [
        snapshot.disks[number].sizes.get(move.partition, 0) if number in snapshot.disks else 0 for number in move.adding
    ]
    return 100.0 if not whole else min(100.0, 100.0 * min(copied) / whole)
