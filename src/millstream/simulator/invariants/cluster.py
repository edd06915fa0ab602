"""What must hold at every moment of every run, whatever happens: one object for each, with what it has seen so far.

`check` is called with the state of the cluster again and again, and raises `Violation`. Tests show each of them a state
that it must refuse.

While the disk of one node fails, others lead: every partition takes writes again within a bounded time.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import NO_LEADER
from millstream.node.metadata.snapshot import snapshot_records
from millstream.simulator.cluster import Cluster
from millstream.simulator.invariants.logs import CommittedLog, CommittedLogs
from millstream.simulator.invariants.observation import METADATA_TOPIC_ID, UNREADABLE, PartitionKey, Sight
from millstream.simulator.results import Violation


class Invariant(Protocol):
    def check(self, sight: Sight) -> None: ...


class OneQuorumLeaderPerEpoch:
    """An epoch of the metadata quorum has at most one leader, and whoever names its leader names the same."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.quorums:
            named = seen.node_id if seen.is_leader else seen.leader_id
            if named is None:
                continue
            known = self._leaders.setdefault(seen.epoch, named)
            if known != named:
                raise Violation(
                    type(self).__name__,
                    f"epoch {seen.epoch} is led by {known}, and by {named} as node {seen.node_id} says",
                )


class EpochsOnlyGrow:
    """A node's quorum epoch never goes back, not even over a restart; nor does a partition's leader epoch."""

    def __init__(self) -> None:
        self._quorum: dict[int, int] = {}
        self._partitions: dict[tuple[int, int, PartitionKey], int] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.quorums:
            before = self._quorum.get(seen.node_id, -1)
            if seen.epoch < before:
                raise Violation(
                    type(self).__name__, f"node {seen.node_id} went from quorum epoch {before} to {seen.epoch}"
                )
            self._quorum[seen.node_id] = seen.epoch
        for replica in sight.fresh:
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
    """What a process has called committed stays so, for the quorum and for every partition it holds."""

    def __init__(self, *, of_partitions: bool = True) -> None:
        self._of_partitions = of_partitions
        self._quorum: dict[tuple[int, int], int] = {}
        self._partitions: dict[tuple[int, int, PartitionKey], int] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.quorums:
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
        # A replica that went away and comes back is another.
        if sight.changed is None:
            there = {(replica.node_id, replica.life, replica.key) for replica in sight.replicas}
            self._partitions = {key: known for key, known in self._partitions.items() if key in there}
        for replica in sight.gone:
            self._partitions.pop((replica.node_id, replica.life, replica.key), None)
        for replica in sight.fresh:
            key = (replica.node_id, replica.life, replica.key)
            earlier = self._partitions.get(key, -1)
            if replica.high_watermark < earlier:
                raise Violation(
                    type(self).__name__,
                    f"the high watermark of {replica.name} on node {replica.node_id} went from {earlier} to "
                    f"{replica.high_watermark}",
                )
            self._partitions[key] = replica.high_watermark


class CommittedMetadataStays:
    """The metadata logs of all nodes are the same as far as each calls them committed, and nodes that have applied the
    same records have the same image."""

    def __init__(self) -> None:
        self._truth = CommittedLog()
        self._compared: dict[tuple[int, int], int] = {}
        self._digests: dict[int, tuple[int, MetadataImage]] = {}
        self._last: dict[int, MetadataImage] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.quorums:
            at = (seen.node_id, seen.life)
            offset = self._compared.get(at, 0)
            if seen.high_watermark <= offset:
                continue
            if seen.log.end < seen.high_watermark:
                raise Violation(
                    type(self).__name__,
                    f"node {seen.node_id} calls offset {seen.high_watermark} committed and ends at {seen.log.end}",
                )
            try:
                self._compared[at], wrong = self._truth.compare(seen.log, offset, seen.high_watermark)
            except UNREADABLE as error:
                wrong = f"cannot be read: {error}"
            if wrong is not None:
                raise Violation(type(self).__name__, f"the metadata log of node {seen.node_id} {wrong}")

    def check_images(self, sight: Sight) -> None:
        """Dear, so only when all is over."""
        by_offset: dict[int, tuple[int, list[object]]] = {}
        for seen in sight.images:
            content: list[object] = list(snapshot_records(seen.image))
            first, known = by_offset.setdefault(seen.image.offset, (seen.node_id, content))
            if known != content:
                differing = next((a, b) for a, b in zip([*known, None], [*content, None], strict=False) if a != b)
                raise Violation(
                    type(self).__name__,
                    f"at offset {seen.image.offset} nodes {first} and {seen.node_id} have other images: {differing}",
                )


class InSyncLogsAgree:
    """Replicas have the same records at the same offsets, as far as each calls them committed.

    In a compacted topic records may be missing; `CleaningKeepsTheLast` says which.
    """

    def __init__(self, logs: CommittedLogs, left_out: Iterable[str] = ()) -> None:
        self._logs = logs
        self._left_out = tuple(left_out)
        self._compared: dict[tuple[int, int, PartitionKey], int] = {}
        self._unfinished: set[tuple[int, int, PartitionKey]] = set()
        """Replicas that could not be read up to their high watermark: the end of a log may be cleaned away."""

    def check(self, sight: Sight) -> None:
        candidates = sight.replicas if self._unfinished else sight.fresh
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


class AckedIsKept:
    """A write that a client was told to be safe is in the log of every later leader."""

    def __init__(self) -> None:
        self._newest: dict[PartitionKey, int] = {}

    def check(self, sight: Sight) -> None:
        newest = self._newest
        for seen in sight.fresh:
            if seen.leader_epoch > newest.get(seen.key, -1):
                newest[seen.key] = seen.leader_epoch
        for seen in sight.replicas:
            if seen.is_leader and seen.log is not None:
                acked = sight.acked.get((seen.topic, seen.key.partition), 0)
                # One that was deposed and does not know it yet may well be behind: nobody is told anything by it.
                if seen.log.end < acked and seen.leader_epoch == newest[seen.key]:
                    raise Violation(
                        type(self).__name__,
                        f"{seen.name} is led by node {seen.node_id} in epoch {seen.leader_epoch} and ends at "
                        f"{seen.log.end}, but offset {acked - 1} was acknowledged",
                    )


class OneLeaderPerLeaderEpoch:
    """No two nodes take writes to a partition in one leader epoch."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[PartitionKey, int], int] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.fresh:
            if not seen.is_leader:
                continue
            known = self._leaders.setdefault((seen.key, seen.leader_epoch), seen.node_id)
            if known != seen.node_id:
                raise Violation(
                    type(self).__name__,
                    f"{seen.name} is led by nodes {known} and {seen.node_id} in leader epoch {seen.leader_epoch}",
                )


class InSyncReplicasLive:
    """Who is in sync is a replica, and a broker that the controller takes for alive. Only where nobody leads does the
    last one stay."""

    def __init__(self) -> None:
        self._looked_at: dict[int, MetadataImage] = {}

    def check(self, sight: Sight) -> None:
        for seen in sight.images:
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
                        f"{state.leader}, while brokers {sorted(alive)} live, at metadata offset {image.offset}",
                    )


class NobodyIsFenced:
    """Where nothing is wrong but that machines have too much to do, a broker that was let in stays in."""

    def __init__(self) -> None:
        self._serving: set[tuple[int, int]] = set()

    def check(self, sight: Sight) -> None:
        for seen in sight.images:
            for number, broker in seen.image.brokers.items():
                if not broker.fenced:
                    self._serving.add((seen.node_id, number))
                elif (seen.node_id, number) in self._serving:
                    raise Violation(
                        type(self).__name__,
                        f"broker {number} is fenced, as node {seen.node_id} has it at metadata offset "
                        f"{seen.image.offset}",
                    )


def all_invariants(
    logs: CommittedLogs | None = None, left_out: Iterable[str] = (), *, records_may_be_lost: bool = False
) -> list[Invariant]:
    """Those of clusters. `left_out` names topics (by how they begin) whose data may be lost: too few replicas hold it.
    Where those of all topics may be lost, the others still hold."""
    of_records: list[Invariant] = []
    if not records_may_be_lost:
        of_records = [InSyncLogsAgree(logs or CommittedLogs(), left_out), AckedIsKept()]
    return [
        OneQuorumLeaderPerEpoch(),
        EpochsOnlyGrow(),
        HighWatermarksOnlyGrow(of_partitions=not records_may_be_lost),
        CommittedMetadataStays(),
        *of_records,
        OneLeaderPerLeaderEpoch(),
        InSyncReplicasLive(),
    ]


BOUND_SECONDS = 3.0
"""Virtual time. Errors are met with the next write; what follows takes a few messages, or one election."""


class WritesGoOn:
    """`silent` names the partitions that have taken no write since a time."""

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
                "WritesGoOn",
                f"{now - since:.1f} s after the disk of node {node_id} began to fail: no write in {', '.join(silent)}",
            )
