"""A node: data directory, metadata, broker and listeners joined, started and stopped in the right order."""

import asyncio
import gc
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from uuid import UUID

from millstream.broker.broker import Broker
from millstream.broker.cluster_view import ClusterView
from millstream.broker.controller import Controller
from millstream.broker.controller_link import ControllerLink
from millstream.broker.local_quorum import LocalQuorum
from millstream.broker.metadata_log import METADATA_PARTITION, METADATA_TOPIC_ID, MetadataLog
from millstream.config.broker_config import BrokerConfig
from millstream.config.errors import ConfigError
from millstream.config.table import log as log_settings
from millstream.config.table import network, node
from millstream.config.topic_config import metadata_log_config
from millstream.controller.active_controller import ActiveController
from millstream.controller.controller_apis import ControllerApis
from millstream.controller.handlers.table import controller_handlers
from millstream.environment import Environment
from millstream.metadata.application import apply, replay
from millstream.metadata.brokers import BrokerIntroduction, begin_new_epochs, missing_features, register_broker
from millstream.metadata.image import MetadataImage
from millstream.metadata.records import CorruptMetadataError, Endpoint, MetadataRecord
from millstream.net.listener import DEFAULT_REQUEST_MEMORY_BYTES, ConnectionLimits, Listener
from millstream.runtime.disk import RealDisk
from millstream.runtime.identity import claim_directory, keep_cluster_id, random_uuid, short_uuid
from millstream.runtime.world import real_environment
from millstream.storage.disk import Disk
from millstream.storage.log_directory import DirectoryInUseError, LogDirectory

_log = logging.getLogger("millstream.node")
_MAINTENANCE_SECONDS = 1.0
_STOP_FLUSH_BYTES = 128 << 20
_STOP_FLUSH_SECONDS = 1.0
_SWITCH_SECONDS = 0.0005


class Node:
    """Time, chance, network and disk are given, so that the simulator runs this very class."""

    def __init__(self, config: BrokerConfig, environment: Environment, disk: Disk) -> None:
        self._config = config
        self._environment = environment
        self._loop = environment.loop
        self._disk = disk
        self._logs: LogDirectory | None = None
        self.broker: Broker | None = None
        self._listeners: list[Listener] = []
        self._maintenance: asyncio.TimerHandle | None = None

    def start(self) -> str:
        """Recovers, takes the lead, listens. Returns the address clients can use."""
        config = self._config
        now_ms = self._environment.clock.now_ms()
        root = os.path.abspath(config.data_dir)
        logs = self._logs = LogDirectory(
            self._disk,
            root,
            max_open_files=config[log_settings.MAX_OPEN_FILES],
            producer_id_expiration_ms=config[log_settings.PRODUCER_ID_EXPIRATION_MS],
            checkpoint_interval_ms=config[log_settings.LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS],
            retention_check_interval_ms=config[log_settings.LOG_RETENTION_CHECK_INTERVAL_MS],
        )
        try:
            logs.take()
        except DirectoryInUseError as error:
            raise ConfigError(f"{error}: stop it first, or use another --data-dir", name="log.dirs") from None
        # Before anything is repaired: another node's directory is not ours to touch.
        identity = claim_directory(
            self._disk, root, config.node_id, config[node.CLUSTER_ID], self._environment.randomness
        )
        if identity.cluster_id is None:
            made = config[node.CLUSTER_ID] or short_uuid(random_uuid(self._environment.randomness))
            identity = keep_cluster_id(self._disk, root, identity, made)
        assert identity.cluster_id is not None
        logs.start(now_ms)
        settings = metadata_log_config(config)
        if METADATA_PARTITION in logs.partitions:
            metadata = logs.open(METADATA_PARTITION, settings, now_ms)
        else:
            metadata = logs.create(METADATA_PARTITION, METADATA_TOPIC_ID, settings, now_ms)
        metadata_log = MetadataLog(metadata, self._disk, config.node_id)
        image = MetadataImage(cluster_id=identity.cluster_id)
        try:
            image = replay(image, metadata_log.replay())
        except CorruptMetadataError as error:
            raise ConfigError(
                f"the metadata log in {root}/{METADATA_PARTITION} cannot be read: {error}; restore it from a copy, or "
                "start with another --data-dir",
                name="log.dirs",
            ) from None
        endpoints = self._listen()
        metadata_log.begin_epoch(now_ms)
        image = self._introduce(image, metadata_log, endpoints, now_ms, was_clean=logs.started_clean)
        quorum = LocalQuorum(metadata_log, image, self._environment, config.node_id)
        active = ActiveController(config, quorum, quorum, self._environment)
        quorum.on_failed = active.no_longer_leading
        active.leading(quorum.epoch)
        apis = ControllerApis(active, controller_handlers(active))
        view = ClusterView(quorum, config)
        link = ControllerLink(quorum, apis, quorum, self._environment, client_id=f"broker-{config.node_id}")
        self.broker = Broker(view, link, Controller(view, active), logs, self._environment)
        for listener in self._listeners:
            listener.serve(self.broker.dispatcher)
        self._schedule_maintenance()
        return f"{endpoints[0].host}:{endpoints[0].port}"

    def _listen(self) -> tuple[Endpoint, ...]:
        """Binds first, so that the addresses are known when the broker registers; nobody is answered yet."""
        config = self._config
        ports: dict[str, int] = {}
        for wanted in config.listeners:
            listener = Listener(wanted.name, _limits(config), self._environment.network, self._loop)
            try:
                _, ports[wanted.name] = listener.bind(wanted.host, wanted.port)
            except OSError as error:
                raise ConfigError(
                    f"cannot listen on {wanted.host or '*'}:{wanted.port}: {error.strerror or error}; "
                    "choose another with --listen HOST:PORT (port 0 picks a free one)",
                    name="listeners",
                ) from None
            self._listeners.append(listener)
        return tuple(
            Endpoint(name=shown.name, host=shown.host, port=shown.port)
            for shown in config.advertised(ports, socket.gethostname())
        )

    def _introduce(
        self,
        image: MetadataImage,
        metadata_log: MetadataLog,
        endpoints: tuple[Endpoint, ...],
        now_ms: int,
        *,
        was_clean: bool,
    ) -> MetadataImage:
        """Writes what every start writes: who this node is, and after an unclean stop, new leader epochs."""
        config = self._config
        records: list[MetadataRecord] = list(missing_features(image))
        introduction = BrokerIntroduction(
            broker_id=config.node_id,
            incarnation_id=UUID(int=self._environment.randomness.getrandbits(128), version=4),
            cluster_id=image.cluster_id,
            end_points=endpoints,
            rack=config[node.BROKER_RACK],
        )
        epoch = metadata_log.next_offset + len(records)
        records += register_broker(image, introduction, broker_epoch=epoch, fenced=False).records
        if not was_clean:
            records += begin_new_epochs(image, config.node_id)
        offset = metadata_log.write(records, now_ms)
        return apply(image, records, offset=offset, epoch=metadata_log.epoch).image

    def _schedule_maintenance(self) -> None:
        seconds = min(_MAINTENANCE_SECONDS, self._config[log_settings.LOG_RETENTION_CHECK_INTERVAL_MS] / 1000)
        self._maintenance = self._loop.call_later(max(seconds, 0.05), self._maintain)

    def _maintain(self) -> None:
        assert self.broker is not None
        try:
            self.broker.maintain()
        except Exception:
            _log.exception("maintenance_failed")
        self._schedule_maintenance()

    def stop(self) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
        for listener in self._listeners:
            listener.close()
        if self.broker is not None:
            self.broker.close()
        if self._logs is not None:
            # After an unclean stop a start that failed has not begun new leader epochs: the next one must.
            introduced = self.broker is not None or self._logs.started_clean
            self._logs.close(
                self._environment.clock.now_ms(), _FlushBudget(self._loop.time).allows, may_be_clean=introduced
            )


class _FlushBudget:
    """A stop must be quick: after so many bytes or so long, what is in the page cache is left to the kernel.

    The stop is then not a clean one; the next start checks what was not flushed, which is quicker than flushing it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._bytes = _STOP_FLUSH_BYTES
        self._now = now
        self._deadline = now() + _STOP_FLUSH_SECONDS

    def allows(self, size: int) -> bool:
        if size > self._bytes or self._now() > self._deadline:
            return False
        self._bytes -= size
        return True


def _idle_seconds(setting_ms: int) -> float:
    return setting_ms / 1000 if setting_ms >= 0 else math.inf


def _limits(config: BrokerConfig) -> ConnectionLimits:
    request_bytes = config[network.QUEUED_MAX_REQUEST_BYTES]
    return ConnectionLimits(
        max_frame_bytes=config[network.SOCKET_REQUEST_MAX_BYTES],
        request_memory_bytes=request_bytes if request_bytes > 0 else DEFAULT_REQUEST_MEMORY_BYTES,
        max_connections=config[network.MAX_CONNECTIONS],
        max_connections_per_address=config[network.MAX_CONNECTIONS_PER_IP],
        max_connections_of_address=config.connection_limits,
        max_idle_seconds=_idle_seconds(config[network.CONNECTIONS_MAX_IDLE_MS]),
        send_buffer_bytes=config[network.SOCKET_SEND_BUFFER_BYTES],
        receive_buffer_bytes=config[network.SOCKET_RECEIVE_BUFFER_BYTES],
        backlog=config[network.SOCKET_LISTEN_BACKLOG_SIZE],
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform; slower, but the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            _log.warning("file_limit_kept limit=%d error=%s", soft, error)


def _calm_garbage_collector() -> None:
    """What lives since the start is left out of every collection, and collections become rare: see docs/DESIGN.md."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)


async def _serve(node: Node, ready: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await asyncio.sleep(0)
    address = node.start()
    _calm_garbage_collector()
    ready(address)
    await stopping.wait()


def run(config: BrokerConfig, ready: Callable[[str], None]) -> int:
    """Runs a node until it is asked to stop."""
    _raise_file_limit()
    # A thread that checks cold bytes or rebuilds an index must not keep the interpreter from the loop for long.
    sys.setswitchinterval(_SWITCH_SECONDS)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    running = Node(config, real_environment(loop), RealDisk())
    try:
        # The loop's own signal handling works only while it runs, so the start runs inside it too: a signal that comes
        # during a long recovery, or right after the ready line, is not lost.
        loop.run_until_complete(_serve(running, ready, loop))
    finally:
        running.stop()
        loop.close()
    return 0
