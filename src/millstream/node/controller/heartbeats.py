"""Registrations and heartbeats of brokers, and the fencing of brokers that do not send them.

A broker without heartbeats for `broker.session.timeout.ms` is fenced. Usually it is faster. When the connection of its
heartbeats breaks, or when heartbeats are late, its address is probed with one request. If nothing listens, the process
has ended, and the broker is fenced at once. If it responds, only the session counts. If it does not respond, it hangs
or is disconnected, and it is fenced after `millstream.broker.suspect.after.ms` (ADR 23).

A controller that takes over has no contacts: all sessions start again, and every address is probed. It knows when the
previous leader of the quorum responded last. A follower probes its leader as soon as it does not respond, so that the
result is known if it has to take over.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, NamedTuple

from millstream.common.background_tasks import BackgroundTasks
from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig, suspect_after_s
from millstream.config.table import cluster
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.wire_types import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.broker_sessions import (
    STEP_SECONDS,
    BrokerSession,
    BrokerSessions,
    RunningTime,
    longest_gap_s,
)
from millstream.node.environment import Environment
from millstream.node.metadata.brokers import (
    BrokerChangeResult,
    Heartbeat,
    HeartbeatResult,
    RegistrationRequest,
    RegistrationResult,
    fence_broker,
    process_heartbeat,
    register_broker,
    unregister_broker,
)
from millstream.node.metadata.handover import AdoptedReplica
from millstream.node.metadata.image import BrokerRegistration, MetadataImage
from millstream.node.metadata.records import Decision, Endpoint, SupportedFeature
from millstream.node.metadata.topology import BrokerAddress, topology_warnings
from millstream.node.server.channel import Channel
from millstream.node.server.request import Context
from millstream.node.server.service import Peer
from millstream.node.server.tls import HandshakeError

_PROBE_TIMEOUT_SECONDS = 2.0
"""The timeout of the response. It is long enough for a slow broker."""


class ProbeResult(Enum):
    RESPONDS = "the process runs and is connected"
    REFUSES = "nothing listens at its address: the process has ended"
    SILENT = "the process hangs, is disconnected, or is slow"


async def probe(endpoint: Endpoint, environment: Environment, *, client_id: str) -> ProbeResult:
    """Sends one ApiVersions request. A connection alone proves little: the kernel accepts it for a stopped process."""
    channel = Channel(endpoint.host, endpoint.port, environment.broker_network, environment.loop, client_id=client_id)
    try:
        await channel.best_version("api_versions", timeout_s=_PROBE_TIMEOUT_SECONDS)
    except ConnectionRefusedError:
        return ProbeResult.REFUSES
    except HandshakeError:
        return ProbeResult.RESPONDS  # the process runs, though the nodes do not trust each other
    except OSError:
        return ProbeResult.SILENT
    finally:
        channel.close()
    return ProbeResult.RESPONDS


_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0
_MIN_STEP_SECONDS = 0.001
_RETRY_SECONDS = 0.5
"""The pause before a failed fencing is tried again."""

_log = logging.getLogger("millstream.controller")


class _LeaderContact(NamedTuple):
    """The last leader of the quorum, and its last response to this node."""

    node_id: int
    at_s: float
    """In the loop's time."""
    counted_s: float
    """In the running time of this process."""
    longest_gap_s: float


@dataclass(slots=True)
class _LeaderProbe:
    """A probe of a quorum leader that does not respond, before this node takes over."""

    node_id: int
    since_s: float
    responded_s: float = -math.inf
    session: BrokerSession | None = None
    """The session of its broker, after this node has taken over."""


class Heartbeats:
    def __init__(
        self,
        controller: ActiveController,
        environment: Environment,
        *,
        last_leader: Callable[[], tuple[int, float] | None] = lambda: None,
    ) -> None:
        """`last_leader` returns the other node that led the quorum last, and its last response in the loop's time."""
        self._controller = controller
        self._environment = environment
        self._last_leader = last_leader
        self._leader_contact: _LeaderContact | None = None
        self._topology_warnings: list[str] = []
        self._leader_probe: _LeaderProbe | None = None
        self._sessions = BrokerSessions()
        self._running_time = RunningTime(environment.loop.time())
        self._tasks = BackgroundTasks()
        self._timer: asyncio.TimerHandle | None = None
        controller.on_leading.append(self._begin)
        controller.on_resigned.append(self._sessions.clear)
        self._schedule()

    @property
    def _timeout_s(self) -> float:
        return self._controller.config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000

    @property
    def _takeover_timeout_s(self) -> float:
        """Brokers send a heartbeat to a new controller at once; if it is lost, the next one follows."""
        return min(self._timeout_s, 2 * self._controller.config[cluster.BROKER_HEARTBEAT_INTERVAL_MS] / 1000)

    @property
    def _now_s(self) -> float:
        """The time of all sessions: the running time of this process."""
        return self._running_time.now_s(self._environment.loop.time())

    def close(self) -> None:
        self._sessions.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    # Taking over

    def _begin(self) -> None:
        now_s, own_id = self._now_s, self._controller.config.node_id
        self._record_leader_contact()
        for broker in self._controller.image.brokers.values():
            # The broker of this process sends a heartbeat at once, or has not registered yet: then the earlier process
            # is dead. (The metadata may have a broker of a node that is only a controller now.)
            if broker.fenced or (broker.id == own_id and self._controller.config.is_broker):
                continue
            session = self._sessions.begin(broker.id, broker.epoch, now_s, heard=False)
            former, probed_since_s = self._leader_contact, now_s
            if former is not None and former.node_id == broker.id:
                session.last_contact_s = min(now_s, former.counted_s)
                session.longest_gap_s = former.longest_gap_s
                probed_since_s = self._take_over_probe(session, now_s)
            self._start_probe(session, probed_since_s)
        self._leader_probe = None
        self._schedule()

    def _take_over_probe(self, session: BrokerSession, now_s: float) -> float:
        """The start of the probes of the former leader's broker."""
        known = self._leader_probe
        if known is None or known.node_id != session.broker_id:
            return now_s
        known.session = session
        session.responded_s = known.responded_s
        return known.since_s

    def _probe_silent_leader(self, now_s: float) -> None:
        """Probes the leader if it does not respond. Runs on followers."""
        contact, suspect_s = self._leader_contact, suspect_after_s(self._controller.config)
        if contact is None or suspect_s is None or now_s - contact.counted_s < suspect_s / 2:
            self._leader_probe = None
        elif self._leader_probe is None:
            self._leader_probe = _LeaderProbe(contact.node_id, now_s)
            self._start(self._probe_leader(self._leader_probe))

    async def _probe_leader(self, leader: _LeaderProbe) -> None:
        """Repeats until the leader responds to fetches again, or another node leads."""
        config = self._controller.config
        while self._leader_probe is leader:
            broker = self._controller.known_image.brokers.get(BrokerId(leader.node_id))
            if broker is None or broker.fenced:
                return
            endpoint = _inter_broker_endpoint(broker, config)
            finding = await probe(endpoint, self._environment, client_id=f"controller-{config.node_id}")
            if finding is ProbeResult.RESPONDS:
                leader.responded_s = self._now_s
                if leader.session is not None:
                    leader.session.responded_s = leader.responded_s
            await asyncio.sleep(_FIRST_PAUSE_SECONDS)

    def _record_leader_contact(self) -> None:
        """Stores the last response of the quorum's leader: if the leader is lost, its broker is lost too."""
        known, before = self._last_leader(), self._leader_contact
        if known is None or (before is not None and (before.node_id, before.at_s) == known):
            return
        (node_id, at_s), now_s, gap_s = known, self._now_s, 0.0
        lost_s = self._controller.config[cluster.CONTROLLER_QUORUM_FETCH_TIMEOUT_MS] / 1000
        if before is not None and before.node_id == node_id and now_s - before.counted_s < lost_s:
            # Otherwise it is a new leader, or leads again after another one: the pause does not count as lateness.
            gap_s = longest_gap_s(before.longest_gap_s, now_s - before.counted_s)
        self._leader_contact = _LeaderContact(node_id, at_s, now_s, gap_s)

    # Requests of brokers

    async def broker_registration(
        self, request: BrokerRegistrationRequest, context: Context
    ) -> BrokerRegistrationResponse:
        introduction = RegistrationRequest(
            broker_id=BrokerId(request.broker_id),
            incarnation_id=request.incarnation_id,
            cluster_id=request.cluster_id,
            end_points=tuple(
                Endpoint(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
                for each in request.listeners
            ),
            features=tuple(
                SupportedFeature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in request.features
            ),
            rack=request.rack,
            log_dirs=tuple(request.log_dirs),
            previous_broker_epoch=request.previous_broker_epoch,
            machine_id=request.machine_id,
            adopted=tuple(
                AdoptedReplica(
                    topic_id=each.topic_id,
                    partition=each.partition_index,
                    from_broker=BrokerId(each.from_broker),
                    from_directory=each.from_directory,
                    from_epoch=each.from_epoch,
                )
                for each in request.adopted_replicas
            ),
            retired=tuple(request.retired_brokers),
        )
        broker_id = introduction.broker_id

        def admit(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[RegistrationResult]:
            earlier = image.brokers.get(broker_id)
            decision = register_broker(
                image,
                introduction,
                config,
                next_offset=self._controller.next_offset,
                session_alive=self._sessions.is_alive(
                    broker_id,
                    self._now_s,
                    self._timeout_s,
                    self._takeover_timeout_s,
                    same_disk=earlier is not None and _same_disk(earlier, introduction),
                ),
            )
            session = self._sessions.begin(broker_id, decision.results[0].broker_epoch, self._now_s)
            self._watch(session, context.peer)
            return decision

        (admission,) = await self._controller.decide(admit)
        _log.info("broker_registered broker=%d epoch=%d", broker_id, admission.broker_epoch)
        self._warn_of_topology()
        self._schedule()
        return {"broker_epoch": admission.broker_epoch}

    def _warn_of_topology(self) -> None:
        brokers = self._controller.image.brokers.values()
        found = topology_warnings(
            [BrokerAddress(each.id, each.end_points[0].host, each.rack, each.machine_id) for each in brokers]
        )
        if found and found != self._topology_warnings:
            _log.warning("rack_is_no_zone %s", "; ".join(found))
        self._topology_warnings = found

    async def broker_heartbeat(self, request: BrokerHeartbeatRequest, context: Context) -> BrokerHeartbeatResponse:
        heartbeat = Heartbeat(
            broker_id=BrokerId(request.broker_id),
            broker_epoch=request.broker_epoch,
            # An offset beyond the log's end would count for later records too.
            current_metadata_offset=min(request.current_metadata_offset, self._controller.next_offset - 1),
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            offline_log_dirs=tuple(request.offline_log_dirs),
            cordoned_log_dirs=tuple(request.cordoned_log_dirs),
        )
        if heartbeat.offline_log_dirs:
            _log.warning("broker_lost_its_disk broker=%d epoch=%d", heartbeat.broker_id, heartbeat.broker_epoch)

        def process(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[HeartbeatResult]:
            others_caught_up = self._sessions.others_caught_up(image, heartbeat.broker_id)
            decision = process_heartbeat(image, heartbeat, config, others_caught_up=others_caught_up)
            session = self._sessions.touch(
                heartbeat.broker_id,
                heartbeat.broker_epoch,
                self._now_s,
                heartbeat.current_metadata_offset,
            )
            self._watch(session, context.peer)
            if decision.results[0].in_controlled_shutdown and (decision.records or session.shutdown_offset is None):
                session.shutdown_offset = self._controller.next_offset + len(decision.records) - 1
            return decision

        (result,) = await self._controller.decide(process)
        if result.should_shut_down:
            self._sessions.end(heartbeat.broker_id)
        self._schedule()
        return {
            "is_caught_up": result.is_caught_up,
            "is_fenced": result.is_fenced,
            "should_shut_down": result.should_shut_down,
        }

    async def unregister_broker(self, request: UnregisterBrokerRequest, context: Context) -> UnregisterBrokerResponse:
        broker_id = BrokerId(request.broker_id)

        def leave(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[BrokerChangeResult]:
            return unregister_broker(image, broker_id, config)

        await self._controller.decide(leave)
        self._sessions.end(broker_id)
        return {}

    # Brokers without heartbeats

    def is_of_broker(self, peer: Peer) -> bool:
        """Whether a broker has registered, or sent a heartbeat, on this connection."""
        return any(session.connection is peer for session in self._sessions)

    def _watch(self, session: BrokerSession, peer: Peer) -> None:
        """Starts a probe when the connection of the broker's heartbeats ends."""
        if session.connection is peer:
            return
        session.connection = peer

        def closed() -> None:
            current = self._sessions.get(session.broker_id)
            if current is session and session.connection is peer:
                session.connection_lost = True
                self._start_probe(session)

        if peer.closed:
            closed()
        else:
            peer.on_close.add(closed)

    def _start_probe(self, session: BrokerSession, since_s: float | None = None) -> None:
        """`since_s` is the start of the probes, if not now."""
        if session.probed_since_s is None:
            session.probed_since_s = self._now_s if since_s is None else since_s
            self._start(self._probe(session))

    async def _probe(self, session: BrokerSession) -> None:
        """Repeats until the broker sends a heartbeat or its session ends. Fences it if its address refuses connections.

        One probe is not enough: a process that is being stopped may have closed its connection and still listen.
        """
        last_contact_s = session.last_contact_s
        client_id = f"controller-{self._controller.config.node_id}"
        pause_s = _FIRST_PAUSE_SECONDS
        try:
            while self._sessions.get(session.broker_id) is session and session.last_contact_s == last_contact_s:
                broker = self._registration(session)
                if broker is None or broker.fenced:
                    return
                endpoint = _inter_broker_endpoint(broker, self._controller.config)
                finding = await probe(endpoint, self._environment, client_id=client_id)
                if finding is ProbeResult.RESPONDS:
                    session.responded_s = self._now_s
                elif finding is ProbeResult.REFUSES and session.last_contact_s == last_contact_s:
                    await self._fence(session.broker_id, session.broker_epoch, "nothing listens at its address")
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_SECONDS)
        finally:
            session.probed_since_s = None

    def _registration(self, session: BrokerSession) -> BrokerRegistration | None:
        if not self._controller.is_active:
            return None
        broker = self._controller.image.brokers.get(session.broker_id)
        return broker if broker is not None and broker.epoch == session.broker_epoch else None

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = STEP_SECONDS
        expiry_s = self._sessions.next_expiry_s(self._timeout_s)
        if expiry_s is not None:
            wait_s = max(_MIN_STEP_SECONDS, min(wait_s, expiry_s - self._now_s))
        self._timer = self._environment.loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        now_s = self._running_time.tick(self._environment.loop.time())
        self._record_leader_contact()
        if self._controller.is_active:
            self._check_sessions(now_s)
        else:
            self._probe_silent_leader(now_s)
        self._schedule()

    def _check_sessions(self, now_s: float) -> None:
        for broker_id in self._sessions.expired(now_s, self._timeout_s):
            session = self._sessions.get(broker_id)
            assert session is not None
            self._end_session(session, "its session timed out")
        suspect_s = suspect_after_s(self._controller.config)
        if suspect_s is None:
            return
        lateness_s = self._running_time.lateness_s
        for session in self._sessions:
            if session.broker_id == self._controller.config.node_id and self._controller.config.is_broker:
                continue  # the broker of this process
            if session.is_suspect(now_s, suspect_s, lateness_s):
                silence_s, gap_s = session.silence_s(now_s), session.longest_gap_s
                self._end_session(
                    session,
                    f"it has not responded for {silence_s:.1f} s (its heartbeats came at most {gap_s:.1f} s apart, the "
                    f"controller was {lateness_s:.2f} s late)",
                )
            elif session.silence_s(now_s) >= session.allowed_silence_s(suspect_s, lateness_s) / 2:
                self._start_probe(session)

    def _end_session(self, session: BrokerSession, reason: str) -> None:
        self._sessions.end(session.broker_id)
        self._start(self._fence(session.broker_id, session.broker_epoch, reason))

    async def _fence(self, broker_id: BrokerId, broker_epoch: int, reason: str) -> None:
        def fence(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[BrokerChangeResult]:
            broker = image.brokers.get(broker_id)
            if (
                broker is None or broker.epoch != broker_epoch or broker.fenced
            ):  # it registered again, or was unregistered
                return Decision((), ())
            # Now, not after the commit: by then the broker may have a new session.
            session = self._sessions.get(broker_id)
            if session is not None and session.broker_epoch == broker_epoch:
                self._sessions.end(broker_id)
            return fence_broker(image, broker_id, config)

        epoch = self._controller.epoch
        while self._controller.is_active and self._controller.epoch == epoch:
            try:
                fenced = await self._controller.decide(fence)
            except KafkaError as error:
                _log.warning("broker_not_fenced broker=%d error=%s", broker_id, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if fenced:
                _log.warning("broker_fenced broker=%d epoch=%d reason=%s", broker_id, broker_epoch, reason)
            return

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, loop=self._environment.loop)


def _same_disk(earlier: BrokerRegistration, introduction: RegistrationRequest) -> bool:
    return bool(introduction.log_dirs) and earlier.log_dirs == introduction.log_dirs


def _inter_broker_endpoint(broker: BrokerRegistration, config: BrokerConfig) -> Endpoint:
    names = {config.inter_broker_listener} if config.listeners else set()
    return next((each for each in broker.end_points if each.name.upper() in names), broker.end_points[0])
