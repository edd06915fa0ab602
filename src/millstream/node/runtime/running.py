"""Runs a node in its own process: event loop, signals, file limits, restart after a failure of its disk.

A node whose log directory has failed is replaced by an `OfflineNode` until the disk works again. It serves /metrics,
/livez and /readyz, ApiVersions, and DescribeLogDirs with KAFKA_STORAGE_ERROR. Any other request closes the connection,
so that clients use another broker: this node has only stale data.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from millstream import compilation
from millstream.common.background_tasks import BackgroundTasks
from millstream.config.broker_config import BrokerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import cluster
from millstream.formats.model.errors import KafkaError
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
from millstream.node.data.log_dirs import offline_directories
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage
from millstream.node.metrics.endpoints import NodeEndpoints
from millstream.node.metrics.observed_node import ProcessProbe
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.listeners import bind
from millstream.node.runtime.node import Node
from millstream.node.runtime.node_tls import NodeTls
from millstream.node.runtime.real_environment import ProcessMonitor, real_environment
from millstream.node.runtime.security_settings import with_security_of
from millstream.node.runtime.service_manager import ServiceManager
from millstream.node.security.api_checks import guarded
from millstream.node.security.authorizer import open_authorizer
from millstream.node.security.guards import Checks
from millstream.node.security.sasl_server import ClosedGate, SaslCounts
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.fair_turns import FairTurns
from millstream.node.server.listener import Listener
from millstream.node.server.request import Api, ApiVersions, Context, api
from millstream.node.storage.directory_health import DirectoryFailure, DirectoryHealth, try_directory
from millstream.node.storage.disk import Disk
from millstream.node.storage.log.directories import LogDirectories

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
        self.turns = FairTurns(environment.loop.call_soon, environment.stopwatch or environment.loop.time)
        self.quorum: MetadataQuorum | None = None
        self.loader: MetadataLoader | None = None
        self.controller: ControllerRole | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self.broker: Broker | None = None
        self.sasl_counts: SaslCounts | None = None
        self.offline: DirectoryFailure | None = failure
        self.directories: LogDirectories | None = None
        self.directory: DirectoryHealth | None = DirectoryHealth(os.path.abspath(config.data_dir))
        self.directory.failure = failure
        self._failure = failure
        self._root = self.directory.root
        self._disk = disk
        self._listeners: list[Listener] = []
        self._endpoints = NodeEndpoints(self)
        authorizer = open_authorizer(config)
        # The ACLs cannot be read: only super users pass.
        checks = None if authorizer is None else Checks(authorizer, MetadataImage)
        own = guarded(
            [api("describe_log_dirs", self._describe_log_dirs), api("api_versions", self._api_versions)], checks
        )
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
            NodeTls(config, self.environment),
            self.turns,
        )
        for listener in self._listeners:
            if config.listener(listener.name).uses_sasl:
                listener.authenticate = ClosedGate  # users are in the metadata, which is on the failed disk
        service = Dispatcher(self._apis, self.environment.loop)
        for listener in self._listeners:
            listener.serve(service)

    def _api_versions(self, request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
        return self._versions.handle(request, context)

    def _describe_log_dirs(self, request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
        return offline_directories(os.path.abspath(each) for each in self.config.log_dirs)


_SWITCH_SECONDS = 0.0005
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
"""The pauses between attempts to use a failed log directory again. Each failure doubles the pause."""
_STEADY_SECONDS = 600.0
"""After this time without a failure, the pause is reset."""


def run(
    config: BrokerConfig,
    ready: Callable[[str], None],
    leaving: Callable[[], None],
    read_again: Callable[[], BrokerConfig] | None = None,
    service: ServiceManager | None = None,
) -> int:
    """Runs a node until a signal stops it. Raises ConfigError if it cannot start or continue.

    `leaving` is called in a thread before the node stops, for example to stop the gateway first. `read_again` reads the
    settings again in a thread, after SIGHUP. `service` is the service manager that started this process.
    """
    service = service or ServiceManager()
    why = compilation.why_plain()
    if why is not None and compilation.wanted() != compilation.REFUSE:
        _log.warning("plain_python reason=%s", why)
    _raise_file_limit()
    # A thread that reads from disk or rebuilds an index must not hold the interpreter lock for long.
    sys.setswitchinterval(_SWITCH_SECONDS)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    environment = real_environment(loop)
    watch = ProcessMonitor(environment, config.data_dir)
    watch.start()
    service.ping_from(loop)
    try:
        # The loop handles signals only while it runs, so the start runs inside it too: a signal during a long recovery,
        # or right after the ready line, is not lost.
        loop.run_until_complete(_NodeRunner(config, environment, watch, ready, leaving, read_again, service).run())
    finally:
        watch.close()
        loop.close()
    return 0


class _NodeRunner:
    """Runs a node until it is stopped, and a new node each time its log directory works again after a failure."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        watch: ProcessMonitor,
        ready: Callable[[str], None],
        leaving: Callable[[], None],
        read_again: Callable[[], BrokerConfig] | None,
        service: ServiceManager,
    ) -> None:
        self._config = config
        self._service = service
        self._read_again = read_again
        self._tasks = BackgroundTasks()
        self._environment = environment
        self._watch = watch
        self._ready = ready
        self._leaving = leaving
        self._loop = environment.loop
        self._was_ready = False
        self._status = "starting"
        self._pause_s = _FIRST_PAUSE_SECONDS
        self._running: Node | OfflineNode | None = None

    async def run(self) -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stopping.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up, stopping)
        await asyncio.sleep(0)
        stop_requested = asyncio.ensure_future(stopping.wait())
        living = asyncio.ensure_future(self._live())
        try:
            await asyncio.wait((living, stop_requested), return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()
        finally:
            stop_requested.cancel()
            living.cancel()
            self._service.stopping()
            await self._loop.run_in_executor(None, self._leaving)
            if isinstance(self._running, Node):
                await self._running.stop()
            elif self._running is not None:
                self._running.close()

    def _hang_up(self, stopping: asyncio.Event) -> None:
        """SIGHUP: reads certificates and users again. A node without any stops, as it does when its terminal is
        closed; but not under a service manager, which has no terminal."""
        node = self._running
        if isinstance(node, Node) and node.security is not None and node.security.are_used:
            self._tasks.start(self._reload(node), loop=self._loop)
        elif not self._service.is_there:
            stopping.set()
        else:
            _log.info("reload_without_effect reason=no certificates and no users to read again")

    async def _reload(self, node: Node) -> None:
        self._service.reloading()
        try:
            await self._reread(node)
        finally:
            self._service.ready(self._status)

    async def _reread(self, node: Node) -> None:
        if self._read_again is not None:
            try:
                read = await self._loop.run_in_executor(None, self._read_again)
                self._config = with_security_of(self._config, read)
                node.reread(read)
            except ConfigError as error:
                _log.error("settings_refused error=%s (SIGHUP; the old settings stay)", error.message)
        if node.tls is not None and node.tls.is_used:
            node.tls.reload()

    async def _live(self) -> None:
        while True:
            node = self._running = Node(self._config, self._environment, RealDisk(), self._watch)
            begun_s = self._loop.time()
            try:
                address = await node.start()
                self._announce(address)
                message = await node.failure
                if node.offline is None:
                    raise ConfigError(message)
            except (ConfigError, KafkaError, OSError):
                if not self._was_ready or node.directory is None or node.directory.failure is None:
                    raise
            if self._loop.time() - begun_s > _STEADY_SECONDS:
                self._pause_s = _FIRST_PAUSE_SECONDS
            await self._wait_for_disk(node)

    async def _wait_for_disk(self, node: Node) -> None:
        failure = node.offline or (node.directory.failure if node.directory is not None else None)
        assert failure is not None
        _log.error("node_offline reason=%s: other nodes take over until the disk works again", failure.reason)
        self._service.status(f"offline: {failure.reason}")
        apis = node.broker.apis if node.broker is not None else ()
        await node.stop()
        offline = self._running = OfflineNode(
            self._config, self._environment, RealDisk(), failure, apis=apis, probe=self._watch
        )
        # If the controller does not know of the failure, refused connections show it that this broker is offline.
        session_s = self._config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000
        try:
            await offline.wait_until_usable(self._pause_s, silent_seconds=0.0 if node.controller_knows else session_s)
        finally:
            offline.close()
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_SECONDS)

    def _announce(self, address: str) -> None:
        self._status = f"ready kafka={address}"
        if self._was_ready:
            _log.info("node_online again")
            self._service.status(self._status)
            return
        self._was_ready = True
        _make_collections_rare()
        self._ready(address)
        self._service.ready(self._status)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            _log.warning("file_limit_kept limit=%d error=%s", soft, error)


def _make_collections_rare() -> None:
    """Excludes objects of the start from garbage collection, and makes collections rare: see docs/DESIGN.md."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
