"""A node whose log directory has failed: it reports the failure, and waits until the disk works again.

It serves /metrics, /livez and /readyz, ApiVersions, and DescribeLogDirs with KAFKA_STORAGE_ERROR. Any other request
closes the connection, so that clients use another broker: this node has only stale data.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from millstream.config.broker_config import BrokerConfig
from millstream.formats.protocol.wire_types import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from millstream.node.broker.broker import Broker
from millstream.node.cluster.lifecycle import BrokerLifecycle
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.controller.controller_role import ControllerRole
from millstream.node.data.log_dirs import offline_directory
from millstream.node.environment import Environment
from millstream.node.metrics.endpoints import NodeEndpoints
from millstream.node.metrics.observed_node import ProcessProbe
from millstream.node.runtime.node import bind
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.listener import Listener
from millstream.node.server.request import Api, ApiVersions, Context, api
from millstream.node.storage.directory_health import DirectoryFailure, DirectoryHealth, try_directory
from millstream.node.storage.disk import Disk

_log = logging.getLogger("millstream.node")


class OfflineNode:
    """`apis` are the APIs of the node before the failure, so that ApiVersions stays the same."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        disk: Disk,
        failure: DirectoryFailure,
        *,
        apis: Sequence[Api] = (),
        probe: ProcessProbe | None = None,
    ) -> None:
        self.config = config
        self.environment = environment
        self.probe = probe
        self.is_stopping = False
        self.quorum: MetadataQuorum | None = None
        self.loader: MetadataLoader | None = None
        self.controller: ControllerRole | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self.broker: Broker | None = None
        self.offline: DirectoryFailure | None = failure
        self.directory: DirectoryHealth | None = DirectoryHealth(os.path.abspath(config.data_dir))
        self.directory.failure = failure
        self._failure = failure
        self._root = self.directory.root
        self._disk = disk
        self._listeners: list[Listener] = []
        self._endpoints = NodeEndpoints(self)
        own = [api("describe_log_dirs", self._describe_log_dirs), api("api_versions", self._api_versions)]
        keys = {each.key for each in own}
        self._apis = [*own, *(replace(each, handler=None) for each in apis if each.key not in keys)]
        self._versions = ApiVersions(self._apis, lambda: ({}, {}, -1))

    @property
    def listeners(self) -> Iterable[Listener]:
        return tuple(self._listeners)

    async def wait_until_usable(self, seconds: float, *, silent_seconds: float) -> None:
        """Returns when the directory can be used again. Tries it every `seconds`.

        In the first `silent_seconds` nothing listens, so that other nodes notice that this node is offline.
        """
        loop = self.environment.loop
        speaks_at = loop.time() + silent_seconds
        while True:
            if not self._listeners and loop.time() >= speaks_at:
                self._listen()
            await asyncio.sleep(seconds if self._listeners else min(seconds, max(0.0, speaks_at - loop.time())))
            problem = await self.environment.offload(lambda: try_directory(self._disk, self._root, self._failure))
            if problem is None:
                return
            _log.warning("log_directory_still_offline directory=%s error=%s", self._root, problem)

    def close(self) -> None:
        self._endpoints.close()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _listen(self) -> None:
        config = self.config
        bind(
            (*config.listeners, *config.controller_listeners),
            self._listeners,
            config,
            self.environment,
            self._endpoints,
        )
        service = Dispatcher(self._apis, self.environment.loop)
        for listener in self._listeners:
            listener.serve(service)

    def _api_versions(self, request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
        return self._versions.handle(request, context)

    def _describe_log_dirs(self, request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
        return offline_directory(self._root)
