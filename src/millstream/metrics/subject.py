"""What is looked at: a node and its parts, as far as there are any yet; and how a subject tells of them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.broker.broker import Broker
from millstream.broker.lifecycle import BrokerLifecycle
from millstream.config.broker_config import BrokerConfig
from millstream.controller.controller_role import ControllerRole
from millstream.environment import Environment
from millstream.metrics.exposition import Family, Page
from millstream.metrics.process_reading import ProcessProbe
from millstream.net.listener import Listener
from millstream.quorum.metadata_loader import MetadataLoader
from millstream.quorum.metadata_quorum import MetadataQuorum
from millstream.storage.directory_health import DirectoryFailure, DirectoryHealth

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
