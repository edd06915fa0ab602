"""The state of the cluster at one time, combined from several responses. Immutable, so pages can keep it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from millstream.admin.cluster import Broker as RegisteredBroker
from millstream.admin.cluster import LogDirectories, Partition, Quorum, Reassignment
from millstream.admin.groups import Group
from millstream.raw_client import TopicPartition
from millstream.raw_client.model import NO_LEADER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Broker(RegisteredBroker):
    """A registered broker, and whether it responds."""

    error: str | None = None
    """Why it does not respond; None if it does."""
    slow: str | None = None
    """How slowly it responds, if it does; None if it is fast enough."""

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
    topics_at: float = 0.0
    """When the topics were read: in a large cluster, not in every poll."""
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
    computed: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Results of `once`."""

    def once(self, compute: "Callable[[Snapshot], T]") -> T:
        """What a function makes of this snapshot: computed once for all open pages, because it may go over all
        partitions."""
        if compute not in self.computed:
            self.computed[compute] = compute(self)
        found: T = self.computed[compute]
        return found

    @property
    def partitions(self) -> list[Partition]:
        return self.once(_partitions)

    @property
    def leader_counts(self) -> Mapping[int, int]:
        """The number of partitions that each broker leads."""
        return self.once(_leader_counts)

    @property
    def replica_counts(self) -> Mapping[int, int]:
        return self.once(_replica_counts)

    def broker(self, number: int) -> Broker | None:
        return next((each for each in self.brokers if each.id == number), None)

    def is_up(self, number: int) -> bool:
        broker = self.broker(number)
        return broker is not None and broker.is_up

    def size(self, topic: Topic) -> int:
        """Bytes of all its replicas on brokers that responded."""
        return self.once(_sizes).get(topic.name, 0)


def _partitions(snapshot: Snapshot) -> list[Partition]:
    return [partition for topic in snapshot.topics.values() for partition in topic.partitions]


def _leader_counts(snapshot: Snapshot) -> Mapping[int, int]:
    return Counter(each.leader for each in snapshot.partitions)


def _replica_counts(snapshot: Snapshot) -> Mapping[int, int]:
    return Counter(number for each in snapshot.partitions for number in each.replicas)


def _sizes(snapshot: Snapshot) -> Mapping[str, int]:
    sizes: Counter[str] = Counter()
    for disk in snapshot.disks.values():
        for topic_partition, held in disk.sizes.items():
            sizes[topic_partition.topic] += held
    return sizes


def not_preferred(snapshot: Snapshot) -> list[Partition]:
    """Partitions whose preferred replica is in sync and does not lead."""
    return snapshot.once(_not_preferred)


def _not_preferred(snapshot: Snapshot) -> list[Partition]:
    return [
        each
        for each in snapshot.partitions
        if each.replicas and not each.is_led_as_preferred and each.replicas[0] in each.isr
    ]


def progress_of(snapshot: Snapshot, move: Reassignment) -> float:
    """Percentage of the leader's log that the slowest new replica has copied."""
    whole, copied = _copied(snapshot, move)
    return 100.0 if not whole or not copied else min(100.0, 100.0 * min(copied) / whole)


def bytes_left(snapshot: Snapshot, move: Reassignment) -> int | None:
    """What the new replicas have still to copy; None if the size of the log is not known."""
    whole, copied = _copied(snapshot, move)
    return None if whole is None else sum(max(0, whole - each) for each in copied)


def _copied(snapshot: Snapshot, move: Reassignment) -> tuple[int | None, list[int]]:
    """The size of the leader's log, and the sizes of the new replicas."""
    topic = snapshot.topics.get(move.partition.topic)
    if topic is None or move.partition.partition >= len(topic.partitions):
        return None, []
    leader = snapshot.disks.get(topic.partitions[move.partition.partition].leader)
    whole = leader.sizes.get(move.partition, 0) if leader is not None else None
    return whole, [
        snapshot.disks[number].sizes.get(move.partition, 0) if number in snapshot.disks else 0 for number in move.adding
    ]
