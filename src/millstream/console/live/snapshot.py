"""The state of the cluster at one time, combined from several responses. Immutable, so pages can keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from millstream.raw_client import TopicPartition

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    trouble: str | None = None
    """Why it does not answer us; None if it does."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_up(self) -> bool:
        return not self.fenced and self.trouble is None


@dataclass(frozen=True, slots=True)
class Partition:
    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.index)

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    is_internal: bool
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class QuorumNode:
    id: int
    is_voter: bool
    is_leader: bool
    log_end: int
    lag: int | None
    """Entries behind the leader; None if it was never heard of."""
    caught_up_ms_ago: int | None


@dataclass(frozen=True, slots=True)
class Quorum:
    leader: int
    epoch: int
    high_watermark: int
    nodes: tuple[QuorumNode, ...]


NO_QUORUM = Quorum(NO_LEADER, -1, -1, ())


@dataclass(frozen=True, slots=True)
class Disk:
    """One broker's log directories."""

    used_bytes: int
    total_bytes: int | None
    free_bytes: int | None
    cordoned: bool
    sizes: Mapping[TopicPartition, int]
    lags: Mapping[TopicPartition, int]
    """How many offsets this broker's replica is behind."""
    failed: tuple[str, ...] = ()
    """Directories whose disk fails."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    place: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client: str
    host: str
    instance: str | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    kind: str
    """classic, consumer or share."""
    state: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...] = ()
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Committed; for a share group where it starts."""
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        return sum(self.lags.values())

    @property
    def is_active(self) -> bool:
        return bool(self.members) or self.state not in ("Empty", "Dead")


@dataclass(frozen=True, slots=True)
class Snapshot:
    number: int = 0
    at: float = 0.0
    """Seconds since 1970."""
    trouble: str | None = "no response from the cluster yet"
    """Why no broker told us about the cluster; what follows then is as it was last known."""
    cluster_id: str = ""
    controller: int = NO_LEADER
    brokers: tuple[Broker, ...] = ()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    quorum: Quorum | None = None
    """None where the brokers have none to tell of."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Records per second written to each topic, over the last seconds."""
    disks: Mapping[int, Disk] = field(default_factory=dict)
    failed_directories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Log directories whose disk fails, by broker."""
    min_in_sync: Mapping[str, int] = field(default_factory=dict)
    reassignments: tuple[Reassignment, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    groups_known: bool = False
    """Whether the groups have been read yet."""
    metrics: Mapping[int, "Mapping[str, float]"] = field(default_factory=dict)
    """What each broker's own /metrics said, see `measured`; a broker without any is absent."""
    acquired: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Records in flight: those that members of share groups hold, as leaders with metrics tell; by group."""

    @property
    def partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def broker(self, number: int) -> Broker | None:
        return next((each for each in self.brokers if each.id == number), None)

    def is_up(self, number: int) -> bool:
        broker = self.broker(number)
        return broker is not None and broker.is_up

    def size(self, topic: Topic) -> int:
        """Bytes of all its replicas, as far as brokers told."""
        return sum(disk.sizes.get(each.place, 0) for disk in self.disks.values() for each in topic.partitions)


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
