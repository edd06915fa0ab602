"""The node as metrics see it: its parts, the readings of its process, and whether it is ready."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.common.prometheus import Family, Histogram, Page
from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.identifiers import BrokerId
from millstream.node.broker.broker import Broker
from millstream.node.cluster.lifecycle import BrokerLifecycle
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.controller.controller_role import ControllerRole
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage, PartitionState
from millstream.node.metadata.partitions import ReplicationRules
from millstream.node.security.sasl_server import SaslCounts
from millstream.node.server.fair_turns import FairTurns
from millstream.node.server.listener import Listener
from millstream.node.storage.directory_health import DirectoryFailure, DirectoryHealth
from millstream.node.storage.log.directories import LogDirectories


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """None for values that the system does not provide."""

    cpu_seconds: float
    start_time_seconds: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_files: int | None
    max_files: int
    disk_total_bytes: int
    disk_free_bytes: int
    loop_lag: Histogram
    collections: tuple[Histogram, ...]
    """The durations of garbage collections, by generation."""
    syncs: Histogram


class ProcessProbe(Protocol):
    async def read(self) -> ProcessReading: ...


_TIME_SLICE_SECONDS = 0.001
"""A page is made in time slices of about this length. The event loop serves others in between."""


class ObservedNode(Protocol):
    config: BrokerConfig
    environment: Environment
    quorum: MetadataQuorum | None
    loader: MetadataLoader | None
    controller: ControllerRole | None
    lifecycle: BrokerLifecycle | None
    broker: Broker | None
    is_stopping: bool
    directory: DirectoryHealth | None
    """The directory of the metadata log."""
    directories: LogDirectories | None
    offline: DirectoryFailure | None
    probe: ProcessProbe | None
    sasl_counts: SaslCounts | None
    turns: FairTurns

    @property
    def listeners(self) -> Iterable[Listener]: ...


class TimeSlices:
    """Yields to the event loop when the current time slice is used up."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun = now()

    async def pause(self) -> None:
        if self._now() - self._begun > _TIME_SLICE_SECONDS:
            await asyncio.sleep(0)
            self._begun = self._now()


@dataclass(frozen=True, slots=True)
class MetricsSubject:
    """One part of the page, which `?collect[]=NAME` selects."""

    name: str
    families: tuple[Family, ...]
    collect: Callable[[ObservedNode, Page, TimeSlices], Coroutine[Any, Any, None]]
    is_default: bool = True
    """On a page that names no subjects."""


_CLOSE_ENOUGH = 10_000
"""A node with more unapplied metadata records than this would respond with stale metadata."""


def why_not_ready(node: ObservedNode) -> str | None:
    """The reason in one line; None if the node is ready.

    A broker stays ready while the quorum has no leader: it still serves produce and fetch. Otherwise all brokers would
    become unready at once.
    """
    if node.is_stopping:
        return "stopping: leadership moves to other brokers"
    if node.offline is not None:
        return f"log directory offline: {node.offline.reason}; other nodes take over until the disk works again"
    quorum = node.quorum
    if quorum is None or not quorum.is_started:
        return "starting: the metadata log is being opened"
    behind = quorum.high_watermark - quorum.published_offset
    if behind > _CLOSE_ENOUGH:
        return f"catching up: {behind} committed metadata records are not applied yet"
    if not node.config.is_broker:
        return (
            None
            if quorum.leader_id is not None
            else "no leader of the metadata quorum is known: start a majority of the voters"
        )
    lifecycle = node.lifecycle
    if lifecycle is None or lifecycle.broker_epoch < 0:
        leader = "no leader of the metadata quorum is known" if quorum.leader_id is None else "waiting for its response"
        return f"not registered with a controller yet: {leader}"
    if node.broker is None:
        return "registered: reading the metadata up to the registration, and opening logs"
    if lifecycle.is_fenced:
        return "fenced by the controller: not unfenced yet, or heartbeats were too late"
    if not node.broker.view.is_unfenced_here:
        return "unfenced, but this node's metadata does not show it yet"
    return None


_PARTITIONS_PER_TURN = 200


async def why_not_in_sync(node: ObservedNode, turns: TimeSlices) -> str | None:
    """The reason in one line; None if the node is ready and every replica on it is in the ISR. Then the next broker of
    a rolling restart can be stopped."""
    reason = why_not_ready(node)
    if reason is not None or node.loader is None or not node.config.is_broker:
        return reason
    own, behind = node.config.node_id, 0
    async for _, partition in _partitions(node.loader.image, turns):
        if own in partition.replicas and own not in partition.isr and own not in partition.adding_replicas:
            behind += 1
    return None if not behind else f"catching up: {behind} replicas of this node are not in sync yet"


async def why_not_safe_to_stop(node: ObservedNode, turns: TimeSlices) -> str | None:
    """The reason in one line; None if every partition can be written without this node, and the quorum has a majority.

    Partitions that have no replica to spare do not count: they would never become safe. No topic is named: the caller
    has not logged in.
    """
    if node.loader is None or node.quorum is None:
        return None  # it serves nothing yet
    image, own = node.loader.image, node.config.node_id
    voters = set(node.quorum.voters.by_id)
    others = [image.brokers[BrokerId(each)] for each in voters - {own} if each in image.brokers]
    if own in voters and len(voters) > 2 and len(others) == len(voters) - 1:
        up = sum(not each.fenced for each in others)
        if up <= len(voters) // 2:
            return f"the quorum would lose its majority: {up} of {len(voters)} voters would be left"
    rules, short = ReplicationRules(image, node.config), 0
    async for topic, partition in _partitions(image, turns):
        if own in partition.isr:
            needed = min(rules.min_insync_replicas(topic), len(partition.replicas) - 1)
            short += len(partition.isr) - 1 < needed
    return None if not short else f"{short} partitions would have fewer in-sync replicas than min.insync.replicas"


async def _partitions(image: MetadataImage, turns: TimeSlices) -> AsyncIterator[tuple[str, PartitionState]]:
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions:
            if seen % _PARTITIONS_PER_TURN == 0:
                await turns.pause()
            seen += 1
            yield topic.name, partition
