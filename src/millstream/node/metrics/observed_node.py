"""What is looked at: a node and its parts, as far as there are any yet; and how a subject tells of them.

What only a process can tell of itself; a simulated node has none to ask.

Whether a node is ready: if clients or the quorum should be sent to it; if not, why.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.config.broker_config import BrokerConfig
from millstream.node.broker.broker import Broker
from millstream.node.cluster.lifecycle import BrokerLifecycle
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.controller.controller_role import ControllerRole
from millstream.node.environment import Environment
from millstream.node.measures import Histogram
from millstream.node.metrics.exposition import Family, Page
from millstream.node.server.listener import Listener
from millstream.node.storage.directory_health import DirectoryFailure, DirectoryHealth


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """None is for what this system does not tell."""

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
    """How long collections of garbage took, by generation."""
    syncs: Histogram


class ProcessProbe(Protocol):
    async def read(self) -> ProcessReading: ...


_TURN_SECONDS = 0.001
"""A page is made in turns of about this length: others go on in between."""


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
    offline: DirectoryFailure | None
    probe: ProcessProbe | None

    @property
    def listeners(self) -> Iterable[Listener]: ...


class Turns:
    """Lets others have the loop when this turn has been long enough."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun = now()

    async def pause(self) -> None:
        if self._now() - self._begun > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._begun = self._now()


@dataclass(frozen=True, slots=True)
class Subject:
    """One part of the page, which can be asked for by its name."""

    name: str
    families: tuple[Family, ...]
    collect: Callable[[ObservedNode, Page, Turns], Coroutine[Any, Any, None]]


_CLOSE_ENOUGH = 10_000
"""A node that has more committed metadata than this yet to act on would answer with things of the past."""


def why_not_ready(node: ObservedNode) -> str | None:
    """In one line; None when it is ready.

    A broker that serves stays ready while the quorum has no leader: it can still be written to and read, and were all
    brokers to say no at once, nobody could.
    """
    if node.is_stopping:
        return "stopping: what this node led goes to others"
    if node.offline is not None:
        return f"log directory offline: {node.offline.reason}; others take over until the disk works again"
    quorum = node.quorum
    if quorum is None or not quorum.is_started:
        return "starting: the metadata log is being opened"
    behind = quorum.high_watermark - quorum.published_offset
    if behind > _CLOSE_ENOUGH:
        return f"catching up: {behind} committed metadata records are yet to be applied"
    if not node.config.is_broker:
        return None if quorum.leader_id is not None else "no leader of the metadata quorum is known: start most voters"
    lifecycle = node.lifecycle
    if lifecycle is None or lifecycle.broker_epoch < 0:
        leader = "no leader of the metadata quorum is known" if quorum.leader_id is None else "waiting for its answer"
        return f"not registered with a controller yet: {leader}"
    if node.broker is None:
        return "registered: the metadata is being read up to the registration, and the logs are taken up"
    if lifecycle.is_fenced:
        return "fenced by the controller: it has not let this broker in yet, or has not heard of it in time"
    if not node.broker.view.serves_here:
        return "not fenced any more, but the metadata here does not say so yet"
    return None
