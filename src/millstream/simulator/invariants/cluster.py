"""Invariants of clusters: quorum, metadata, replicas, leaders and acknowledged records.

Each is an object with the state seen so far. `check` is called with each observation and raises `Violation`. Each has a
test with a state that it must reject.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import NO_LEADER
from millstream.node.metadata.snapshot import snapshot_records
from millstream.simulator.cluster import Cluster
from millstream.simulator.invariants.logs import CommittedLog, CommittedLogs
from millstream.simulator.invariants.observation import METADATA_TOPIC_ID, UNREADABLE, Observation, PartitionKey
from millstream.simulator.results import Violation


class Invariant(Protocol):
    def check(self, observation: Observation) -> None: ...


class OneQuorumLeaderPerEpoch:
    """An epoch of the metadata quorum has at most one leader, and all nodes agree on it."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.quorums:
            named = seen.node_id if seen.is_leader else seen.leader_id
            if named is None:
                continue
            known = self._leaders.setdefault(seen.epoch, named)
            if known != named:
                raise Violation(
                    type(self).__name__,
                    f"epoch {seen.epoch} is led by node {known}, but by node {named} according to node {seen.node_id}",
                )


class EpochsOnlyGrow:
    """The quorum epoch of a node never decreases, also over restarts; nor does the leader epoch of a partition."""

    def __init__(self) -> None:
        self._quorum: dict[int, int] = {}
        self._partitions: dict[tuple[int, int, PartitionKey], int] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.quorums:
            before = self._quorum.get(seen.node_id, -1)
            if seen.epoch < before:
                raise Violation(
                    type(self).__name__, f"node {seen.node_id} went from quorum epoch {before} to {seen.epoch}"
                )
            self._quorum[seen.node_id] = seen.epoch
        for replica in observation.fresh:
            at = (replica.node_id, replica.life, replica.key)
            earlier = self._partitions.get(at, -1)
            if replica.leader_epoch < earlier:
                raise Violation(
                    type(self).__name__,
                    f"{replica.name} on node {replica.node_id} went from leader epoch {earlier} to "
                    f"{replica.leader_epoch}",
                )
            self._partitions[at] = replica.leader_epoch


class HighWatermarksOnlyGrow:
    """High watermarks of a process never decrease, for the quorum and for all its partitions."""

    def __init__(self, *, of_partitions: bool = True) -> None:
        self._of_partitions = of_partitions
        self._quorum: dict[tuple[int, int], int] = {}
        self._partitions: dict[tuple[int, int, PartitionKey], int] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.quorums:
            at = (seen.node_id, seen.life)
            before = self._quorum.get(at, -1)
            if seen.high_watermark < before:
                raise Violation(
                    type(self).__name__,
                    f"the quorum's high watermark on node {seen.node_id} went from {before} to {seen.high_watermark}",
                )
            self._quorum[at] = seen.high_watermark
        if not self._of_partitions:
            return
        # A replica that was removed and added again is a new one.
        if observation.changed is None:
            there = {(replica.node_id, replica.life, replica.key) for replica in observation.replicas}
            self._partitions = {key: known for key, known in self._partitions.items() if key in there}
        for replica in observation.gone:
            self._partitions.pop((replica.node_id, replica.life, replica.key), None)
        for replica in observation.fresh:
            key = (replica.node_id, replica.life, replica.key)
            earlier = self._partitions.get(key, -1)
            if replica.high_watermark < earlier:
                raise Violation(
                    type(self).__name__,
                    f"the high watermark of {replica.name} on node {replica.node_id} went from {earlier} to "
                    f"{replica.high_watermark}",
                )
            self._partitions[key] = replica.high_watermark


class CommittedMetadataIsStable:
    """The metadata logs of all nodes are equal up to their high watermarks, and nodes that have applied the same
    records have the same image."""

    def __init__(self) -> None:
        self._truth = CommittedLog()
        self._compared: dict[tuple[int, int], int] = {}
        self._digests: dict[int, tuple[int, MetadataImage]] = {}
        self._last: dict[int, MetadataImage] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.quorums:
            at = (seen.node_id, seen.life)
            offset = self._compared.get(at, 0)
            if seen.high_watermark <= offset:
                continue
            if seen.log.end < seen.high_watermark:
                raise Violation(
                    type(self).__name__,
                    f"node {seen.node_id} has high watermark {seen.high_watermark}, but its log ends at {seen.log.end}",
                )
            try:
                self._compared[at], wrong = self._truth.compare(seen.log, offset, seen.high_watermark)
            except UNREADABLE as error:
                wrong = f"cannot be read: {error}"
            if wrong is not None:
                raise Violation(type(self).__name__, f"the metadata log of node {seen.node_id} {wrong}")

    def check_images(self, observation: Observation) -> None:
        """Compares whole images. Expensive, so only at the end."""
        by_offset: dict[int, tuple[int, list[object]]] = {}
        for seen in observation.images:
            content: list[object] = list(snapshot_records(seen.image))
            first, known = by_offset.setdefault(seen.image.offset, (seen.node_id, content))
            if known != content:
                differing = next((a, b) for a, b in zip([*known, None], [*content, None], strict=False) if a != b)
                raise Violation(
                    type(self).__name__,
                    f"at offset {seen.image.offset}, images of nodes {first} and {seen.node_id} differ: {differing}",
                )


class CommittedLogsAreEqual:
    """Replicas have the same records at the same offsets, up to their high watermarks.

    In a compacted topic records may be missing; see `CompactionKeepsLastRecord`.
    """

    def __init__(self, logs: CommittedLogs, left_out: Iterable[str] = ()) -> None:
        self._logs = logs
        self._left_out = tuple(left_out)
        self._compared: dict[tuple[int, int, PartitionKey], int] = {}
        self._unfinished: set[tuple[int, int, PartitionKey]] = set()
        """Replicas that could not be read up to their high watermark: the end of a log may be compacted."""

    def check(self, observation: Observation) -> None:
        candidates = observation.replicas if self._unfinished else observation.fresh
        self._unfinished = set()
        for seen in candidates:
            if seen.log is None or seen.key.topic_id == METADATA_TOPIC_ID or seen.topic.startswith(self._left_out):
                continue
            at = (seen.node_id, seen.life, seen.key)
            offset = self._compared.get(at, 0)
            if seen.high_watermark <= offset:
                continue
            try:
                self._compared[at], wrong = self._logs.compare(seen, offset)
            except UNREADABLE as error:
                wrong = f"cannot be read: {error}"
            if wrong is not None:
                raise Violation(type(self).__name__, f"{seen.name} on node {seen.node_id} {wrong}")
            if self._compared[at] < seen.high_watermark:
                self._unfinished.add(at)


class AcknowledgedIsDurable:
    """An acknowledged write is in the log of every later leader."""

    def __init__(self) -> None:
        self._newest: dict[PartitionKey, int] = {}

    def check(self, observation: Observation) -> None:
        newest = self._newest
        for seen in observation.fresh:
            if seen.leader_epoch > newest.get(seen.key, -1):
                newest[seen.key] = seen.leader_epoch
        for seen in observation.replicas:
            if seen.is_leader and seen.log is not None:
                acked = observation.acked.get((seen.topic, seen.key.partition), 0)
                # A deposed leader that does not know it yet may be behind: it cannot acknowledge anything.
                if seen.log.end < acked and seen.leader_epoch == newest[seen.key]:
                    raise Violation(
                        type(self).__name__,
                        f"{seen.name} on node {seen.node_id}, leader of epoch {seen.leader_epoch}, ends at "
                        f"{seen.log.end}, but offset {acked - 1} was acknowledged",
                    )


class OneLeaderPerLeaderEpoch:
    """A partition has at most one leader per leader epoch."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[PartitionKey, int], int] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.fresh:
            if not seen.is_leader:
                continue
            known = self._leaders.setdefault((seen.key, seen.leader_epoch), seen.node_id)
            if known != seen.node_id:
                raise Violation(
                    type(self).__name__,
                    f"{seen.name} is led by nodes {known} and {seen.node_id} in leader epoch {seen.leader_epoch}",
                )


class InSyncReplicasAreAlive:
    """Every in-sync replica is a replica on an unfenced broker. A partition without a leader keeps its last one."""

    def __init__(self) -> None:
        self._looked_at: dict[int, MetadataImage] = {}

    def check(self, observation: Observation) -> None:
        for seen in observation.images:
            image = seen.image
            if self._looked_at.get(seen.node_id) is image:
                continue
            self._looked_at[seen.node_id] = image
            alive = {number for number, broker in image.brokers.items() if not broker.fenced}
            for topic in image.topics.values():
                for index, state in enumerate(topic.partitions):
                    isr = set(state.isr)
                    if isr <= alive and isr <= set(state.replicas):
                        continue
                    if state.leader == NO_LEADER and len(isr) == 1 and isr <= set(state.replicas):
                        continue
                    raise Violation(
                        type(self).__name__,
                        f"{topic.name}-{index} has in-sync replicas {state.isr} of {state.replicas}, leader "
                        f"{state.leader}, but brokers {sorted(alive)} are unfenced, at metadata offset {image.offset}",
                    )


class NoBrokerIsFenced:
    """On machines that are only overloaded, no registered broker gets fenced."""

    def __init__(self) -> None:
        self._serving: set[tuple[int, int]] = set()

    def check(self, observation: Observation) -> None:
        for seen in observation.images:
            for number, broker in seen.image.brokers.items():
                if not broker.fenced:
                    self._serving.add((seen.node_id, number))
                elif (seen.node_id, number) in self._serving:
                    raise Violation(
                        type(self).__name__,
                        f"broker {number} is fenced according to node {seen.node_id} at metadata offset "
                        f"{seen.image.offset}",
                    )


def all_invariants(
    logs: CommittedLogs | None = None, left_out: Iterable[str] = (), *, records_may_be_lost: bool = False
) -> list[Invariant]:
    """The invariants of clusters. `left_out`: prefixes of topics whose records may be lost, because they have too few
    replicas. `records_may_be_lost`: the records of all topics may be lost."""
    of_records: list[Invariant] = []
    if not records_may_be_lost:
        of_records = [CommittedLogsAreEqual(logs or CommittedLogs(), left_out), AcknowledgedIsDurable()]
    return [
        OneQuorumLeaderPerEpoch(),
        EpochsOnlyGrow(),
        HighWatermarksOnlyGrow(of_partitions=not records_may_be_lost),
        CommittedMetadataIsStable(),
        *of_records,
        OneLeaderPerLeaderEpoch(),
        InSyncReplicasAreAlive(),
    ]


BOUND_SECONDS = 3.0
"""In virtual time. The next write meets the error; then a few messages or one election follow."""


class WritesContinue:
    """While the disk of a node fails, every partition accepts writes again within a bounded time.

    `silent` returns the partitions without a write since a time.
    """

    def __init__(self, cluster: Cluster, silent: Callable[[float], list[str]]) -> None:
        self._cluster = cluster
        self._silent = silent

    def check(self, now: float) -> None:
        failing = self._cluster.failing_disk
        if failing is None or now < failing[1] + BOUND_SECONDS:
            return
        node_id, since = failing
        if silent := self._silent(since):
            raise Violation(
                "WritesContinue",
                f"{now - since:.1f} s after the disk of node {node_id} failed, no write in {', '.join(silent)}",
            )
