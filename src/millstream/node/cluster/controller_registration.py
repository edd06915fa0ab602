"""The registration of a controller (KIP-919): the cluster knows its listeners and the features that it supports.

A controller registers each time it starts, and again if the metadata has another process under its id: a late request
of the process before it. If the process before it registers a second time, it is alive: two processes run with one node
id, and each would vote with it. Then the one that came last ends. The first one stays, and registers again after a
pause that grows. The active controller refuses one that does not support the features of the cluster; it tries again,
because it may be upgraded, or another may lead then. A controller that is not registered takes part in the quorum all
the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.cluster.controller_link import ControllerLink
from millstream.node.controller.active_controller import ImageSource
from millstream.node.environment import Environment
from millstream.node.metadata.features import KRAFT_VERSION_RANGE, SUPPORTED_FEATURES, controllers_register
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.records import Endpoint, RegisterControllerRecord, SupportedFeature

_TIMEOUT_SECONDS = 10.0
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 60.0
_MAX_RETURNS = 2
"""How often the process that was registered before this one registers again until it is known to be alive."""
_log = logging.getLogger("millstream.controller")


class ControllerRegistration:
    def __init__(
        self,
        node_id: int,
        link: ControllerLink,
        source: ImageSource,
        environment: Environment,
        end_points: tuple[Endpoint, ...],
        features: tuple[SupportedFeature, ...] = SUPPORTED_FEATURES,
        *,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` gets one line that says why this controller must end."""
        self._node_id = node_id
        self._link = link
        self._source = source
        self._environment = environment
        self._end_points = end_points
        self._features = features
        self._on_fatal = on_fatal
        self._incarnation_id = UUID(int=environment.randomness.getrandbits(128), version=4)
        earlier = source.image.controllers.get(node_id)
        self._registered = earlier.incarnation_id if earlier is not None else None
        """The process that is registered with this id."""
        self._predecessor: UUID | None = None
        """The process that was registered before this one."""
        self._was_registered = self._closed = False
        self._returns = self._losses = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        source.subscribe(self._follow)

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._run())

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    @property
    def _is_wanted(self) -> bool:
        image = self._source.image
        own = image.controllers.get(self._node_id)
        return controllers_register(image) and (own is None or own.incarnation_id != self._incarnation_id)

    def _follow(self, delta: MetadataDelta) -> None:
        self._news.set()
        own = self._source.image.controllers.get(self._node_id)
        before, self._registered = self._registered, own.incarnation_id if own is not None else None
        if own is None or self._registered == before or self._closed:
            return
        if self._registered == self._incarnation_id:
            if not self._was_registered:
                self._was_registered, self._predecessor = True, before
        elif before == self._incarnation_id:
            self._lost_to(own)

    def _lost_to(self, other: RegisterControllerRecord) -> None:
        """Another process has registered with the id of this one."""
        self._losses += 1
        self._returns += other.incarnation_id == self._predecessor
        at = ", ".join(f"{each.host}:{each.port}" for each in other.end_points)
        problem = f"another controller runs with node.id={self._node_id} (at {at})"
        advice = "give each controller its own node.id and data directory, or stop one of them"
        if self._returns >= _MAX_RETURNS:
            self.close()
            self._on_fatal(f"{problem}: {advice}")
        else:
            _log.error("controller_id_in_use %s: %s", problem, advice)

    async def _run(self) -> None:
        pause_s = _MIN_PAUSE_SECONDS
        while True:
            self._news.clear()
            if not self._is_wanted:
                pause_s = _MIN_PAUSE_SECONDS
                await self._news.wait()
                continue
            if self._losses:
                await asyncio.sleep(min(_MIN_PAUSE_SECONDS * 2 ** min(self._losses, 10), _MAX_PAUSE_SECONDS))
            problem = await self._register()
            if problem is not None:
                _log.warning("controller_registration_refused node=%d error=%s", self._node_id, problem)
            with contextlib.suppress(TimeoutError):  # the record comes back with the metadata
                async with asyncio.timeout(pause_s):
                    while self._is_wanted:
                        await self._news.wait()
                        self._news.clear()
            pause_s = min(2 * pause_s, _MAX_PAUSE_SECONDS)

    async def _register(self) -> str | None:
        """None, or what was wrong."""
        features = (*self._features, KRAFT_VERSION_RANGE)
        fields = {
            "controller_id": self._node_id,
            "incarnation_id": self._incarnation_id,
            "zk_migration_ready": False,
            "listeners": [
                {"name": each.name, "host": each.host, "port": each.port, "security_protocol": each.security_protocol}
                for each in self._end_points
            ],
            "features": [
                {
                    "name": each.name,
                    "min_supported_version": each.min_supported_version,
                    "max_supported_version": each.max_supported_version,
                }
                for each in features
            ],
        }
        try:
            response = await self._link.request("controller_registration", fields, timeout_s=_TIMEOUT_SECONDS)
        except KafkaError as error:
            return str(error)
        if response.error_code:
            return f"{ErrorCode(response.error_code).name} {response.error_message or ''}".strip()
        _log.info("controller_registered node=%d", self._node_id)
        return None
