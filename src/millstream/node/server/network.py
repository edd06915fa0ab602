"""The network of a node: how it listens and connects, and byte streams that never block. The simulator has its own."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Protocol

from millstream.common.pacing import leave_pacing_out_within_machine
from millstream.node.server.service import FilePart


class Transport(Protocol):
    """A byte stream. BlockingIOError means "not now"; any other OSError means that the stream is broken."""

    peer_host: str
    peer_port: int

    def receive_into(self, buffer: memoryview) -> int: ...

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Sends as much as fits; returns the number of bytes."""
        ...

    def send_file(self, part: FilePart, sent: int) -> int: ...

    def watch_readable(self, callback: Callable[[], None] | None) -> None: ...

    def watch_writable(self, callback: Callable[[], None] | None) -> None: ...

    def close(self) -> None: ...


class SocketTransport:
    """A TCP socket on the event loop, read and written directly: no stream layer, no copies."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leave_pacing_out_within_machine(sock)
        self._socket = sock
        self._descriptor = sock.fileno()
        self._loop = loop
        self._reading = self._writing = False
        name = sock.getpeername()
        self.peer_host, self.peer_port = str(name[0]), int(name[1])
        # Bound methods of the socket: no Python frame between the connection and the system call.
        self.receive_into: Callable[[memoryview], int] = sock.recv_into
        # Without MSG_MORE: with it, a reader whose window is smaller than a segment (Java's 64 KB) waits for a timer.
        self.send: Callable[[bytes | bytearray | memoryview], int] = sock.send

    def send_file(self, part: FilePart, sent: int) -> int:
        position, length = part.position + sent, part.length - sent
        try:
            return os.sendfile(self._descriptor, part.file.fileno(), position, length)
        except OSError as error:
            if error.errno == errno.EIO:
                # From the file: sockets have no such error. A read reports it to storage, which marks the directory.
                part.file.read_at(position, length)
            raise

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_reader(self._descriptor, callback)
            self._reading = True
        elif self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_writer(self._descriptor, callback)
            self._writing = True
        elif self._writing:
            self._loop.remove_writer(self._descriptor)
            self._writing = False

    def close(self) -> None:
        self.watch_readable(None)
        self.watch_writable(None)
        self._socket.close()


CONNECT_TIMEOUT_SECONDS = 1.0
"""Timeout of one attempt to connect. The kernel repeats a lost first packet after 1, 2, 4, … s; after a long partition
a new attempt succeeds sooner than the next repetition of an old one."""
UNACKNOWLEDGED_SECONDS = 3.0
"""A connection to another node is broken when bytes are not acknowledged for this long. By default TCP repeats them for
a quarter of an hour, with growing pauses of up to minutes."""
_KEEP_ALIVE_SECONDS = 1
"""Idle time before a keep-alive probe, and the interval of the probes."""


class Listening(Protocol):
    """A bound address; connections wait until `accept` is called."""

    host: str
    port: int
    """As bound; for port 0 the port that the system chose."""

    def watch(self, callback: Callable[[], None] | None) -> None:
        """Calls back when a connection waits to be accepted; None ends it."""
        ...

    def accept(self) -> Transport:
        """The next connection; BlockingIOError if none waits."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    def listen(
        self, host: str, port: int, *, backlog: int = 1024, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1
    ) -> Listening:
        """Binds the address; OSError if that fails."""
        ...

    async def connect(self, host: str, port: int) -> Transport:
        """A stream to that address. ConnectionRefusedError if no process listens there; another OSError if it cannot be
        reached within CONNECT_TIMEOUT_SECONDS. A stream whose other end cannot be reached breaks after about
        UNACKNOWLEDGED_SECONDS, also when nothing is sent."""
        ...


class SocketListening:
    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sock
        self._loop = loop
        name = sock.getsockname()
        self.host, self.port = str(name[0]), int(name[1])
        self._watching = False

    def watch(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_reader(self._socket.fileno(), callback)
            self._watching = True
        elif self._watching:
            self._loop.remove_reader(self._socket.fileno())
            self._watching = False

    def accept(self) -> Transport:
        while True:
            accepted, _ = self._socket.accept()
            try:
                return SocketTransport(accepted, self._loop)
            except OSError:  # closed already
                accepted.close()

    def close(self) -> None:
        self.watch(None)
        self._socket.close()


class SocketNetwork:
    """TCP on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def listen(
        self, host: str, port: int, *, backlog: int = 1024, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1
    ) -> SocketListening:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Set before listening: accepted sockets inherit them. Unset, the system tunes each connection.
        if receive_buffer_bytes > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if send_buffer_bytes > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        try:
            listening.bind(address)
            listening.listen(backlog)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        return SocketListening(listening, self._loop)

    async def connect(self, host: str, port: int) -> SocketTransport:
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (ValueError, OverflowError) as error:  # an invalid name or port
            raise OSError(f"{host!r} with port {port} is not an address: {error}") from None
        failure: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                    await self._loop.sock_connect(sock, address)
                _break_when_unreachable(sock)
                return SocketTransport(sock, self._loop)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure or OSError(f"{host} has no address")


def _break_when_unreachable(sock: socket.socket) -> None:
    """Linux has all of these options; without one, a partition is noticed later."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    unacknowledged_ms = int(UNACKNOWLEDGED_SECONDS * 1000)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_ALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEP_ALIVE_SECONDS),
        ("TCP_KEEPCNT", int(UNACKNOWLEDGED_SECONDS / _KEEP_ALIVE_SECONDS)),
        ("TCP_USER_TIMEOUT", unacknowledged_ms),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
