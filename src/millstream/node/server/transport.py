"""A byte stream as a connection uses it: never blocks, says when it can go on. The simulator has one of its own."""

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
