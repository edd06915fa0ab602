"""A listener with a service made for the test, on each of the two event loops."""

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
import uvloop

from millstream.node.server.listener import ConnectionLimits, Listener, ListenerTls
from millstream.node.server.network import SocketListening, SocketNetwork, SocketTransport
from millstream.node.server.service import FilePart, Parts, Peer, Pending, ReadPause, Refused
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
NUMBER = struct.Struct(">q")


def frame(text: bytes) -> bytes:
    """A frame of at least eight bytes, the least there is; the service sees the text without the filling."""
    padded = text.ljust(8, b"\x00")
    return struct.pack(">i", len(padded)) + padded


@dataclass
class Words:
    """A service that does what a frame's first word says."""

    seen: list[bytes] = field(default_factory=list)
    waiting: dict[bytes, Pending] = field(default_factory=dict)
    pauses: dict[bytes, ReadPause] = field(default_factory=dict)
    abandoned: list[bytes] = field(default_factory=list)
    file: object = None
    file_length: int = 0

    def handle(self, buffer: bytearray, start: int, end: int, peer: Peer) -> Parts | Pending | None:
        text = bytes(buffer[start:end]).rstrip(b"\x00")
        self.seen.append(text)
        word, _, rest = text.partition(b" ")
        match word:
            case b"say":
                return (struct.pack(">i", len(rest)) + rest,)
            case b"size":  # how many bytes arrived, for frames too large to look at
                return (struct.pack(">i", 8) + NUMBER.pack(end - start),)
            case b"large":
                return (struct.pack(">i", int(rest)) + bytes(int(rest)),)
            case b"none":
                return None
            case b"wait":
                pending = Pending()
                pending.on_abandon = lambda: self.abandoned.append(rest)
                self.waiting[rest] = pending
                return pending
            case b"file":
                return (struct.pack(">i", self.file_length), cast(FilePart, FileRange(self.file, 0, self.file_length)))
            case b"pause":
                pending = Pending()
                pending.read_pause = self.pauses[rest] = ReadPause()
                pending.resolve((struct.pack(">i", len(rest)) + rest,))
                return pending
            case _:
                raise Refused("what?")


@dataclass
class FileRange:
    file: object
    position: int
    length: int


class RecordingNetwork(SocketNetwork):
    """A network that knows whether the connections which it accepted are closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._accepted: list[SocketTransport] = []

    def listen(self, host: str, port: int, **options: int) -> SocketListening:
        listening = super().listen(host, port, **options)
        accept = listening.accept

        def recorded() -> SocketTransport:
            transport = cast(SocketTransport, accept())
            self._accepted.append(transport)
            return transport

        listening.accept = recorded  # type: ignore[method-assign]
        return listening

    def is_closed(self) -> bool:
        return all(each._socket.fileno() < 0 for each in self._accepted)


class RunningListener:
    """A listener whose loop runs in a thread, so that tests can be plain blocking code."""

    def __init__(
        self,
        limits: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
        tls: Callable[[asyncio.AbstractEventLoop], ListenerTls] | None = None,
    ) -> None:
        self.service = Words()
        self.loop = loop
        protocol, secured = ("PLAINTEXT", None) if tls is None else ("SSL", tls(loop))
        self.network = RecordingNetwork(loop)
        self.listener = Listener("TEST", limits, self.network, loop, security_protocol=protocol, tls=secured)
        host, port = self.listener.bind("127.0.0.1", 0)
        self.address = f"{host}:{port}"
        self.listener.serve(self.service)
        self._thread = threading.Thread(target=loop.run_forever)
        self._thread.start()
        self._wires: list[Wire] = []

    def connect(self) -> Wire:
        wire = Wire(self.address)
        self._wires.append(wire)
        return wire

    def on_loop(self, function: Callable[[], object]) -> object:
        """Runs something where the listener runs, and waits for it."""

        async def call() -> object:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(TIMEOUT_SECONDS)

    def respond(self, name: bytes, text: bytes) -> None:
        self.until(lambda: name in self.service.waiting)
        self.on_loop(lambda: self.service.waiting.pop(name).resolve((struct.pack(">i", len(text)) + text,)))

    def until(self, condition: Callable[[], object]) -> None:
        """Waits for something the loop brings about."""
        done = threading.Event()
        for _ in range(3000):
            if self.on_loop(condition):
                return
            done.wait(0.01)
        raise AssertionError("it did not come about in 30 s")

    @property
    def connections(self) -> int:
        return int(self.on_loop(lambda: len(self.listener.connections)))  # type: ignore[call-overload]

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self.on_loop(self.listener.close)
        self.until(self.network.is_closed)  # a TLS connection with unsent bytes takes a moment
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


Start = Callable[..., RunningListener]


@pytest.fixture(params=LOOPS)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts listeners with given limits."""
    running: list[RunningListener] = []

    def make(
        tls: Callable[[asyncio.AbstractEventLoop], ListenerTls] | None = None, **limits: object
    ) -> RunningListener:
        made = RunningListener(ConnectionLimits(**limits), LOOPS[request.param](), tls)  # type: ignore[arg-type]
        running.append(made)
        return made

    yield make
    for each in running:
        each.close()
