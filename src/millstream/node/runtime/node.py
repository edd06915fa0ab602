"""A node: data directory, listeners, quorum, controller and broker, started and stopped in the right order.

`process.roles` determines the roles. Every node follows the metadata quorum. A controller votes in it and may lead it.
A broker registers with the active controller, and serves clients when it has caught up and is unfenced. A single node
has both roles and takes the same steps.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from uuid import UUID

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.addresses import Listener as ListenerConfig
from millstream.config.broker_config import BrokerConfig, contact_limit_s
from millstream.config.setting import ConfigError
from millstream.config.table import cluster, network, node, sasl
from millstream.config.table import log as log_settings
from millstream.formats.model.identifiers import BrokerId
from millstream.node.broker.broker import Broker
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.controller_link import ControllerLink, LeaderChanges
from millstream.node.cluster.controller_registration import ControllerRegistration
from millstream.node.cluster.lifecycle import BrokerLifecycle, ControllerContact
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_log import METADATA_PARTITION
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.consensus.quorum.opening import formatted_records, inspect_metadata, open_quorum
from millstream.node.consensus.raft.voter_set import Endpoint as VoterEndpoint
from millstream.node.controller.active_controller import changes_broker_settings, dynamic_config
from millstream.node.controller.controller_role import ControllerRole
from millstream.node.environment import Environment
from millstream.node.metadata.features import supported_features
from millstream.node.metadata.image import MetadataDelta, MetadataImage
from millstream.node.metadata.records import LOST_DIRECTORY, Endpoint, UserScramCredentialRecord
from millstream.node.metrics.endpoints import NodeEndpoints
from millstream.node.metrics.observed_node import ProcessProbe
from millstream.node.runtime.handover_file import hand_over, read_handover
from millstream.node.runtime.identity import Identity, claim_directory, keep_cluster_id, random_uuid, short_uuid
from millstream.node.runtime.listeners import bind, connection_limits
from millstream.node.runtime.node_tls import NodeTls
from millstream.node.runtime.security_settings import SecuritySettings, with_security_of
from millstream.node.security.audit_log import AuditLog
from millstream.node.security.authorizer import StandardAuthorizer, open_authorizer, or_none
from millstream.node.security.credentials import Credentials
from millstream.node.security.first_users import read_first_users
from millstream.node.security.sasl_client import new_nonce
from millstream.node.security.sasl_listeners import SaslListeners, node_login
from millstream.node.security.sasl_server import SaslCounts
from millstream.node.server.fair_turns import FairTurns
from millstream.node.server.limits import OpenConnections
from millstream.node.server.listener import Listener
from millstream.node.server.service import HeldRequests, Peer, Service
from millstream.node.storage.directory_health import DirectoryFailure, DirectoryHealth, try_directory
from millstream.node.storage.disk import Disk
from millstream.node.storage.log.directories import LogDirectories, is_cordoned
from millstream.node.storage.log.directory import DirectoryInUseError, LogDirectory

_log = logging.getLogger("millstream.node")
_MAINTENANCE_SECONDS = 1.0
_STOP_FLUSH_BYTES = 128 << 20
_STOP_FLUSH_SECONDS = 1.0
_CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS = 10.0
"""The maximum time of a controlled shutdown."""
_REPORT_TIMEOUT_SECONDS = 1.0
"""The time for which a broker with a failed disk tries to report it to the controller. Its partitions accept no writes
during this time."""
_DIRECTORY_CHECK_SECONDS = 1.0
_LONGEST_DIRECTORY_PAUSE_SECONDS = 60.0


class Node:
    """Clock, randomness, network and disk are arguments, so that the simulator can run this class."""

    def __init__(
        self, config: BrokerConfig, environment: Environment, disk: Disk, probe: ProcessProbe | None = None
    ) -> None:
        self.config = self._config = config
        self.broker: Broker | None = None
        self.audit = AuditLog(self._present_config, environment)
        environment = replace(
            environment,
            auditor=self.audit,
            broker_login=node_login(
                config,
                config.inter_broker_listener if config.is_broker else None,
                sasl.SASL_MECHANISM_INTER_BROKER_PROTOCOL,
                environment,
            ),
            controller_login=node_login(
                config, config.controller_listener, sasl.SASL_MECHANISM_CONTROLLER_PROTOCOL, environment
            ),
        )
        self.environment = self._environment = environment
        self.probe = probe
        self.is_stopping = False
        self._first_users: tuple[UserScramCredentialRecord, ...] = ()
        self.sasl = SaslListeners(
            Credentials(self._image, config[sasl.DELEGATION_TOKEN_SECRET_KEY], environment), environment, new_nonce
        )
        self.sasl_counts: SaslCounts | None = self.sasl.counts
        self._endpoints = NodeEndpoints(self)
        self._held = HeldRequests()
        self.tls: NodeTls | None = None
        self.security: SecuritySettings | None = None
        self.turns = FairTurns(environment.loop.call_soon, environment.stopwatch or environment.loop.time)
        self._loop = environment.loop
        self._disk = disk
        self._root = os.path.abspath(config.data_dir)
        """The directory of the metadata log."""
        self._logs: LogDirectories | None = None
        self._identity: Identity | None = None
        self._listeners: list[Listener] = []
        self._open_connections: list[OpenConnections] = []
        self._controller_listeners: list[Listener] = []
        self.quorum: MetadataQuorum | None = None
        self.loader: MetadataLoader | None = None
        self.controller: ControllerRole | None = None
        self._link: ControllerLink | None = None
        self._registration: ControllerRegistration | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self._maintenance: asyncio.TimerHandle | None = None
        self._metadata_changed: asyncio.Event | None = None
        self.directory: DirectoryHealth | None = None
        """The health of the directory of the metadata log."""
        self.directories: LogDirectories | None = None
        self.offline: DirectoryFailure | None = None
        """The failure of the log directory for which this node went offline."""
        self.controller_knows = False
        """Whether the controller knows that this node is offline."""
        self._returning = BackgroundTasks()
        """Attempts to use failed log directories again."""
        self._giving_up: asyncio.Task[None] | None = None
        self._directory_check: asyncio.TimerHandle | None = None
        self.failure: asyncio.Future[str] = environment.loop.create_future()
        """Done, with a one-line message, when the node cannot continue. The caller should stop the node then."""

    # Starting

    async def start(self) -> str:
        """Recovers logs, joins the quorum, registers, and serves clients. Returns the address for clients.

        Raises ConfigError with a one-line message if the node cannot start.
        """
        starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.wait((starting, self.failure), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not starting.done():
                starting.cancel()
        if self.failure.done():
            raise ConfigError(self.failure.result())
        return starting.result()

    def _present_config(self) -> BrokerConfig:
        return self._config if self.broker is None else self.broker.view.config

    async def _start(self) -> str:
        config = self._config
        tls = self.tls = NodeTls(config, self._environment)
        environment = self.environment = self._environment = tls.secured()
        self._metadata_changed = asyncio.Event()
        logs, identity = self._open_directories()
        self._first_users = read_first_users(self._root, self._disk.read_bytes)
        handover = read_handover(self._disk, self._root)
        end_points = self._bind(config.listeners, self._listeners)
        controller_end_points = self._bind(config.controller_listeners, self._controller_listeners)
        self.security = SecuritySettings(config, tls, self.sasl, environment)
        self.sasl.start()
        _serve(self._listeners, self._held)  # from here on the node responds to probes
        tls.start()
        quorum = self.quorum = open_quorum(
            config,
            logs.metadata,
            self._disk,
            environment,
            directory_id=identity.directory_id,
            cluster_id=identity.cluster_id or config[node.CLUSTER_ID],
            endpoints=tuple(VoterEndpoint(each.name, each.host, each.port) for each in controller_end_points),
            on_fatal=self._fail,
        )
        loader = self.loader = MetadataLoader(
            quorum,
            environment,
            max_bytes_between_snapshots=config[cluster.METADATA_LOG_MAX_RECORD_BYTES_BETWEEN_SNAPSHOTS],
            max_snapshot_interval_ms=config[cluster.METADATA_LOG_MAX_SNAPSHOT_INTERVAL_MS],
        )
        authorizer = self._open_authorizer(loader)
        self._endpoints.authorizer = or_none(authorizer)
        loader.subscribe(self._on_metadata_change)
        if config.is_controller:
            self.controller = ControllerRole(
                config,
                quorum,
                loader,
                environment,
                new_cluster_id=self._new_cluster_id,
                authorizer=or_none(authorizer),
                first_records=(*formatted_records(self._disk, self._root), *self._first_users),
            )
        leader_changes = LeaderChanges()
        quorum.subscribe(leader_changes)
        if not config.is_broker:
            apis = None if self.controller is None else self.controller.apis
            client_id = f"controller-{config.node_id}"
            link = self._link = ControllerLink(quorum, apis, loader, environment, client_id=client_id)
            leader_changes.subscribe(link.leader_changed)
            self._register_controller(link, loader, controller_end_points)
            quorum.start()
            self._serve_controllers()
            return f"{controller_end_points[0].host}:{controller_end_points[0].port}"
        local = self.controller.apis if self.controller is not None else None
        link = self._link = ControllerLink(quorum, local, loader, environment, client_id=f"broker-{config.node_id}")
        link.check_settings = self.security.check
        leader_changes.subscribe(link.leader_changed)
        view = ClusterView(loader, config)
        contact = ControllerContact(
            environment.loop.time, lambda: contact_limit_s(view.config), quorum.metadata_as_of_s
        )
        # The dynamic value of the setting is in the metadata, and counts before this one.
        cordoned_in_file = config[cluster.CORDONED_LOG_DIRS]
        lifecycle = self.lifecycle = BrokerLifecycle(
            view,
            link,
            environment,
            contact,
            end_points=end_points,
            log_dirs=lambda: registered_log_dirs(logs),
            cordoned_log_dirs=lambda: [each.id for each in logs.online if is_cordoned(each.root, cordoned_in_file)],
            previous_broker_epoch=logs.previous_broker_epoch,
            on_fatal=self._fail,
            adopted=handover.adopted,
            retired=handover.retired,
        )
        leader_changes.subscribe(lifecycle.leader_changed)
        if controller_end_points:  # the controller of a single node may have no listener
            self._register_controller(link, loader, controller_end_points)
        quorum.start()
        self._serve_controllers()
        lifecycle.start()
        await lifecycle.registered
        # Only metadata that includes the registration shows which logs on this disk are stray.
        while view.image.offset < lifecycle.broker_epoch:
            await self._next_change()
        await hand_over(handover, lambda: view.image, config.node_id, self._next_change)
        self.broker = Broker(
            view,
            link,
            logs,
            environment,
            kraft_version=lambda: quorum.kraft_version,
            has_lost_controller=lambda: contact.is_lost,
            authorizer=authorizer,
        )
        self.audit.refresh()
        self.audit.write_to(self.broker.audit_topic.write)
        lifecycle.initialized()
        await lifecycle.serving
        # Metadata responses list only unfenced brokers, and some clients never retry after an empty list.
        while not view.is_unfenced_here:
            await self._next_change()
        for each in logs.all:
            if logs.is_online(each):
                each.health.recovered()  # operations that failed during the start were repeated, or will be
        for each in logs.offline:
            self._returning.start(self._wait_for_directory(each), loop=self._loop)
        self._limit_connections(self.broker)
        _serve(self._listeners, self.broker.dispatcher)
        self._held.give_to(self.broker.dispatcher)
        self._schedule_maintenance()
        return f"{end_points[0].host}:{end_points[0].port}"

    def _register_controller(
        self, link: ControllerLink, loader: MetadataLoader, end_points: tuple[Endpoint, ...]
    ) -> None:
        self._registration = ControllerRegistration(
            self._config.node_id,
            link,
            loader,
            self._environment,
            end_points,
            supported_features(self._config),
            on_fatal=self._fail,
        )
        self._registration.start()

    def _open_authorizer(self, loader: MetadataLoader) -> StandardAuthorizer | None:
        """The authorizer, which follows the ACLs of the metadata before anything else does."""
        authorizer = open_authorizer(self._config)
        if authorizer is not None:
            authorizer.auditor = self.audit
            authorizer.use(loader.image)
            loader.subscribe(lambda delta: authorizer.follow(delta, loader.image))
        return authorizer

    def _open_directories(self) -> tuple[LogDirectories, Identity]:
        config = self._config
        logs = LogDirectories(
            self._disk,
            [os.path.abspath(each) for each in config.log_dirs],
            metadata_root=self._root,
            max_open_files=config[log_settings.MAX_OPEN_FILES],
            producer_id_expiration_ms=config[log_settings.PRODUCER_ID_EXPIRATION_MS],
            checkpoint_interval_ms=config[log_settings.LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS],
            retention_check_interval_ms=config[log_settings.LOG_RETENTION_CHECK_INTERVAL_MS],
        )
        self.directory, self.directories = logs.metadata.health, logs
        self.directory.on_failure = self._directory_failed
        self._logs = logs
        # Before recovery: the directory of another node must not be changed.
        for directory in sorted(logs.all, key=lambda each: each is not logs.metadata):
            try:
                self._claim(directory)
            except OSError as error:
                if directory is logs.metadata:
                    raise
                logs.unusable(directory, error)
        logs.start(self._environment.clock.now_ms())
        for directory in logs.online:
            if directory is not logs.metadata:
                directory.health.on_failure = partial(self._other_directory_failed, directory)
        assert self._identity is not None
        return logs, self._identity

    def _claim(self, directory: LogDirectory) -> None:
        """Locks a directory and reads its identity. ConfigError if it belongs to another node, cluster or process."""
        assert self.directories is not None
        config, is_metadata = self._config, directory is self.directories.metadata
        try:
            directory.take()
        except DirectoryInUseError as error:
            raise ConfigError(f"{error}: stop the other process, or use another --data-dir", name="log.dirs") from None
        if is_metadata:
            inspect_metadata(self._disk, self._root, config)
        elif self._disk.exists(f"{directory.root}/{METADATA_PARTITION}"):
            raise ConfigError(
                f"the metadata log is in {directory.root}, not in {self._root}: set metadata.log.dir={directory.root}",
                name="metadata.log.dir",
            )
        known = config[node.CLUSTER_ID] if self._identity is None else self._identity.cluster_id
        identity = claim_directory(self._disk, directory.root, config.node_id, known, self._environment.randomness)
        directory.id = identity.directory_id
        if is_metadata:
            self._identity = identity
        elif identity.cluster_id is None and known is not None:
            keep_cluster_id(self._disk, directory.root, identity, known)

    def _bind(self, wanted: Iterable[ListenerConfig], into: list[Listener]) -> tuple[Endpoint, ...]:
        """Binds listeners without serving them yet, so that their addresses are known for the registration."""
        config = self._config
        assert self.tls is not None
        shared = OpenConnections(config[network.MAX_CONNECTIONS])
        self._open_connections.append(shared)
        ports = bind(wanted, into, config, self._environment, self._endpoints, self.tls, self.turns, shared)
        for listener in into:
            listener.on_authentication = self._audit_certificate
            if config.listener(listener.name).uses_sasl:
                listener.authenticate = self.sasl.authentication(config.listener(listener.name))
        return tuple(
            Endpoint(name=shown.name, host=shown.host, port=shown.port, security_protocol=shown.protocol_number)
            for shown in config.advertised(ports, socket.gethostname(), wanted)
        )

    def _limit_connections(self, broker: Broker) -> None:
        """Connections of other brokers are exempt, except from the limits of their listener, if they have their own."""
        own = self._config.inter_broker_listener
        exempt = own if len(self._listeners) > 1 else None
        broker.connection_rates.exempt_listener = exempt
        for listener in self._listeners:
            listener.rates = broker.connection_rates

    def reread(self, config: BrokerConfig) -> None:
        """Takes the settings of TLS and SASL over from a settings file that was read again."""
        assert self.security is not None
        self._config = with_security_of(self._config, config)
        image = self.loader.image if self.loader is not None else MetadataImage()
        self.security.changed(dynamic_config(self._config, image))

    def _audit_certificate(self, peer: Peer, succeeded: bool, reason: str) -> None:
        self._environment.auditor.authentication(peer, "TLS", succeeded=succeeded, reason=reason)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return (*self._listeners, *self._controller_listeners)

    def _serve_controllers(self) -> None:
        if self.controller is not None:
            _serve(self._controller_listeners, self.controller.dispatcher)

    def _image(self) -> MetadataImage:
        """The metadata for logins. Before the first records of a new cluster, only the first users can log in."""
        image = self.loader.image if self.loader is not None else MetadataImage()
        if image.cluster_id or not self._first_users:
            return image
        return MetadataImage(scram_credentials={(each.name, each.mechanism): each for each in self._first_users})

    # The cluster id in the metadata

    def _on_metadata_change(self, delta: MetadataDelta) -> None:
        assert self._identity is not None and self.loader is not None and self.quorum is not None
        assert self._metadata_changed is not None
        self._metadata_changed.set()
        if changes_broker_settings(delta) and self.security is not None:
            config = dynamic_config(self._config, self.loader.image)
            self.security.changed(config)
            for listener in self.listeners:
                listener.limits = connection_limits(config, listener.name)
            for shared in self._open_connections:
                shared.limit = config[network.MAX_CONNECTIONS]
        cluster_id = self.loader.image.cluster_id
        if not cluster_id or cluster_id == self._identity.cluster_id:
            return
        pinned = self._config[node.CLUSTER_ID]
        if self._identity.cluster_id is not None:
            self._fail(
                f"{self._root} belongs to cluster {self._identity.cluster_id}, but the quorum belongs to cluster "
                f"{cluster_id}: use another --data-dir, or correct controller.quorum.voters"
            )
        elif pinned is not None and pinned != cluster_id:
            self._fail(
                f"cluster.id={pinned}, but the quorum belongs to cluster {cluster_id}: correct cluster.id or "
                "controller.quorum.voters"
            )
        else:
            assert self.directories is not None
            self._identity = keep_cluster_id(self._disk, self._root, self._identity, cluster_id)
            for directory in self.directories.online:
                if directory is not self.directories.metadata:
                    keep_cluster_id(
                        self._disk, directory.root, replace(self._identity, directory_id=directory.id), cluster_id
                    )
            self.quorum.cluster_id = cluster_id

    async def _next_change(self) -> None:
        assert self._metadata_changed is not None
        self._metadata_changed.clear()
        await self._metadata_changed.wait()

    def _new_cluster_id(self) -> str:
        assert self._identity is not None
        return (
            self._identity.cluster_id
            or self._config[node.CLUSTER_ID]
            or short_uuid(random_uuid(self._environment.randomness))
        )

    def _fail(self, message: str) -> None:
        if not self.failure.done() and not self._goes_offline():
            self.failure.set_result(message)

    # Failure of the log directory

    def _directory_failed(self) -> None:
        """Called in the thread in which the error occurred."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._look_at_directory)

    def _look_at_directory(self) -> None:
        """After a failure: goes offline if other nodes can take over; otherwise retries until the disk works."""
        if self._directory_check is not None:
            self._directory_check.cancel()
            self._directory_check = None
        if self._logs is None or self.directory is None or self.directory.failure is None or self._goes_offline():
            return
        attempt = self._environment.offload(self._try_directory)
        attempt.add_done_callback(self._tried_directory)

    def _try_directory(self) -> OSError | None:
        assert self.directory is not None
        failure = self.directory.failure
        return None if failure is None else try_directory(self._disk, self._root, failure)

    def _tried_directory(self, attempt: "asyncio.Future[OSError | None]") -> None:
        if self._logs is None or attempt.cancelled():
            return
        assert self.directory is not None
        broken = [] if self.broker is None else [each for each, _ in self.broker.broken_logs()]
        if attempt.result() is None and self._logs.metadata not in broken:
            self.directory.recovered()
        else:
            self._directory_check = self._loop.call_later(_DIRECTORY_CHECK_SECONDS, self._look_at_directory)

    # Failure of another log directory than that of the metadata log

    def _other_directory_failed(self, directory: LogDirectory) -> None:
        """Called in the thread in which the error occurred."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._lose_directory, directory)

    def _lose_directory(self, directory: LogDirectory) -> None:
        """Takes the replicas of a directory offline. If it was the last one for replicas, the node goes offline."""
        logs, failure = self._logs, directory.health.failure
        if logs is None or self.broker is None or failure is None or self.is_stopping:
            return  # during the start: `recovered` clears it, or the next operation fails again
        if not logs.is_online(directory):
            return
        if logs.online == [directory]:
            logs.metadata.health.fail(failure)  # no replica is left
            return
        _log.error("log_directory_offline directory=%s error=%s", directory.root, failure.reason)
        told = self.broker.directory_failed(directory)
        self._returning.start(self._report_directory(directory, told), loop=self._loop)
        self._returning.start(self._wait_for_directory(directory), loop=self._loop)

    async def _report_directory(self, directory: LogDirectory, told: "list[asyncio.Future[bool]]") -> None:
        if told:
            await asyncio.wait(told, timeout=_REPORT_TIMEOUT_SECONDS)
        if self.lifecycle is not None:
            self.lifecycle.directory_failed(directory.id)

    async def _wait_for_directory(self, directory: LogDirectory) -> None:
        """Uses a failed directory again when its disk works again."""
        failure = directory.health.failure or DirectoryFailure(
            directory.root, "it could not be used at the start", True
        )
        pause_s = _DIRECTORY_CHECK_SECONDS
        while self._logs is not None:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_DIRECTORY_PAUSE_SECONDS)
            if not self._is_reported(directory):
                continue
            fresh = self._logs.fresh(directory)
            try:
                problem = await self._environment.offload(lambda: self._reopen(fresh, failure))  # noqa: B023
            except (ConfigError, OSError) as error:
                problem = error
            if problem is None and self._logs is not None:
                self._return_directory(fresh)
                return
            fresh.release()
            _log.warning("log_directory_still_offline directory=%s error=%s", directory.root, problem)

    def _is_reported(self, directory: LogDirectory) -> bool:
        """Whether the controller knows of the failure. Before that, this node may still be leader of replicas in the
        directory, whose last records may be lost."""
        assert self.loader is not None and self.broker is not None
        registered = self.loader.image.brokers.get(BrokerId(self._config.node_id))
        known = registered is None or directory.id not in registered.log_dirs
        return known and self.broker.replicas.assignments.is_settled

    def _reopen(self, fresh: LogDirectory, failure: DirectoryFailure) -> Exception | None:
        """Locks, checks and repairs a directory. Runs in a thread."""
        self._disk.make_directory(fresh.root)
        problem = try_directory(self._disk, fresh.root, failure)
        if problem is not None:
            return problem
        self._claim(fresh)
        fresh.start(self._environment.clock.now_ms())
        return None

    def _return_directory(self, fresh: LogDirectory) -> None:
        assert self._logs is not None and self.broker is not None and self.lifecycle is not None
        fresh.health.on_failure = partial(self._other_directory_failed, fresh)
        roles = self.broker.replicas.roles
        self._logs.bring_online(fresh, lambda at: roles.is_lost_in(at, fresh.id))
        _log.info("log_directory_online directory=%s partitions=%d", fresh.root, len(fresh.partitions))
        self.lifecycle.directory_returned(fresh.id)
        self.broker.directory_returned()

    def _goes_offline(self) -> bool:
        """Whether this node goes offline, or is offline, because its log directory has failed."""
        if self._giving_up is not None:
            return True
        failure = self.directory.failure if self.directory is not None else None
        if failure is None or self.is_stopping or self.failure.done() or not self._others_can_take_over():
            return False
        self._giving_up = self._loop.create_task(self._go_offline(failure))
        return True

    def _others_can_take_over(self) -> bool:
        """Whether other nodes have every role of this node."""
        quorum, loader, config = self.quorum, self.loader, self._config
        if quorum is None or loader is None or not quorum.is_started:
            return False
        if config.is_controller and quorum.is_voter and len(quorum.voters) == 1:
            return False
        brokers = loader.image.brokers.values()
        return not config.is_broker or any(other.active and other.id != config.node_id for other in brokers)

    async def _go_offline(self, failure: DirectoryFailure) -> None:
        """Reports the failure, so that others take over at once. If this fails, they notice closed connections."""
        assert self.quorum is not None
        self.offline = failure
        for listener in self._listeners:
            listener.close()  # from here on others may lead: this node must not serve clients
        if self.quorum.is_leader:
            # It cannot commit any more, and cannot learn the next leader: its vote must be on disk.
            await self.quorum.stop()
        elif self.lifecycle is not None:
            self.controller_knows = await self.lifecycle.give_up_directory(_REPORT_TIMEOUT_SECONDS)
        if not self.failure.done():
            self.failure.set_result(
                f"log directory {self._root} is offline: {failure.reason}; the other nodes take over: check the disk"
            )

    # Running

    def _schedule_maintenance(self) -> None:
        seconds = min(_MAINTENANCE_SECONDS, self._config[log_settings.LOG_RETENTION_CHECK_INTERVAL_MS] / 1000)
        self._maintenance = self._loop.call_later(max(seconds, 0.05), self._maintain)

    def _maintain(self) -> None:
        assert self.broker is not None
        try:
            self.broker.maintain()
            for directory, broken in self.broker.broken_logs():
                directory.health.fail(broken)
        except Exception:
            _log.exception("maintenance_failed")
        self._schedule_maintenance()

    # Stopping

    async def stop(self) -> None:
        """Controlled shutdown: moves leadership, closes everything, and writes the clean-shutdown file."""
        self.is_stopping = True
        if not self.failure.done():
            if self.lifecycle is not None:
                await self.lifecycle.shut_down(_CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
            if self.quorum is not None:
                await self.quorum.stop()
        self.close()

    def close(self) -> None:
        """Closes everything without a controlled shutdown."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        if self._directory_check is not None:
            self._directory_check.cancel()
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._returning.cancel()
        self._endpoints.close()
        self.sasl.close()
        if self.security is not None:
            self.security.close()
        if self.tls is not None:
            self.tls.close()
        for listener in self.listeners:
            listener.close()
        broker_epoch = -1
        if self.lifecycle is not None:
            broker_epoch = self.lifecycle.broker_epoch
            self.lifecycle.close()
        if self._registration is not None:
            self._registration.close()
        if self._link is not None:
            self._link.close()
        if self.broker is not None:
            self.broker.close()
        self.audit.close()
        if self.controller is not None:
            self.controller.close()
        if self.loader is not None:
            self.loader.close()
        if self.quorum is not None:
            self.quorum.close()
        if self._logs is not None:
            # If this process did not register after an unclean shutdown, the controller does not know of it yet: the
            # next start must not look clean.
            registered = self.broker is not None or self._logs.started_clean or not self._config.is_broker
            self._logs.close(
                self._environment.clock.now_ms(),
                _FlushBudget(self._loop.time).allows,
                may_be_clean=registered,
                broker_epoch=broker_epoch if broker_epoch >= 0 else self._logs.previous_broker_epoch,
            )
            self._logs = None


def registered_log_dirs(logs: LogDirectories) -> list[UUID]:
    """The ids of the log directories in a registration; `LOST` stands for those that are offline."""
    return [*(each.id for each in logs.online), *([LOST_DIRECTORY] if logs.offline else [])]


class _FlushBudget:
    """Limits the flushing at shutdown, in bytes and time. The kernel writes the rest of the page cache.

    Such a shutdown is not clean. Recovery at the next start checks the rest, which is faster than flushing it.
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


def _serve(listeners: Iterable[Listener], service: Service) -> None:
    for listener in listeners:
        listener.serve(service)
