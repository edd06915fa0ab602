"""Observations: the state of all running nodes at one time, as plain values for the invariants.

Invariants do not access nodes, so tests can give them states that must be rejected.
"""

from collections.abc import Iterable, Iterator
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple, Protocol
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
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
    """A batch of a log. Equal batches have the same records at the same offsets."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    checksum: int
    data: Bytes = field(default=b"", compare=False, repr=False)
    """The whole batch."""

    @property
    def records(self) -> tuple[Record, ...]:
        return _records(bytes(self.data))

    @property
    def header(self) -> BatchHeader:
        return read_header(self.data)


@lru_cache(maxsize=2048)
def _records(data: bytes) -> tuple[Record, ...]:
    """Cached: replicas have the same bytes, and several invariants read each batch."""
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
        """The batches from the one with `offset` on that end below `below`."""
        ...


@dataclass(frozen=True, slots=True)
class ObservedQuorum:
    """The quorum state of a node."""

    node_id: int
    life: int
    """The number of the process of this node."""
    epoch: int
    leader_id: int | None
    is_leader: bool
    high_watermark: int
    log: LogContent


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ObservedReplica:
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
    """None while the log is not open."""
    last_stable_offset: int = 0


@dataclass(frozen=True, slots=True)
class ObservedImage:
    """The metadata image of a node."""

    node_id: int
    life: int
    image: MetadataImage


@dataclass(slots=True)
class Observation:
    at: float
    quorums: list[ObservedQuorum] = field(default_factory=list)
    replicas: list[ObservedReplica] = field(default_factory=list)
    images: list[ObservedImage] = field(default_factory=list)
    acked: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition: the offset after the last acknowledged record."""
    changed: list[ObservedReplica] | None = None
    """The replicas that changed since the last observation; None if not known."""
    gone: list[ObservedReplica] = field(default_factory=list)
    """Replicas that were removed since the last observation, in their last state."""

    @property
    def fresh(self) -> list[ObservedReplica]:
        """Replicas that may have changed."""
        return self.replicas if self.changed is None else self.changed


class StoredLog:
    """Read-only access to the log of a node."""

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    @property
    def start(self) -> int:
        return self._log.local_start_offset

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
                    return  # compacted, up to a batch that ends beyond `below`
                raise LookupError(
                    f"{log.topic_partition} has no whole batch from offset {offset} to {below}: records are missing, or"
                    " the high watermark is within a batch"
                )


def _headers_from(data: memoryview, offset: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, header) of the batches from the one with `offset` on. A read may start long before it."""
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
    """Observes the cluster repeatedly. It remembers the state of each replica, because most do not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], dict[Partition, tuple[_State, ObservedReplica]]] = {}
        """By node and process number."""

    def look(self, at: float, machines: dict[int, Machine], acked: dict[tuple[str, int], int]) -> Observation:
        """Observes the cluster now."""
        changed: list[ObservedReplica] = []
        observation = Observation(at, acked=acked, changed=changed)
        before, self._known = self._known, {}
        for node_id, machine in machines.items():
            process = machine.process
            if process is None or not isinstance(process.program, Node):
                continue
            node, life = process.program, process.number
            quorum = node.quorum
            if quorum is None or not quorum.is_started:
                continue
            observation.quorums.append(
                ObservedQuorum(
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
                observation.images.append(ObservedImage(node_id, life, node.loader.image))
            if node.broker is not None:
                known = self._known[node_id, life] = before.get((node_id, life), {})
                self._look_at_replicas(node_id, life, list(node.broker.partitions), known, observation, changed)
        return observation

    def _look_at_replicas(
        self,
        node_id: int,
        life: int,
        partitions: list[Partition],
        known: dict[Partition, tuple["_State", ObservedReplica]],
        observation: Observation,
        changed: list[ObservedReplica],
    ) -> None:
        replicas = observation.replicas
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
            seen = _observe_replica(node_id, life, partition, stable)
            known[partition] = state, seen
            replicas.append(seen)
            changed.append(seen)
        if len(known) > len(partitions):
            present = set(partitions)
            for partition in [each for each in known if each not in present]:
                observation.gone.append(known.pop(partition)[1])


_State = tuple[int, bool, int, PartitionLog | None, int, int]
"""Leader epoch, is leader, high watermark, log, log end offset, last stable offset."""


def _observe_replica(node_id: int, life: int, partition: Partition, stable: int) -> ObservedReplica:
    where, log = partition.topic_partition, partition.opened_log
    return ObservedReplica(
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
"""Errors of reading a damaged or incomplete log."""
