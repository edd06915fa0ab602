"""The life of a broker in the cluster: registration, heartbeats, controlled shutdown, contact with the controller.

Heartbeats are sent every `broker.heartbeat.interval.ms`, and at once if the state changes: the metadata has been read
up to the own registration, another node leads the quorum, this broker or another one wants to stop (the controller
waits until all other brokers have applied the shutdown). So a broker serves as soon as possible, without waiting for a
timer.

A leader that is disconnected from the controller does not know that it was fenced. Some responses from its log would be
final for a client: an out-of-order sequence, an offset out of range. The new leader may have records that this one
lacks. So a leader without contact to the controller responds that it is not the leader, and the client looks for the
leader (ADR 23). A broker is in contact if the response to its last heartbeat, and its metadata, are recent. Both count
from the time of the request, not of the response: a process that was stopped finds old responses.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from uuid import UUID

from millstream.config.broker_config import heartbeat_interval_s
from millstream.config.table import cluster, node
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.controller_link import ControllerLink
from millstream.node.environment import Environment
from millstream.node.metadata.features import supported_features
from millstream.node.metadata.handover import AdoptedReplica
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.records import Endpoint

_METADATA_SECONDS = 1.1
"""The leader of the quorum holds a fetch for half a second, so the last completed fetch may be a second old."""


class ControllerContact:
    def __init__(
        self, now: Callable[[], float], limit_s: Callable[[], float], metadata_as_of_s: Callable[[], float]
    ) -> None:
        """`metadata_as_of_s` returns the time up to which this node has all committed metadata."""
        self._now = now
        self._limit_s = limit_s
        self._metadata_as_of_s = metadata_as_of_s
        self._heard_s = -math.inf

    def heard(self, sent_s: float, *, is_fenced: bool) -> None:
        """The controller responded to a heartbeat that was sent at this time."""
        self._heard_s = -math.inf if is_fenced else sent_s

    @property
    def is_lost(self) -> bool:
        now, limit_s = self._now(), self._limit_s()
        return now - self._heard_s > limit_s or now - self._metadata_as_of_s() > max(limit_s, _METADATA_SECONDS)


_RETRY_SECONDS = 0.25
_LEAVING_TIMEOUT_SECONDS = 3.0
"""The timeout of heartbeats during shutdown: as long as the election of a controller may take."""
_LEAVING_INTERVAL_SECONDS = 0.05
"""The interval between heartbeats during shutdown. The response to each may allow the broker to stop."""
_REGISTER_AGAIN = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)

_log = logging.getLogger("millstream.broker")


class BrokerLifecycle:
    def __init__(
        self,
        view: ClusterView,
        link: ControllerLink,
        environment: Environment,
        contact: ControllerContact,
        *,
        end_points: tuple[Endpoint, ...],
        log_dirs: Callable[[], list[UUID]],
        previous_broker_epoch: int,
        on_fatal: Callable[[str], None],
        cordoned_log_dirs: Callable[[], list[UUID]] = list,
        adopted: tuple[AdoptedReplica, ...] = (),
        retired: tuple[int, ...] = (),
    ) -> None:
        """`log_dirs` returns the ids of the log directories in use, `cordoned_log_dirs` those of them that the settings
        file cordons. `previous_broker_epoch` is the epoch of the last
        process if it stopped cleanly, else -1. `on_fatal` gets one line that says why this broker cannot be part of the
        cluster. `adopted` and `retired`: see `handover_file`."""
        self._view = view
        self._link = link
        self._environment = environment
        self._contact = contact
        self._end_points = end_points
        self._log_dirs = log_dirs
        self._cordoned_log_dirs = cordoned_log_dirs
        self._offline_dirs: list[UUID] = []
        """The ids of log directories that have failed since the start; reported in each heartbeat."""
        self._registers_again = False
        self._previous_epoch = previous_broker_epoch
        self._on_fatal = on_fatal
        self._adopted, self._retired = adopted, retired
        self._incarnation_id = UUID(int=environment.randomness.getrandbits(128), version=4)
        self.broker_epoch = -1
        self.is_fenced = True
        self._sent_offset = -1
        self._initialized = False
        self._leaving = False
        self._refused_since_s: float | None = None
        """The time since when the current controller refuses the registration."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.registered: asyncio.Future[None] = environment.loop.create_future()
        """Done when the broker is registered for the first time."""
        self.serving: asyncio.Future[None] = environment.loop.create_future()
        """Done when the broker is unfenced for the first time."""
        self._left: asyncio.Future[None] = environment.loop.create_future()
        view.subscribe(self._follow)

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._live())

    def initialized(self) -> None:
        """The broker is initialized: it may be unfenced as soon as it has caught up with the metadata."""
        self._initialized = True
        self._news.set()

    def leader_changed(self) -> None:
        """A new controller has no session of this broker yet: sends a heartbeat at once."""
        self._refused_since_s = None
        self._news.set()

    async def shut_down(self, timeout_s: float) -> None:
        """Controlled shutdown: moves leadership to other brokers, if there are any. Returns when done or timed out."""
        others = any(broker.active and broker.id != self._view.node_id for broker in self._view.image.brokers.values())
        wanted = self._view.config[cluster.CONTROLLED_SHUTDOWN_ENABLE]
        if self._task is None or self._task.done() or self.broker_epoch < 0 or not others or not wanted:
            return
        self._leaving = True
        self._news.set()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._left)
        except TimeoutError:
            _log.warning("controlled_shutdown_cut_short after_s=%g", timeout_s)

    async def give_up_directory(self, timeout_s: float) -> bool:
        """Reports the failed log directory to the controller, so that others lead. Returns whether it succeeded."""
        if self._task is not None:
            self._task.cancel()
        if self.broker_epoch < 0:
            return False
        self.is_fenced = True
        fields = {
            "broker_id": self._view.node_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self._view.image.offset,
            "want_fence": True,
            "want_shut_down": True,
            "offline_log_dirs": [*self._offline_dirs, *self._log_dirs()],
        }
        try:
            response = await self._link.request("broker_heartbeat", fields, timeout_s=timeout_s)
        except KafkaError as error:
            _log.warning("failed_directory_not_told error=%s", error)
            return False
        return response.error_code == ErrorCode.NONE and bool(response.should_shut_down)

    def directory_failed(self, directory_id: UUID) -> None:
        """One of several log directories has failed: the controller moves the leaders of its replicas."""
        if directory_id not in self._offline_dirs:
            self._offline_dirs.append(directory_id)
        self._news.set()

    def directory_returned(self, directory_id: UUID) -> None:
        """A failed log directory can be used again, perhaps a new one: this process registers again, with it."""
        self._offline_dirs = [each for each in self._offline_dirs if each != directory_id]
        self._registers_again = True
        self._news.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for future in (self.registered, self.serving, self._left):
            future.cancel()

    # Following the metadata

    def _follow(self, delta: MetadataDelta) -> None:
        image = self._view.image
        own = image.brokers.get(self._view.node_id)
        if own is not None and 0 <= self.broker_epoch < own.epoch and own.incarnation_id != self._incarnation_id:
            # Two processes with one node id could lose acknowledged records.
            self._on_fatal(
                f"another process has registered with node.id={self._view.node_id}: give each broker its own node.id "
                "and an empty data directory, or stop the other process"
            )
        if self._sent_offset < self.broker_epoch <= image.offset:
            self._news.set()
        for broker_id in delta.brokers:
            broker = image.brokers.get(broker_id)
            if broker is not None and broker.in_controlled_shutdown and not broker.fenced:
                self._news.set()
        if image.cluster_id and self.broker_epoch < 0:
            self._news.set()

    # Registering

    async def _live(self) -> None:
        try:
            while not self._left.done():
                if not await self._register():
                    return
                await self._until_initialized()
                await self._send_heartbeats()
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("lifecycle_failed")
            self._on_fatal("the broker stops because of an internal error; see the log")

    async def _register(self) -> bool:
        """Registers this process; False if it is refused, or timed out."""
        loop, config = self._environment.loop, self._view.config
        first = not self.serving.done()
        deadline_s = loop.time() + config[cluster.INITIAL_BROKER_REGISTRATION_TIMEOUT_MS] / 1000
        # The other process with this node id may be our own previous one: its session ends after the session timeout,
        # and a new controller starts the session again.
        session_s = config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000
        duplicate_timeout_s = 2 * session_s
        problem = "the metadata quorum has no leader, or it cannot be reached: start a majority of the controllers"
        while not first or loop.time() < deadline_s:
            self._news.clear()
            if self._leaving:
                self._finish_leaving()
                return False
            if not self._view.image.cluster_id:
                await self._wait(_RETRY_SECONDS)
                continue
            left_s = deadline_s - loop.time() if first else session_s
            try:
                response = await self._link.request(
                    "broker_registration", self._introduction(), timeout_s=max(_RETRY_SECONDS, min(left_s, session_s))
                )
            except KafkaError as error:
                problem = error.message
                self._refused_since_s = None
                await self._wait(_RETRY_SECONDS)
                continue
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                self.broker_epoch = self._view.broker_epoch = response.broker_epoch
                self.is_fenced = True
                if not self.registered.done():
                    self.registered.set_result(None)
                _log.info("registered broker=%d epoch=%d", self._view.node_id, self.broker_epoch)
                return True
            fatal = self._refusal(code)
            if self._refused_since_s is None:
                self._refused_since_s = loop.time()
                _log.warning("registration_refused error=%s", code.name)
            is_duplicate = code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            if fatal and not (is_duplicate and loop.time() < self._refused_since_s + duplicate_timeout_s):
                self._on_fatal(fatal)
                return False
            problem = fatal or f"the controller responded with {code.name}"
            await self._wait(_RETRY_SECONDS)
        self._on_fatal(
            f"broker {self._view.node_id} could not register within "
            f"{config[cluster.INITIAL_BROKER_REGISTRATION_TIMEOUT_MS]} ms "
            f"({cluster.INITIAL_BROKER_REGISTRATION_TIMEOUT_MS.name}): {problem}"
        )
        return False

    def _introduction(self) -> dict[str, object]:
        view = self._view
        return {
            "broker_id": view.node_id,
            "cluster_id": view.image.cluster_id,
            "incarnation_id": self._incarnation_id,
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
                for each in supported_features(view.config)
            ],
            "rack": view.config[node.BROKER_RACK],
            "log_dirs": self._log_dirs(),
            "previous_broker_epoch": max(self._previous_epoch, self.broker_epoch),
            "machine_id": view.config[node.MACHINE_ID],
            **({} if self.registered.done() else self._handed_over()),
        }

    def _handed_over(self) -> dict[str, object]:
        """The replicas that this broker takes over, and the brokers of this machine that are gone: only once."""
        return {
            "adopted_replicas": [
                {
                    "topic_id": each.topic_id,
                    "partition_index": each.partition,
                    "from_broker": each.from_broker,
                    "from_directory": each.from_directory,
                    "from_epoch": each.from_epoch,
                }
                for each in self._adopted
            ],
            "retired_brokers": list(self._retired),
        }

    def _refusal(self, code: ErrorCode) -> str | None:
        """The message for an error after which a retry is useless; None if the broker should retry."""
        view = self._view
        match code:
            case ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                return (
                    f"another broker is running with node.id={view.node_id}, or with a copy of this data directory: "
                    "give each broker its own node.id and an empty data directory, or stop the other broker"
                )
            case ErrorCode.INCONSISTENT_CLUSTER_ID:
                return (
                    f"this data directory belongs to cluster {view.image.cluster_id}, but the controllers belong to "
                    "another: correct controller.quorum.voters, or start with an empty data directory"
                )
            case ErrorCode.UNSUPPORTED_VERSION:
                return (
                    "the cluster uses a feature level that this version does not support: run the version of the other "
                    "nodes"
                )
            case ErrorCode.INVALID_REGISTRATION:
                return f"the controller refuses broker {view.node_id}: check its listeners and node.id"
        return None

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats until the registration is lost."""
        while not self._left.done():
            if self._registers_again:
                self._registers_again = False
                return
            self._news.clear()
            was_leaving = self._leaving
            sent_s = self._environment.loop.time()
            try:
                response = await self._send_heartbeat()
            except KafkaError as error:
                _log.warning("heartbeat_failed error=%s", error)
                if was_leaving:  # the whole cluster may be stopping: no controller is left
                    self._finish_leaving()
                continue
            code = ErrorCode(response.error_code)
            if code in _REGISTER_AGAIN:
                _log.warning("registration_lost broker=%d epoch=%d", self._view.node_id, self.broker_epoch)
                self.is_fenced = True
                self._contact.heard(sent_s, is_fenced=True)
                return
            if code is ErrorCode.NONE:
                self._contact.heard(sent_s, is_fenced=response.is_fenced)
                self._on_response(response)
            else:
                _log.warning("heartbeat_refused error=%s", code.name)
            await self._wait(self._interval_s())

    async def _send_heartbeat(self) -> Message:
        self._sent_offset = self._view.image.offset
        fields = {
            "broker_id": self._view.node_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self._sent_offset,
            "want_fence": not self._initialized,
            "want_shut_down": self._leaving,
            "offline_log_dirs": list(self._offline_dirs),
            "cordoned_log_dirs": self._cordoned_log_dirs(),
        }
        timeout_s = self._view.config[cluster.BROKER_SESSION_TIMEOUT_MS] / 2000
        if self._leaving:
            timeout_s = min(timeout_s, _LEAVING_TIMEOUT_SECONDS)
        return await self._link.request("broker_heartbeat", fields, timeout_s=timeout_s)

    def _on_response(self, response: Message) -> None:
        if self.is_fenced != response.is_fenced:
            _log.info("broker_%s epoch=%d", "fenced" if response.is_fenced else "unfenced", self.broker_epoch)
        self.is_fenced = response.is_fenced
        if not response.is_fenced and not self.serving.done():
            self.serving.set_result(None)
        if response.should_shut_down and self._leaving:
            self._finish_leaving()

    def _finish_leaving(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    def _interval_s(self) -> float:
        if self._left.done():
            return 0.0
        if self._leaving:
            return _LEAVING_INTERVAL_SECONDS
        return heartbeat_interval_s(self._view.config)

    async def _until_initialized(self) -> None:
        """Waits until the broker is initialized, at most one interval. This usually saves the first heartbeat."""
        deadline_s = self._environment.loop.time() + self._interval_s()
        while not (self._initialized or self._leaving) and (left_s := deadline_s - self._environment.loop.time()) > 0:
            self._news.clear()
            await self._wait(left_s)

    async def _wait(self, seconds: float) -> None:
        """Waits until there is a reason for a heartbeat, or until the timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
