"""What is looked at: a node and its parts, as far as there are any yet; and how a subject tells of them."""

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
from millstream.node.metrics.exposition import Family, Page
from millstream.node.metrics.process_reading import ProcessProbe
from millstream.node.server.listener import Listener
from millstream.node.storage.directory_health import DirectoryFailure, DirectoryHealth

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
