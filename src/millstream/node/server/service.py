"""The interface between connections and the dispatcher: `Service` takes a frame and returns its response, now or later
(`Pending`). Also here: `Peer`, the client of a connection, and `Authentication`, its login.

`HeldRequests` stands in for the service while a node starts: it keeps requests, within limits, until the service is
ready. So a node can accept connections early and respond to probes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millstream.formats.model.access_control import ANONYMOUS, Principal
from millstream.formats.model.ordered_set import OrderedSet


class OpenFile(Protocol):
    def fileno(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes: ...


class FilePart(Protocol):
    """A range of a file to be sent."""

    file: OpenFile
    position: int
    length: int


Part = bytes | bytearray | FilePart
Parts = Sequence[Part]


LOCAL_LISTENER = "local"
"""The listener name of a node's requests to the controller in its own process."""


@dataclass(slots=True)
class Peer:
    """The client of a connection."""

    host: str
    port: int
    listener: str
    counted_as: str = ""
    """The address under which the listener counts this connection for its limits. The limits may change later."""
    client_id: str = ""
    client_software: str = "unknown"
    principal: Principal = ANONYMOUS
    """The authenticated client. Set by the listener (TLS) or by SASL."""
    groups: tuple[Principal, ...] = ()
    """The `Group:` principals of the client: an ACL for one of them applies too."""
    security_protocol: str = "PLAINTEXT"
    token_authenticated: bool = False
    """Whether it authenticated with a delegation token. Such a client may not create tokens."""
    is_node: bool = False
    """Whether it is this node itself. Its requests need no permission."""
    broker_claim: str = field(default="", repr=False)
    """The proof that the client sent to show that it is a broker; empty if none (`node/cluster/broker_proof.py`)."""
    access: object | None = None
    """The permissions of the client. The authorizer keeps them here."""
    authentication: "Authentication | None" = None
    """The login of a client of a SASL listener: it gets every frame first. None without a login, or after it."""
    throttle: Callable[[int], None] | None = None
    """Mutes the connection for some milliseconds: responses are sent, and the socket is not read."""
    closed: bool = False
    on_close: OrderedSet[Callable[[], None]] = field(default_factory=OrderedSet)
    """Called once when the connection ends: releases what belongs to it."""

    def close(self) -> None:
        self.closed = True
        callbacks, self.on_close = self.on_close, OrderedSet()
        for callback in callbacks:
            callback()


class ReadPause:
    """The time in which a connection is not read, because its last request waits before it is handled. The handler
    ends it. A connection has at most one read pause."""

    __slots__ = ("_on_over", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._on_over: Callable[[], None] | None = None

    def when_over(self, callback: Callable[[], None]) -> None:
        self._on_over = callback

    def end(self) -> None:
        """Lets the connection read again."""
        self.is_over = True
        if self._on_over is not None:
            self._on_over()


class Pending:
    """A response that comes later; the connection keeps its position in the order of responses."""

    __slots__ = (
        "_on_resolved",
        "abandoned",
        "failed",
        "held_bytes",
        "is_last",
        "on_abandon",
        "parts",
        "read_pause",
        "resolved",
    )

    def __init__(self) -> None:
        self.resolved = False
        self.abandoned = False
        self.failed = False
        self.is_last = False
        """Whether the connection ends after this response."""
        self.held_bytes = 0
        """Bytes of a response that is ready and waits for earlier ones."""
        self.parts: Parts | None = None
        self.read_pause: ReadPause | None = None
        self.on_abandon: Callable[[], None] | None = None
        self._on_resolved: Callable[[], None] | None = None

    def resolve(self, parts: Parts | None) -> None:
        """Sets the response; None if the request has no response."""
        assert not self.resolved, "a request has one response"
        self.resolved = True
        self.parts = parts
        self.on_abandon = None
        if self._on_resolved is not None and not self.abandoned:
            self._on_resolved()

    def fail(self) -> None:
        """There is no response; the connection ends."""
        self.failed = True
        self.resolve(None)

    def when_resolved(self, callback: Callable[[], None]) -> None:
        self._on_resolved = callback

    def abandon(self) -> None:
        """The connection ended: the response is not needed any more."""
        self.abandoned = True
        if self.on_abandon is not None:
            self.on_abandon()
            self.on_abandon = None


class Authentication(Protocol):
    """The authentication of one connection by SASL (`node/security/sasl_server.py`)."""

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has logged in, maybe a while ago."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the client has logged in, and its session is not over."""
        ...

    def frame_limits(self, largest: int) -> tuple[int, int]:
        """The smallest and the largest frame now; `largest` is the limit of an authenticated client."""
        ...

    def handle(self, buffer: bytearray, start: int, end: int) -> "Parts | Pending | None":
        """Handles a frame, or returns None: then it is a request that may be served. Raises Refused."""
        ...


class Refused(Exception):
    """The peer broke the protocol; its connection is closed, and the reason goes to the log."""


class Service(Protocol):
    """Handles the requests of connections: the dispatcher, or `HeldRequests` while the node starts."""

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> "Parts | Pending | None":
        """Handles the request in buffer[start:end]. The buffer is reused as soon as this returns."""
        ...


_MAX_HELD_REQUESTS = 1024
_MAX_HELD_REQUEST_BYTES = 64 << 10
"""First requests of a client are small: it sends records only after some responses."""


class HeldRequests:
    """The service of a node that is starting: it keeps requests until the node is ready."""

    def __init__(self) -> None:
        self._held: list[tuple[bytearray, Peer, Pending]] = []

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> Pending:
        if end - start > _MAX_HELD_REQUEST_BYTES or len(self._held) >= _MAX_HELD_REQUESTS:
            raise Refused("the node is starting, and too many requests wait: try again")
        pending = Pending()
        self._held.append((buffer[start:end], peer, pending))
        return pending

    def give_to(self, service: Service) -> None:
        """Passes the held requests to the service."""
        held, self._held = self._held, []
        for frame, peer, pending in held:
            if pending.abandoned:
                continue
            try:
                _pass_on(service.handle(frame, 0, len(frame), peer), pending)
            except Refused:
                pending.fail()


def _pass_on(given: "Parts | Pending | None", pending: Pending) -> None:
    if not isinstance(given, Pending):
        pending.resolve(given)
        return

    def resolved() -> None:
        if given.failed:
            pending.fail()
        else:
            pending.is_last = given.is_last
            pending.resolve(given.parts)

    pending.on_abandon = given.abandon
    given.when_resolved(resolved)
    if given.resolved:
        resolved()
