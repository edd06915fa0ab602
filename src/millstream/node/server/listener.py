"""Accepts connections on one address, within limits, and closes idle ones. With TLS, after the handshake."""

import asyncio
import contextlib
import errno
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from millstream.common.lazy_dataclass import dataclass
from millstream.config.table.sasl import LOGIN_TIMEOUT_MS
from millstream.config.table.ssl import MAX_HANDSHAKES
from millstream.formats.model.access_control import ANONYMOUS
from millstream.formats.model.ordered_set import OrderedSet
from millstream.node.server.connection import SCRATCH_BYTES, Connection
from millstream.node.server.fair_turns import FairTurns
from millstream.node.server.handshakes import HandshakeGate, HandshakeLimits
from millstream.node.server.limits import LogThrottle, OpenConnections, RequestMemory, address_key
from millstream.node.server.network import Listening, Network, Transport
from millstream.node.server.plain_http import MAX_FRAME_BYTES, METHODS, HttpService
from millstream.node.server.service import Authentication, HeldRequests, Peer, Service
from millstream.node.server.tls import HandshakeError, NotTlsError, ServerTls, SilentPeerError, TlsRuntime, TlsTransport

_SWEEP_SECONDS = 5.0
_USE_HTTPS = b"this port uses TLS: use https\n"
_USE_HTTPS_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_USE_HTTPS), _USE_HTTPS)
)
_MAX_DELAYED = 1000
"""The maximum number of connections above a quota that are kept open for the delay."""
DEFAULT_REQUEST_MEMORY_BYTES = 512 << 20
_log = logging.getLogger("millstream.net")
_log.addFilter(LogThrottle())  # for the whole package, which shares the logger


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_frame_bytes: int = 100 << 20
    request_memory_bytes: int = DEFAULT_REQUEST_MEMORY_BYTES
    max_waiting_responses: int = 256
    max_unsent_bytes: int = 4 << 20
    max_connections: int = 1 << 31
    max_connections_per_address: int = 1 << 31
    max_idle_seconds: float = 600.0
    login_seconds: float = 30.0
    """The time for a client to authenticate by SASL, from the first byte that it may send."""
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    backlog: int = 1024
    max_connections_of_address: Mapping[str, int] = field(default_factory=dict)
    """Limits for single addresses, in place of `max_connections_per_address`."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS of a listener."""

    certificates: ServerTls
    runtime: TlsRuntime
    limits: HandshakeLimits


_LOGIN_MEMORY_BYTES = 8 << 20
"""For frames of clients that have not logged in, on a listener with SASL. Most logins need less than one read."""


class ConnectionRates(Protocol):
    def of_address(self, address: str, listener: str) -> float:
        """Counts a new connection; the seconds after which to close it, or 0 to accept it."""
        ...

    def of_listener(self, name: str) -> float:
        """Counts an accepted connection; the seconds for which this listener accepts no other."""
        ...


class Listener:
    """One listening socket and its connections. It is bound first, and accepts when there is a service."""

    service: Service

    def __init__(
        self,
        name: str,
        limits: ConnectionLimits,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        stopwatch: Callable[[], float] | None = None,
        *,
        turns: FairTurns | None = None,
        open_connections: OpenConnections | None = None,
        security_protocol: str = "PLAINTEXT",
        tls: ListenerTls | None = None,
    ) -> None:
        """`stopwatch` measures turns of the loop; the loop's own time may stand still during a turn. `turns` are those
        of all listeners on the loop, `open_connections` those of all that share `max.connections`."""
        self._open = open_connections or OpenConnections(1 << 31)
        self.security_protocol = security_protocol
        self.tls = tls
        self.handshakes = HandshakeGate(tls.limits if tls is not None else HandshakeLimits(), loop.time)
        self.handshakes_done = 0
        self.handshakes_failed: Counter[str] = Counter()
        """TLS handshakes that failed, by the kind of failure."""
        self.on_authentication: Callable[[Peer, bool, str], None] | None = None
        """Called after a handshake that failed (with the reason), or that gave the client a principal; for audits."""
        self._in_handshake: dict[TlsTransport, asyncio.Task[None]] = {}
        self.stopwatch = stopwatch or loop.time
        self.call_soon = loop.call_soon
        self.call_at = loop.call_at
        self.turns = turns if turns is not None else FairTurns(loop.call_soon, self.stopwatch)
        self.name = name
        self.limits = limits
        self.memory = RequestMemory(limits.request_memory_bytes)
        self.login_memory = RequestMemory(min(limits.request_memory_bytes // 8, _LOGIN_MEMORY_BYTES))
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.max_frame_bytes = min(limits.max_frame_bytes, MAX_FRAME_BYTES)
        self.max_waiting_responses = limits.max_waiting_responses
        self.max_unsent_bytes = limits.max_unsent_bytes
        self.now = loop.time
        self._network = network
        self._loop = loop
        self._listening: Listening | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._serves_since = 0.0
        self.connections: OrderedSet[Connection] = OrderedSet()
        self._per_address: Counter[str] = Counter()
        self.http: HttpService | None = None
        """Handles HTTP connections; None closes them."""
        self.authenticate: Callable[[Peer], Authentication] | None = None
        """Begins the authentication of a connection by SASL; None without SASL."""
        self.rates: ConnectionRates | None = None
        """Limits on new connections per second; None while the node starts."""
        self._delayed: dict[Transport, asyncio.TimerHandle] = {}
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by the setting that limits them."""
        self.pauses = 0
        """How often a connection was paused at a limit, or for lack of request memory."""

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds the address; returns it, with the port that the system chose for port 0."""
        self._listening = self._network.listen(
            host,
            port,
            backlog=self.limits.backlog,
            receive_buffer_bytes=self.limits.receive_buffer_bytes,
            send_buffer_bytes=self.limits.send_buffer_bytes,
        )
        return self._listening.host, self._listening.port

    def serve(self, service: Service) -> None:
        """Begins to accept; earlier connections waited in the backlog. A second call changes the service."""
        assert self._listening is not None
        self.service = service
        self._serves_since = self.now()
        if self._sweeper is not None:
            return
        self._listening.watch(self._accept)
        self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)

    def _accept(self) -> None:
        for _ in range(64):
            if self._listening is None:
                return
            try:
                accepted = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The connection stays in the backlog; an immediate retry would only use the processor.
                    _log.error("accept_failed error=%s retry_seconds=1: raise the limit of open files", error)
                    self._listening.watch(None)
                    self._loop.call_later(1.0, self._accept_again)
                return
            self._welcome(accepted)
            if self.rates is not None and (pause_s := self.rates.of_listener(self.name)):
                # max.connection.creation.rate: connections wait in the backlog.
                self._listening.watch(None)
                self._loop.call_later(pause_s, self._accept_again)
                return

    def _accept_again(self) -> None:
        if self._listening is not None:
            self._listening.watch(self._accept)

    def _welcome(self, transport: Transport) -> None:
        host = transport.peer_host
        address = self._address(host)
        is_full = self._open.count >= self._open.limit
        if is_full or len(self.connections) + len(self._in_handshake) >= self.limits.max_connections:
            self.refused["max.connections"] += 1
            _log.warning("connection_refused peer=%s limit=max.connections", host)
            transport.close()
        elif self._per_address[address] >= self.limits.max_connections_of_address.get(
            address, self.limits.max_connections_per_address
        ):
            self.refused["max.connections.per.ip"] += 1
            _log.warning("connection_refused peer=%s limit=max.connections.per.ip", host)
            transport.close()
        elif self.rates is not None and (delay_s := self.rates.of_address(host, self.name)):
            self.refused["connection_creation_rate"] += 1
            self._close_later(transport, delay_s)
        else:
            self._per_address[address] += 1
            self._open.count += 1
            self.accepted += 1
            peer = Peer(host, transport.peer_port, self.name, security_protocol=self.security_protocol)
            peer.counted_as = address
            if self.tls is None:
                self.connections.add(Connection(transport, peer, self))
            else:
                self._begin_handshake(transport, peer, self.tls)

    # TLS

    def _begin_handshake(self, transport: Transport, peer: Peer, tls: ListenerTls) -> None:
        wait_s = self.handshakes.enter(peer.counted_as)
        if wait_s is None:
            self.refused[MAX_HANDSHAKES.name] += 1
            _log.warning("connection_refused peer=%s reason=too many TLS handshakes", peer.host)
            transport.close()
            self._forget_address(peer.counted_as)
            return
        secured = TlsTransport(transport, tls.certificates.context, tls.runtime, server_side=True)
        self._in_handshake[secured] = self._loop.create_task(self._shake_hands(secured, transport, peer, tls, wait_s))

    async def _shake_hands(
        self, secured: TlsTransport, transport: Transport, peer: Peer, tls: ListenerTls, wait_s: float
    ) -> None:
        is_established = False
        try:
            if wait_s:
                await asyncio.sleep(wait_s)
            async with asyncio.timeout(tls.limits.timeout_s):
                await secured.handshake()
                peer.principal = tls.certificates.principal(secured.peer_certificate)
            is_established = True
        except NotTlsError as error:
            self._failed(peer, "not TLS", "the client does not use TLS: set its security.protocol to SSL or SASL_SSL")
            if error.begin[:4] in METHODS:
                with contextlib.suppress(OSError):
                    transport.send(_USE_HTTPS_RESPONSE)
        except HandshakeError as error:
            self._failed(peer, "refused", str(error))
            await secured.drain()
        except TimeoutError:
            self._failed(peer, "timeout", f"not done within {tls.limits.timeout_s:g} s")
        except SilentPeerError:
            _log.debug("tls_probed listener=%s peer=%s:%d", self.name, peer.host, peer.port)
        except OSError as error:
            self._failed(peer, "broken", str(error))
        finally:
            del self._in_handshake[secured]
            self.handshakes.leave(peer.counted_as)
            if is_established and self._listening is not None:
                self.handshakes_done += 1
                if self.on_authentication is not None and peer.principal != ANONYMOUS:
                    self.on_authentication(peer, True, "")
                self.connections.add(Connection(secured, peer, self))
            else:
                secured.close()
                self._forget_address(peer.counted_as)

    def _failed(self, peer: Peer, kind: str, reason: str) -> None:
        self.handshakes_failed[kind] += 1
        if self.on_authentication is not None:
            self.on_authentication(peer, False, reason)
        _log.warning("tls_handshake_failed listener=%s peer=%s:%d reason=%s", self.name, peer.host, peer.port, reason)

    def _close_later(self, transport: Transport, delay_s: float) -> None:
        """Closes a connection above the quota of its address after a delay: a client that retries at once waits."""
        if len(self._delayed) >= _MAX_DELAYED:
            transport.close()
            return

        def close() -> None:
            del self._delayed[transport]
            transport.close()

        self._delayed[transport] = self._loop.call_later(delay_s, close)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._forget_address(connection.peer.counted_as)

    def _address(self, host: str) -> str:
        """The key under which the limits count an address: an address with its own limit has its own key."""
        return host if host in self.limits.max_connections_of_address else address_key(host)

    def _forget_address(self, address: str) -> None:
        self._open.count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def _sweep(self) -> None:
        now = self._loop.time()
        oldest = now - self.limits.max_idle_seconds
        for connection in [c for c in self.connections if c.last_active < oldest and not c.is_waiting]:
            connection.close()
        if self.authenticate is not None and not isinstance(self.service, HeldRequests):
            self._end_slow_logins(now)
        if self.memory.is_contended or self.login_memory.is_contended:
            # Reserved memory that is not used keeps other connections waiting.
            for connection in [c for c in self.connections if c.is_stalling(now)]:
                _log.warning("connection_stalled peer=%s:%d", connection.peer.host, connection.peer.port)
                connection.close()
        self.memory.trim()
        self.login_memory.trim()
        self.handshakes.forget_idle()
        self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)

    def _end_slow_logins(self, now: float) -> None:
        """Closes connections that have not authenticated in time: a client may send one byte now and then. Logins wait
        while the node starts: that time does not count."""
        latest = now - self.limits.login_seconds
        if self._serves_since > latest:
            return
        for connection in [c for c in self.connections if c.opened <= latest and _is_in_login(c)]:
            self.refused[LOGIN_TIMEOUT_MS.name] += 1
            _log.warning(
                "connection_refused peer=%s:%d listener=%s reason=not authenticated within %g s (%s)",
                connection.peer.host, connection.peer.port, self.name, self.limits.login_seconds, LOGIN_TIMEOUT_MS.name,
            )  # fmt: skip
            connection.close()

    @property
    def _sweep_seconds(self) -> float:
        return _SWEEP_SECONDS if self.authenticate is None else min(_SWEEP_SECONDS, self.limits.login_seconds)

    def stop_accepting(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for secured, handshake in list(self._in_handshake.items()):
            handshake.cancel()
            secured.close()  # a task that has not started yet does not clean up when it is cancelled
        for transport, timer in self._delayed.items():
            timer.cancel()
            transport.close()
        self._delayed.clear()
        for connection in list(self.connections):
            connection.close()


def _is_in_login(connection: Connection) -> bool:
    authentication = connection.peer.authentication
    return authentication is not None and not authentication.is_authenticated
