"""Many frames over one connection, pipelined; knows from the responses how far the broker came.

Each frame carries its place as correlation id, and a harmless request follows the last one. When the broker closes the
connection, the frame after the last one with a response is taken to be the reason. The rest goes over a new connection.
So a frame is counted when the broker has dealt with it, not when it left.
"""

import socket
import struct
import time

from tests.waiting import TIMEOUT_SECONDS
from tests.wire import framed, request

_SIZE = struct.Struct(">i")
_PLACE = 8
"""Where the correlation id of a frame is."""
_LAST = request("api_versions", 0, {}, 0)
_CLOSE_AT_ONCE = struct.pack("ii", 1, 0)
_READ_BYTES = 1 << 18


def reset(sock: socket.socket) -> None:
    """Ends a connection with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_AT_ONCE)
    sock.close()


def connect(address: tuple[str, int], source: str) -> socket.socket:
    sock = socket.socket()
    try:
        # Many source addresses, so that closed connections do not use up the ports of one.
        sock.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        sock.bind((source, 0))
        sock.settimeout(TIMEOUT_SECONDS)
        sock.connect(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class Volley:
    def __init__(self, frames: list[bytearray], address: tuple[str, int], source: str) -> None:
        self.frames = frames
        self.done = 0
        """How many frames the broker has dealt with."""
        self.connections = 0
        self.closed_by_broker = 0
        self._address = address
        self._source = source
        self._base = 0
        self.open()

    def open(self) -> None:
        """Sends what is left over a new connection."""
        self.socket = connect(self._address, self._source)
        self.connections += 1
        self._base = self.done
        for place, frame in enumerate(self.frames[self.done :], self.done):
            _SIZE.pack_into(frame, _PLACE, place)
        last = bytearray(framed(_LAST))
        _SIZE.pack_into(last, _PLACE, len(self.frames))
        self._unsent = memoryview(b"".join((*self.frames[self.done :], last)))
        self._received = bytearray()
        self._skip = 0
        self.last_progress = time.monotonic()

    @property
    def wants_to_send(self) -> bool:
        return bool(self._unsent)

    @property
    def finished(self) -> bool:
        return self.done >= len(self.frames)

    def send(self) -> None:
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = memoryview(b"")  # reading will tell which responses came before

    def receive(self) -> bool:
        """Takes responses; False when the volley is over, or must go on over a new connection."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.socket.close()
            self.closed_by_broker += 1
            self.done += 1  # the frame after the last response
            return False
        self.last_progress = time.monotonic()
        self._take(data)
        return self.done < len(self.frames)

    def give_up(self) -> None:
        """The broker waits for something, as it was asked to: that frame is dealt with."""
        reset(self.socket)
        self.done += 1

    def _take(self, data: bytes) -> None:
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        received = self._received
        received += data[self._skip :] if self._skip else data
        self._skip = 0
        position, end = 0, len(received)
        while end - position >= 8:
            size, place = struct.unpack_from(">ii", received, position)
            if self.done <= place <= len(self.frames):
                self.done = min(place + 1, len(self.frames))
            position += 4 + size
        if position > end:
            self._skip = position - end
            received.clear()
        else:
            del received[:position]
