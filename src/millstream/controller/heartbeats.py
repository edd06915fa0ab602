"""Brokers come, live and go: registrations and heartbeats heard, the silent fenced, the dead fenced at once.

A broker that is not heard of for `broker.session.timeout.ms` is fenced. Mostly it is quicker: when the connection of
its heartbeats breaks, its address is probed, and if nobody listens there the process is gone. Anything else (no answer,
no way to get there, a listener that answers) proves nothing, and the session decides. A controller that takes over
knows of no contacts: all sessions start anew, and every address is probed, for the node that led before may have been
a broker too.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from millstream.api.request import Context, Response
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.controller.active_controller import ActiveController
from millstream.controller.broker_sessions import BrokerSession, BrokerSessions
from millstream.environment import Environment
from millstream.metadata.decision import Decision
from millstream.metadata.image import BrokerRegistration, MetadataImage
from millstream.metadata.membership import (
    BrokerAdmission,
    BrokerDeparture,
    BrokerIntroduction,
    Heartbeat,
    HeartbeatAnswer,
    admit_broker,
    fence_broker,
    process_heartbeat,
    unregister_broker,
)
from millstream.metadata.records import Endpoint, SupportedFeature
from millstream.model.errors import KafkaError
from millstream.model.identifiers import BrokerId
from millstream.net.service import Peer
from millstream.protocol.schema import Message

_PROBE_TIMEOUT_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_DEAF_S = 1.0
_RETRY_S = 0.5
"""Pause before a fencing that could not be written is tried again."""

_log = logging.getLogger("millstream.controller")


class Heartbeats:
    def __init__(self, controller: ActiveController, environment: Environment) -> None:
        self._controller = controller
        self._environment = environment
        self._sessions = BrokerSessions()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        controller.on_leading.append(self._begin)
        controller.on_resigned.append(self._end)

    @property
    def _timeout_s(self) -> float:
        return self._controller.config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000

    @property
    def _takeover_timeout_s(self) -> float:
        """Brokers turn to a new controller at once; if that got lost, with the next heartbeat."""
        return min(self._timeout_s, 2 * self._controller.config[cluster.BROKER_HEARTBEAT_INTERVAL_MS] / 1000)

    def close(self) -> None:
        self._end()
        for task in tuple(self._tasks):
            task.cancel()

    # Taking over and giving up

    def _begin(self) -> None:
        now_s = self._environment.loop.time()
        own_id = self._controller.config.node_id
        for broker in self._controller.image.brokers.values():
            # The broker of this process is heard of at once, or has yet to register: then its former self is dead. (A
            # process that is no broker any more may still have one in the metadata.)
            if broker.fenced or (broker.id == own_id and self._controller.config.is_broker):
                continue
            self._start(self._probe(self._sessions.begin(broker.id, broker.epoch, now_s, heard=False)))
        self._schedule()

    def _end(self) -> None:
        self._sessions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What brokers say

    async def broker_registration(self, request: Message, context: Context) -> Response:
        introduction = BrokerIntroduction(
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
        )
        broker_id, loop = introduction.broker_id, self._environment.loop

        def admit(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[BrokerAdmission]:
            earlier = image.brokers.get(broker_id)
            decision = admit_broker(
                image,
                introduction,
                config,
                next_offset=self._controller.next_offset,
                session_alive=self._sessions.is_alive(
                    broker_id,
                    loop.time(),
                    self._timeout_s,
                    self._takeover_timeout_s,
                    same_disk=earlier is not None and _same_disk(earlier, introduction),
                ),
            )
            session = self._sessions.begin(broker_id, decision.results[0].broker_epoch, loop.time())
            self._watch(session, context.peer)
            return decision

        (admission,) = await self._controller.decide(admit)
        _log.info("broker_registered broker=%d epoch=%d", broker_id, admission.broker_epoch)
        self._schedule()
        return {"broker_epoch": admission.broker_epoch}

    async def broker_heartbeat(self, request: Message, context: Context) -> Response:
        heartbeat = Heartbeat(
            broker_id=BrokerId(request.broker_id),
            broker_epoch=request.broker_epoch,
            # No broker has applied more than there is; a number beyond would count for all later records too.
            current_metadata_offset=min(request.current_metadata_offset, self._controller.next_offset - 1),
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            offline_log_dirs=tuple(request.offline_log_dirs),
        )
        if heartbeat.offline_log_dirs:
            _log.warning("broker_lost_its_disk broker=%d epoch=%d", heartbeat.broker_id, heartbeat.broker_epoch)

        def process(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[HeartbeatAnswer]:
            others_know = self._sessions.others_know(image, heartbeat.broker_id)
            decision = process_heartbeat(image, heartbeat, config, others_know=others_know)
            session = self._sessions.touch(
                heartbeat.broker_id,
                heartbeat.broker_epoch,
                self._environment.loop.time(),
                heartbeat.current_metadata_offset,
            )
            self._watch(session, context.peer)
            if decision.results[0].in_controlled_shutdown and (decision.records or session.shutdown_offset is None):
                session.shutdown_offset = self._controller.next_offset + len(decision.records) - 1
            return decision

        (answer,) = await self._controller.decide(process)
        if answer.should_shut_down:
            self._sessions.end(heartbeat.broker_id)
        self._schedule()
        return {
            "is_caught_up": answer.is_caught_up,
            "is_fenced": answer.is_fenced,
            "should_shut_down": answer.should_shut_down,
        }

    async def unregister_broker(self, request: Message, context: Context) -> Response:
        broker_id = BrokerId(request.broker_id)

        def leave(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[BrokerDeparture]:
            return unregister_broker(image, broker_id, config)

        await self._controller.decide(leave)
        self._sessions.end(broker_id)
        return {}

    # Who is heard no more

    def _watch(self, session: BrokerSession, peer: Peer) -> None:
        """Notices when the connection that the broker's heartbeats come over ends."""
        if session.connection is peer:
            return
        session.connection = peer

        def closed() -> None:
            current = self._sessions.get(session.broker_id)
            if current is session and session.connection is peer:
                session.connection_lost = True
                self._start(self._probe(session))

        if peer.closed:
            closed()
        else:
            peer.on_close.add(closed)

    async def _probe(self, session: BrokerSession) -> None:
        """Fences the broker if nobody listens at its address; looks again until it is heard of, or its time is up.

        A process that is being ended may for a moment have closed its connection and yet have its listener.
        """
        last_contact_s = session.last_contact_s
        pause_s = _FIRST_PAUSE_S
        while self._sessions.get(session.broker_id) is session and session.last_contact_s == last_contact_s:
            broker = self._registration(session)
            if broker is None or broker.fenced:
                return
            refused = await self._refuses(_inter_broker_endpoint(broker, self._controller.config))
            if refused and session.last_contact_s == last_contact_s:
                await self._fence(session.broker_id, session.broker_epoch, "nobody listens at its address")
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _refuses(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                transport = await self._environment.network.connect(endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # it may be cut off from here and yet live
        transport.close()
        return False

    def _registration(self, session: BrokerSession) -> BrokerRegistration | None:
        if not self._controller.is_active:
            return None
        broker = self._controller.image.brokers.get(session.broker_id)
        return broker if broker is not None and broker.epoch == session.broker_epoch else None

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        expiry_s = self._sessions.next_expiry_s(self._timeout_s)
        if expiry_s is not None and self._controller.is_active:
            self._timer = self._environment.loop.call_at(expiry_s, self._expire)

    def _expire(self) -> None:
        now_s = self._environment.loop.time()
        late_s = now_s - (self._sessions.next_expiry_s(self._timeout_s) or now_s)
        if late_s > _DEAF_S:
            # It was this process that did not run: what the brokers said meanwhile is yet to be read.
            self._sessions.start_anew(now_s)
        for broker_id in self._sessions.expired(now_s, self._timeout_s):
            session = self._sessions.get(broker_id)
            assert session is not None
            self._sessions.end(broker_id)
            self._start(self._fence(broker_id, session.broker_epoch, "its session timed out"))
        self._schedule()

    async def _fence(self, broker_id: BrokerId, broker_epoch: int, reason: str) -> None:
        def fence(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[BrokerDeparture]:
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != broker_epoch or broker.fenced:  # it came back, or left for good
                return Decision((), ())
            # Now, not when this is committed: by then it may have been heard of, and let in, again.
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
                await asyncio.sleep(_RETRY_S)
                continue
            if fenced:
                _log.warning("broker_fenced broker=%d epoch=%d reason=%s", broker_id, broker_epoch, reason)
            return

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._environment.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def _same_disk(earlier: BrokerRegistration, introduction: BrokerIntroduction) -> bool:
    return bool(introduction.log_dirs) and earlier.log_dirs == introduction.log_dirs


def _inter_broker_endpoint(broker: BrokerRegistration, config: BrokerConfig) -> Endpoint:
    names = {config.inter_broker_listener} if config.listeners else set()
    return next((each for each in broker.end_points if each.name.upper() in names), broker.end_points[0])
