"""The network a node lives in: where it listens, and how it reaches others. The simulator has one of its own.

A byte stream as a connection uses it: never blocks, says when it can go on. The simulator has one of its own.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Protocol

from millstream.node.server.service import FilePart


class Transport(Protocol):
    """BlockingIOError means "not now"; any other OSError, that the stream is broken."""

    peer_host: str
    peer_port: int

    def receive_into(self, buffer: memoryview) -> int: ...

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Sends what fits and says how much that was."""
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
        self._socket = sock
        self._descriptor = sock.fileno()
        self._loop = loop
        self._reading = self._writing = False
        name = sock.getpeername()
        self.peer_host, self.peer_port = str(name[0]), int(name[1])
        # Bound methods of the socket itself: nothing stands between the connection and the system call.
        self.receive_into: Callable[[memoryview], int] = sock.recv_into
        # Without MSG_MORE: with it, a reader whose window is smaller than a segment (Java's 64 KB) waits for a timer.
        self.send: Callable[[bytes | bytearray | memoryview], int] = sock.send

    def send_file(self, part: FilePart, sent: int) -> int:
        position, length = part.position + sent, part.length - sent
        try:
            return os.sendfile(self._descriptor, part.file.fileno(), position, length)
        except OSError as error:
            if error.errno == errno.EIO:
                # Of the file, since sockets have no such error. Reading it tells storage, which notes the directory.
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


CONNECT_TIMEOUT_S = 1.0
"""How long one attempt to connect may take. The kernel repeats a lost first packet after 1, 2, 4, … s; after a long cut
a new attempt gets through sooner than the next repetition of an old one."""
UNACKNOWLEDGED_S = 3.0
"""How long bytes may stay unacknowledged by the other kernel before a connection to another node counts as broken.
Left to itself TCP repeats them for a quarter of an hour, less and less often: after a long cut, minutes apart."""
_KEEP_ALIVE_S = 1
"""After how long without bytes the other kernel is asked whether it still has the connection; and how often."""


class Listening(Protocol):
    """An address that was taken; who connects waits until `accept` is called."""

    host: str
    port: int
    """As bound: the system's choice where 0 was asked for."""

    def watch(self, callback: Callable[[], None] | None) -> None:
        """Calls back when somebody waits to be accepted; None ends it."""
        ...

    def accept(self) -> Transport:
        """The next one; BlockingIOError when nobody waits."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    def listen(
        self, host: str, port: int, *, backlog: int = 1024, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1
    ) -> Listening:
        """Takes the address, or OSError."""
        ...

    async def connect(self, host: str, port: int) -> Transport:
        """A stream to that address. ConnectionRefusedError says that nobody listens there; other OSErrors, that it
        cannot be reached, or not within CONNECT_TIMEOUT_S. A stream whose other end cannot be reached breaks after
        about UNACKNOWLEDGED_S, also when nothing is being sent."""
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
            except OSError:  # gone before we looked
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
        # Set before listening: accepted sockets inherit them. Unset, the system tunes them by itself, and better.
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
        except (ValueError, OverflowError) as error:  # not a name that could be looked up, not a port
            raise OSError(f"{host!r} with port {port} is not an address: {error}") from None
        failure: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
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
    """Linux has all of these; where one is missing, a cut is noticed later."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    unacknowledged_ms = int(UNACKNOWLEDGED_S * 1000)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_ALIVE_S),
        ("TCP_KEEPINTVL", _KEEP_ALIVE_S),
        ("TCP_KEEPCNT", int(UNACKNOWLEDGED_S / _KEEP_ALIVE_S)),
        ("TCP_USER_TIMEOUT", unacknowledged_ms),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
