"""What the network room needs of the broker: someone who answers frames.

Stands where a service will be while a node starts: requests are kept, within bounds, and answered when it is there.

So a node can take connections early, and answer probes, without telling clients anything too soon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millstream.formats.model.ordered_set import OrderedSet


class OpenFile(Protocol):
    def fileno(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes: ...


class FilePart(Protocol):
    """A stretch of a file to be sent."""

    file: OpenFile
    position: int
    length: int


Part = bytes | bytearray | FilePart
Parts = Sequence[Part]


@dataclass(slots=True)
class Peer:
    """Who is at the other end of a connection, as far as is known."""

    host: str
    port: int
    listener: str
    client_id: str = ""
    client_software: str = "unknown"
    closed: bool = False
    on_close: OrderedSet[Callable[[], None]] = field(default_factory=OrderedSet)
    """Called once when the connection ends: for what must not outlive it."""

    def close(self) -> None:
        self.closed = True
        callbacks, self.on_close = self.on_close, OrderedSet()
        for callback in callbacks:
            callback()


class Turn:
    """The turn of a request that must wait before work on it begins. Its connection is not read on until that is over,
    so that a connection waits for one turn at a time."""

    __slots__ = ("_on_over", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._on_over: Callable[[], None] | None = None

    def when_over(self, callback: Callable[[], None]) -> None:
        self._on_over = callback

    def turn_is_over(self) -> None:
        self.is_over = True
        if self._on_over is not None:
            self._on_over()


class Pending:
    """A response that will come later; the connection keeps its place in the order of answers."""

    __slots__ = (
        "_on_resolved",
        "abandoned",
        "failed",
        "held_bytes",
        "is_last",
        "on_abandon",
        "parts",
        "resolved",
        "turn",
    )

    def __init__(self) -> None:
        self.resolved = False
        self.abandoned = False
        self.failed = False
        self.is_last = False
        """Whether the connection ends when this answer is sent."""
        self.held_bytes = 0
        """What the connection counts for an answer that is ready and has to wait for its turn."""
        self.parts: Parts | None = None
        self.turn: Turn | None = None
        """Until it is over, nothing more is read of the connection."""
        self.on_abandon: Callable[[], None] | None = None
        self._on_resolved: Callable[[], None] | None = None

    def resolve(self, parts: Parts | None) -> None:
        """Gives the answer; None where the request asked for no answer."""
        assert not self.resolved, "a request is answered once"
        self.resolved = True
        self.parts = parts
        self.on_abandon = None
        if self._on_resolved is not None and not self.abandoned:
            self._on_resolved()

    def fail(self) -> None:
        """No answer can be given; the connection ends."""
        self.failed = True
        self.resolve(None)

    def when_resolved(self, callback: Callable[[], None]) -> None:
        self._on_resolved = callback

    def abandon(self) -> None:
        """The connection is gone: nobody waits any more."""
        self.abandoned = True
        if self.on_abandon is not None:
            self.on_abandon()
            self.on_abandon = None


class Refused(Exception):
    """The peer broke the protocol; its connection is closed, and the reason goes to the log."""


class Service(Protocol):
    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> "Parts | Pending | None":
        """Answers the request in buffer[start:end], now or later. The buffer is reused as soon as this returns."""
        ...


_MOST = 1024
_LARGEST_BYTES = 64 << 10
"""Who comes to a node that starts has only questions; data is sent to those that have answered some."""


class HeldRequests:
    def __init__(self) -> None:
        self._held: list[tuple[bytearray, Peer, Pending]] = []

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> Pending:
        if end - start > _LARGEST_BYTES or len(self._held) >= _MOST:
            raise Refused("the node is starting, and too much waits for it: try again")
        answer = Pending()
        self._held.append((buffer[start:end], peer, answer))
        return answer

    def give_to(self, service: Service) -> None:
        """Has everything answered that still wants to be."""
        held, self._held = self._held, []
        for frame, peer, answer in held:
            if answer.abandoned:
                continue
            try:
                _pass_on(service.handle(frame, 0, len(frame), peer), answer)
            except Refused:
                answer.fail()


def _pass_on(given: "Parts | Pending | None", answer: Pending) -> None:
    if not isinstance(given, Pending):
        answer.resolve(given)
        return

    def resolved() -> None:
        if given.failed:
            answer.fail()
        else:
            answer.resolve(given.parts)

    answer.on_abandon = given.abandon
    given.when_resolved(resolved)
    if given.resolved:
        resolved()
