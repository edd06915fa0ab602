"""The broker's life in the cluster: it registers, tells the controller again and again that it lives, and takes leave.

Heartbeats go out every `broker.heartbeat.interval.ms`, and at once when there is something to tell: the metadata has
been read up to the own registration, another node leads, this broker wants to stop, another one does (the controller
lets it go when all others have heard of it). So a broker serves as soon as it can, and no timer makes anyone wait.

Whether this broker is in touch with the controller: if it is not, others may lead what it believes to lead.

A leader that was cut off does not know that it was fenced. By Kafka's rules it goes on to respond from its log, and
some of its responses are final for a client: a sequence that is out of order, an offset that is out of range. Another
leader may have what this one lacks. So a leader that is not in touch gives no such response. It says that it does not
lead, and the client looks for the leader (ADR 23).

A broker is in touch if its last heartbeat was responded to, and its copy of the metadata was complete, a short time
ago. Both count from when it asked, not from when it got the response: a process that was stopped finds old responses.
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
from millstream.node.metadata.features import SUPPORTED_FEATURES
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.records import Endpoint

_METADATA_S = 1.1
"""The leader of the quorum holds a fetch for half a second, so the last one with a response may be a second old."""


class ControllerContact:
    def __init__(
        self, now: Callable[[], float], limit_s: Callable[[], float], metadata_as_of_s: Callable[[], float]
    ) -> None:
        """`metadata_as_of_s` says until when all committed metadata was known here, in the time of `now`."""
        self._now = now
        self._limit_s = limit_s
        self._metadata_as_of_s = metadata_as_of_s
        self._heard_s = -math.inf

    def heard(self, asked_s: float, *, is_fenced: bool) -> None:
        """The controller has responded to a heartbeat that was sent then."""
        self._heard_s = -math.inf if is_fenced else asked_s

    @property
    def is_lost(self) -> bool:
        now, limit_s = self._now(), self._limit_s()
        return now - self._heard_s > limit_s or now - self._metadata_as_of_s() > max(limit_s, _METADATA_S)


_RETRY_S = 0.25
_LEAVING_PATIENCE_S = 3.0
"""How long a broker that takes leave waits for a controller: as long as the election of another may take."""
_LEAVING_INTERVAL_S = 0.05
"""Between heartbeats of a broker that wants to stop: each may be the one that lets it go."""
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
        directory_id: UUID,
        previous_broker_epoch: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`previous_broker_epoch` is what the last process left when it stopped cleanly, else -1. `on_fatal` is told in
        one line why this broker cannot be part of the cluster."""
        self._view = view
        self._link = link
        self._environment = environment
        self._contact = contact
        self._end_points = end_points
        self._directory_id = directory_id
        self._previous_epoch = previous_broker_epoch
        self._on_fatal = on_fatal
        self._incarnation_id = UUID(int=environment.randomness.getrandbits(128), version=4)
        self.broker_epoch = -1
        self.is_fenced = True
        self._told_offset = -1
        self._able = False
        self._leaving = False
        self._refused_since_s: float | None = None
        """Since when the present controller says that another process has our number."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.registered: asyncio.Future[None] = environment.loop.create_future()
        """Done when the controller has given this broker an epoch for the first time."""
        self.serving: asyncio.Future[None] = environment.loop.create_future()
        """Done when the controller has let this broker serve for the first time."""
        self._left: asyncio.Future[None] = environment.loop.create_future()
        view.subscribe(self._follow)

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._live())

    def able(self) -> None:
        """The broker has loaded what it needs: it wants to serve as soon as it has caught up."""
        self._able = True
        self._news.set()

    def leader_changed(self) -> None:
        """Another controller knows nothing of this broker's heartbeats yet, and waits for those of its former self."""
        self._refused_since_s = None
        self._news.set()

    async def shut_down(self, timeout_s: float) -> None:
        """Lets others lead what this broker leads, if there are any; returns when that is done or time is up."""
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
        """Tells the controller that the log directory has failed, so that others lead; whether it knows in time."""
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
            "offline_log_dirs": [self._directory_id],
        }
        try:
            answer = await self._link.request("broker_heartbeat", fields, timeout_s=timeout_s)
        except KafkaError as error:
            _log.warning("failed_directory_not_told error=%s", error)
            return False
        return answer.error_code == ErrorCode.NONE and bool(answer.should_shut_down)

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
            # Whatever this one leads or follows from here on, in the name of both, could cost what was acknowledged.
            self._on_fatal(
                f"another process has taken the place of this one in the cluster, with node.id={self._view.node_id}: "
                "give each its own node.id and an empty data directory, or stop the other one"
            )
        if self._told_offset < self.broker_epoch <= image.offset:
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
                await self._until_able()
                await self._keep_telling()
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("lifecycle_failed")
            self._on_fatal("the broker cannot go on in the cluster because of an internal error, see the log")

    async def _register(self) -> bool:
        """Registers this process; False if that will never be possible, or was not in time."""
        loop, config = self._environment.loop, self._view.config
        first = not self.serving.done()
        deadline_s = loop.time() + config[cluster.INITIAL_BROKER_REGISTRATION_TIMEOUT_MS] / 1000
        # Who has our number may be our own former self: a controller gives it up after one session, and any new
        # controller begins to count anew.
        session_s = config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000
        patience_s = 2 * session_s
        problem = "the metadata quorum has no leader, or it cannot be reached: start most of its controllers"
        while not first or loop.time() < deadline_s:
            self._news.clear()
            if self._leaving:
                self._finish_leaving()
                return False
            if not self._view.image.cluster_id:
                await self._wait(_RETRY_S)
                continue
            left_s = deadline_s - loop.time() if first else session_s
            try:
                answer = await self._link.request(
                    "broker_registration", self._introduction(), timeout_s=max(_RETRY_S, min(left_s, session_s))
                )
            except KafkaError as error:
                problem = error.message
                self._refused_since_s = None
                await self._wait(_RETRY_S)
                continue
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                self.broker_epoch = self._view.broker_epoch = answer.broker_epoch
                self.is_fenced = True
                if not self.registered.done():
                    self.registered.set_result(None)
                _log.info("registered broker=%d epoch=%d", self._view.node_id, self.broker_epoch)
                return True
            fatal = self._refusal(code)
            if self._refused_since_s is None:
                self._refused_since_s = loop.time()
                _log.warning("registration_refused error=%s", code.name)
            is_patient = code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            if fatal and not (is_patient and loop.time() < self._refused_since_s + patience_s):
                self._on_fatal(fatal)
                return False
            problem = fatal or f"the controller answers {code.name}"
            await self._wait(_RETRY_S)
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
                for each in SUPPORTED_FEATURES
            ],
            "rack": view.config[node.BROKER_RACK],
            "log_dirs": [self._directory_id],
            "previous_broker_epoch": max(self._previous_epoch, self.broker_epoch),
        }

    def _refusal(self, code: ErrorCode) -> str | None:
        """Why there is no point in going on, and what to do; None if there is."""
        view = self._view
        match code:
            case ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                return (
                    f"another broker is running with node.id={view.node_id}, or with a copy of this data directory: "
                    "give each its own node.id and an empty data directory, or stop the other one"
                )
            case ErrorCode.INCONSISTENT_CLUSTER_ID:
                return (
                    f"this data directory belongs to cluster {view.image.cluster_id}, but the controllers belong to "
                    "another: correct controller.quorum.voters, or start with an empty data directory"
                )
            case ErrorCode.UNSUPPORTED_VERSION:
                return (
                    "the cluster uses a feature level that this version does not support: run the version that the "
                    "other nodes run"
                )
            case ErrorCode.INVALID_REGISTRATION:
                return f"the controller does not take broker {view.node_id} as it is: check its listeners and node.id"
        return None

    # Heartbeats

    async def _keep_telling(self) -> None:
        """Tells until the controller no longer knows this process."""
        while not self._left.done():
            self._news.clear()
            was_leaving = self._leaving
            asked_s = self._environment.loop.time()
            try:
                answer = await self._tell()
            except KafkaError as error:
                _log.warning("heartbeat_failed error=%s", error)
                if was_leaving:  # the whole cluster may be stopping: nobody is left to hand anything over
                    self._finish_leaving()
                continue
            code = ErrorCode(answer.error_code)
            if code in _REGISTER_AGAIN:
                _log.warning("registration_lost broker=%d epoch=%d", self._view.node_id, self.broker_epoch)
                self.is_fenced = True
                self._contact.heard(asked_s, is_fenced=True)
                return
            if code is ErrorCode.NONE:
                self._contact.heard(asked_s, is_fenced=answer.is_fenced)
                self._heard(answer)
            else:
                _log.warning("heartbeat_refused error=%s", code.name)
            await self._wait(self._interval_s())

    async def _tell(self) -> Message:
        self._told_offset = self._view.image.offset
        fields = {
            "broker_id": self._view.node_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self._told_offset,
            "want_fence": not self._able,
            "want_shut_down": self._leaving,
        }
        timeout_s = self._view.config[cluster.BROKER_SESSION_TIMEOUT_MS] / 2000
        if self._leaving:
            timeout_s = min(timeout_s, _LEAVING_PATIENCE_S)
        return await self._link.request("broker_heartbeat", fields, timeout_s=timeout_s)

    def _heard(self, answer: Message) -> None:
        if self.is_fenced != answer.is_fenced:
            _log.info("broker_%s epoch=%d", "fenced" if answer.is_fenced else "unfenced", self.broker_epoch)
        self.is_fenced = answer.is_fenced
        if not answer.is_fenced and not self.serving.done():
            self.serving.set_result(None)
        if answer.should_shut_down and self._leaving:
            self._finish_leaving()

    def _finish_leaving(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    def _interval_s(self) -> float:
        if self._left.done():
            return 0.0
        if self._leaving:
            return _LEAVING_INTERVAL_S
        return heartbeat_interval_s(self._view.config)

    async def _until_able(self) -> None:
        """Mostly it is only a moment, which saves the controller a heartbeat that asks to be fenced."""
        deadline_s = self._environment.loop.time() + self._interval_s()
        while not (self._able or self._leaving) and (left_s := deadline_s - self._environment.loop.time()) > 0:
            self._news.clear()
            await self._wait(left_s)

    async def _wait(self, seconds: float) -> None:
        """Until there is news, but not longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
