"""What the invariants look at: the state of every living node at one moment, as plain values.

Invariants know nothing of nodes, so that tests can show them what must never be.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol
from uuid import UUID

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    MINIMUM_LENGTH,
    BatchHeader,
    Bytes,
    read_header,
)
from millstream.formats.records.record import Record, read_batches
from millstream.node.metadata.image import MetadataImage
from millstream.node.replicas.partition import Partition
from millstream.node.runtime.node import Node
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.machine import Machine

_READ_BYTES = 1 << 20
METADATA_TOPIC_ID = UUID(int=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it lies in a log; two that are equal hold the same records in the same places."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    checksum: int
    data: Bytes = field(default=b"", compare=False, repr=False)
    """All of it."""

    @property
    def records(self) -> tuple[Record, ...]:
        return _records(bytes(self.data))

    @property
    def header(self) -> BatchHeader:
        return read_header(self.data)


@lru_cache(maxsize=2048)
def _records(data: bytes) -> tuple[Record, ...]:
    """All replicas have the same bytes, and several invariants look at each."""
    return tuple(record for _, records in read_batches(data) for record in records)


class LogContent(Protocol):
    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def size(self) -> int:
        """In bytes."""
        ...

    def batches(self, offset: int, below: int) -> Iterable[Batch]:
        """From the batch that holds `offset` on, those that end at or below `below`."""
        ...


@dataclass(frozen=True, slots=True)
class QuorumSight:
    """A node's part in the metadata quorum."""

    node_id: int
    life: int
    """Counts the starts of the node's process."""
    epoch: int
    leader_id: int | None
    is_leader: bool
    high_watermark: int
    log: LogContent


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ReplicaSight:
    """A partition on a node."""

    node_id: int
    life: int
    key: PartitionKey
    name: str
    topic: str
    leader_epoch: int
    is_leader: bool
    high_watermark: int
    log: LogContent | None
    """None while nobody has opened it."""
    last_stable_offset: int = 0


@dataclass(frozen=True, slots=True)
class ImageSight:
    """The metadata as a node has it."""

    node_id: int
    life: int
    image: MetadataImage


@dataclass(slots=True)
class Sight:
    at: float
    quorums: list[QuorumSight] = field(default_factory=list)
    replicas: list[ReplicaSight] = field(default_factory=list)
    images: list[ImageSight] = field(default_factory=list)
    acked: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition: the offset after the last record that a client was told to be safe."""
    changed: list[ReplicaSight] | None = None
    """Those of the replicas that are not as they were at the last look; None where it is not known."""
    gone: list[ReplicaSight] = field(default_factory=list)
    """Replicas as they were at the last look, which their process has no more."""

    @property
    def fresh(self) -> list[ReplicaSight]:
        """Replicas of which something may be new."""
        return self.replicas if self.changed is None else self.changed


class StoredLog:
    """A node's log, read without changing it."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    @property
    def start(self) -> int:
        return self._log.log_start_offset

    @property
    def end(self) -> int:
        return self._log.log_end_offset

    @property
    def size(self) -> int:
        return self._log.size_bytes

    def batches(self, offset: int, below: int) -> Iterable[Batch]:
        log = self._log
        below = min(below, log.log_end_offset)
        while offset < below:
            piece = log.read(offset, _READ_BYTES, up_to=below, at_least_one=True)
            piece.prepare()
            before = offset
            data = memoryview(piece.read())
            for position, header in _headers_from(data, offset):
                base, length, epoch, _, checksum, _, delta = header[:7]
                last = base + delta
                if last >= below:
                    return
                yield Batch(base, last, epoch, checksum, data[position : position + length + LOG_OVERHEAD])
                offset = last + 1
            if offset == before:
                if "compact" in log.config.cleanup_policy:
                    return  # cleaned, up to a batch that goes on behind what is asked for
                raise LookupError(f"{log.topic_partition} has nothing at offset {offset}, and ends at {below}")


def _headers_from(data: memoryview, offset: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, header) of the batches from the one that holds an offset on. A read may begin far before that."""
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = HEADER.unpack_from(data, position)
        base, length, _, magic, _, _, delta = header[:7]
        after = position + length + LOG_OVERHEAD
        if magic != MAGIC_V2 or length < MINIMUM_LENGTH or base < 0 or delta < 0 or header[12] < 0 or after > end:
            return  # as `iterate_headers` does
        if base + delta >= offset:
            yield position, header
        position = after


class Observer:
    """Looks at the cluster again and again, and remembers how each replica was: most are as they were."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], dict[Partition, tuple[_State, ReplicaSight]]] = {}
        """By node and life of its process."""

    def look(self, at: float, machines: dict[int, Machine], acked: dict[tuple[str, int], int]) -> Sight:
        """The cluster as it is now."""
        changed: list[ReplicaSight] = []
        sight = Sight(at, acked=acked, changed=changed)
        before, self._known = self._known, {}
        for node_id, machine in machines.items():
            process = machine.process
            if process is None or not isinstance(process.program, Node):
                continue
            node, life = process.program, process.number
            quorum = node.quorum
            if quorum is None or not quorum.is_started:
                continue
            sight.quorums.append(
                QuorumSight(
                    node_id,
                    life,
                    quorum.epoch,
                    quorum.leader_id,
                    quorum.is_leader,
                    quorum.high_watermark,
                    StoredLog(quorum.log.partition),
                )
            )
            if node.loader is not None:
                sight.images.append(ImageSight(node_id, life, node.loader.image))
            if node.broker is not None:
                known = self._known[node_id, life] = before.get((node_id, life), {})
                self._look_at_replicas(node_id, life, list(node.broker.partitions), known, sight, changed)
        return sight

    def _look_at_replicas(
        self,
        node_id: int,
        life: int,
        partitions: list[Partition],
        known: dict[Partition, tuple["_State", ReplicaSight]],
        sight: Sight,
        changed: list[ReplicaSight],
    ) -> None:
        replicas = sight.replicas
        for partition in partitions:
            log, is_leader = partition.opened_log, partition.is_leader
            if log is None:
                end, stable = -1, 0
            else:
                end, stable = log.log_end_offset, partition.last_stable_offset if is_leader else 0
            state = (partition.leader_epoch, is_leader, partition.high_watermark, log, end, stable)
            found = known.get(partition)
            if found is not None and found[0] == state:
                replicas.append(found[1])
                continue
            seen = _replica_sight(node_id, life, partition, stable)
            known[partition] = state, seen
            replicas.append(seen)
            changed.append(seen)
        if len(known) > len(partitions):
            for partition in known.keys() - set(partitions):
                sight.gone.append(known.pop(partition)[1])


_State = tuple[int, bool, int, PartitionLog | None, int, int]
"""Leader epoch, whether it leads, high watermark, log, its end, last stable offset."""


def _replica_sight(node_id: int, life: int, partition: Partition, stable: int) -> ReplicaSight:
    where, log = partition.topic_partition, partition.opened_log
    return ReplicaSight(
        node_id,
        life,
        PartitionKey(partition.topic_id, where.partition),
        str(where),
        where.topic,
        partition.leader_epoch,
        partition.is_leader,
        partition.high_watermark,
        StoredLog(log) if log is not None else None,
        stable,
    )


UNREADABLE = (KafkaError, LookupError)
"""What reading a log fails with when it does not hold what it says."""
