"""Simulated TCP connections: listening sockets and both ends of a stream, with windows, resets and retransmissions."""

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.node.server.network import UNACKNOWLEDGED_SECONDS
from millstream.node.server.service import FilePart

if TYPE_CHECKING:
    from millstream.simulator.network import Attachment

_SPLIT_CHANCE = 0.05
_FIRST_REPETITION_SECONDS = 0.2
_LONGEST_REPETITION_SECONDS = 120.0
_KEEP_ALIVE_SECONDS = 1.0


class _Mark:
    """The end or the reset of a stream, in its queue of bytes."""


_END, _RESET = _Mark(), _Mark()


class SimulatedListening:
    def __init__(self, attachment: "Attachment", port: int, backlog: int) -> None:
        self.attachment = attachment
        self.host = attachment.host
        self.port = port
        self.open = True
        self._backlog = backlog
        self._waiting: deque[SimulatedTransport] = deque()
        self._callback: Callable[[], None] | None = None
        self._is_due = False

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._backlog

    def arrive(self, transport: "SimulatedTransport") -> None:
        if not self.open:
            transport.reset()
            return
        self._waiting.append(transport)
        self._notify()

    def watch(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback
        self._notify()

    def _notify(self) -> None:
        if self._callback is not None and self._waiting and not self._is_due:
            self._is_due = True
            self.attachment.loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        if self._callback is not None and self._waiting:
            self._callback()
            self._notify()

    def accept(self) -> "SimulatedTransport":
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no pending connection")
        return self._waiting.popleft()

    def close(self) -> None:
        if self.open:
            self.end(power_lost=False)
            self.attachment.forget_listening(self)

    def end(self, *, power_lost: bool) -> None:
        self.open = False
        self._callback = None
        self.attachment.fabric.give_back_address(self)
        if not power_lost:
            for transport in self._waiting:
                transport.reset()
        self._waiting.clear()


class SimulatedTransport:
    """One end of a stream: `Transport` as connections and channels use it."""

    def __init__(self, attachment: "Attachment", peer_host: str, peer_port: int, *, is_client: bool) -> None:
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.is_client = is_client
        self._attachment = attachment
        self._fabric = attachment.fabric
        self._loop = attachment.loop
        self._link = attachment.fabric.link(attachment.host, peer_host)
        self._back = attachment.fabric.link(peer_host, attachment.host)
        self._peer: SimulatedTransport | None = None
        self._orphaned = False
        """Its process has ended."""
        self._closed = False
        self._is_cut = False
        """The network has reset the stream; both ends will notice."""
        # Incoming
        self._arrived = bytearray()
        self._ended = False
        self._broken: OSError | None = None
        self._on_readable: Callable[[], None] | None = None
        self._is_read_due = False
        # Outgoing
        self._window = attachment.fabric.window()
        self._unacknowledged = 0
        self._queue: deque[tuple[float, bytes | _Mark]] = deque()
        self._last_arrival = 0.0
        self._is_carrying = False
        self._stalled_since = 0.0
        self._has_given_up = False
        """The kernel has dropped the stream without notifying the peer."""
        self._acknowledgement_held = 0
        self._on_writable: Callable[[], None] | None = None
        self._is_write_due = False
        attachment.transports[self] = None

    def join(self, peer: "SimulatedTransport") -> None:
        self._peer = peer

    @property
    def peer(self) -> "SimulatedTransport":
        assert self._peer is not None
        return self._peer

    @property
    def host(self) -> str:
        return self._attachment.host

    # As programs use it

    def receive_into(self, buffer: memoryview) -> int:
        self._check_open()
        arrived = self._arrived
        if arrived:
            count = len(arrived)
            if count <= len(buffer):
                buffer[:count] = arrived
                arrived.clear()
            else:
                count = len(buffer)
                buffer[:] = arrived[:count]
                del arrived[:count]
            self._acknowledge(count)
            return count
        if self._broken is not None:
            raise self._broken
        if self._ended:
            return 0
        raise BlockingIOError(errno.EAGAIN, "no data available")

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._check_open()
        if self._broken is not None:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        count = min(len(data), self._window - self._unacknowledged)
        if count <= 0 and len(data):
            raise BlockingIOError(errno.EAGAIN, "the send window is full")
        payload = bytes(memoryview(data)[:count])
        self._unacknowledged += count
        chance = self._link.randomness.random()
        if chance < _SPLIT_CHANCE and count > 1:
            cut = 1 + int(chance / _SPLIT_CHANCE * (count - 1))
            self._post(payload[:cut])
            self._post(payload[cut:])
        else:
            self._post(payload)
        return count

    def send_file(self, part: FilePart, sent: int) -> int:
        room = self._window - self._unacknowledged
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the send window is full")
        data = part.file.read_at(part.position + sent, min(part.length - sent, room))
        return self.send(data) if data else 0

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        self._notify_readable()

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        self._notify_writable()

    def close(self) -> None:
        if self._closed or self._orphaned:
            return
        self._end_locally(_RESET if self._arrived else _END)

    # As the network and the faults use it

    def reset(self) -> None:
        """Resets the stream for both ends, as a router would: bytes in flight are lost from some byte on."""
        for end in (self, self.peer):
            if not end._is_cut:
                end.lose_tail()
                end._post(_RESET)
                end._is_cut = True

    def check_reachability(self) -> None:
        """If the peer is unreachable now, checks again after the timeout."""
        if self._unreachable_since() is not None:
            uncertainty = self._link.randomness.uniform(0.0, _KEEP_ALIVE_SECONDS)
            self._fabric.scheduler.after(UNACKNOWLEDGED_SECONDS + uncertainty, self._give_up)

    def _unreachable_since(self) -> float | None:
        moments = [link.blocked_since for link in (self._link, self._back) if link.blocked_since is not None]
        if not self._fabric.is_powered(self.peer_host):
            return 0.0
        return min(moments, default=None)

    def _give_up(self) -> None:
        since = self._unreachable_since()
        if self._closed or self._orphaned or self._broken is not None:
            return
        if since is not None and self._fabric.scheduler.now - since >= UNACKNOWLEDGED_SECONDS:
            self._break(TimeoutError(errno.ETIMEDOUT, "connection timed out"))
        elif since is None and self.peer._orphaned:
            # The machine is up again and responds to the keep-alive of a stream that it does not know.
            self._break(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _break(self, error: OSError) -> None:
        self._has_given_up = True
        self._queue.clear()
        self._broken = error
        self._notify_writable()
        self._notify_readable()

    def lose_tail(self) -> None:
        """Keeps a random part of the bytes in flight."""
        randomness = self._link.randomness
        kept: deque[tuple[float, bytes | _Mark]] = deque()
        for arrival, item in self._queue:
            if randomness.random() < 0.5:
                kept.append((arrival, item))
                continue
            if isinstance(item, bytes) and len(item) > 1:
                kept.append((arrival, item[: randomness.randrange(1, len(item))]))
            break
        self._queue = kept

    def end_process(self, *, power_lost: bool) -> None:
        """The process has ended. The kernel still sends its buffers, unless the machine lost power."""
        if power_lost:
            self._queue.clear()
            self._orphaned = True
        elif not self._closed:
            self._end_locally(_RESET if self._arrived else _END)
            self._orphaned = True

    def _end_locally(self, mark: _Mark) -> None:
        self._closed = True
        self._on_readable = self._on_writable = None
        self._arrived.clear()
        self._attachment.transports.pop(self, None)
        if not self._has_given_up:
            self._post(mark)

    def _check_open(self) -> None:
        if self._closed or self._orphaned:
            raise OSError(errno.EBADF, "bad file descriptor")

    # Carrying

    def _post(self, item: bytes | _Mark) -> None:
        now = self._fabric.scheduler.now
        arrival = now + self._link.delay(now, len(item) if isinstance(item, bytes) else 40)
        if arrival > self._last_arrival:
            self._last_arrival = arrival
        self._queue.append((self._last_arrival, item))
        if not self._is_carrying:
            self._carry()

    def _carry(self) -> None:
        if self._queue and not self._is_carrying:
            self._is_carrying = True
            self._fabric.scheduler.at(self._queue[0][0], self._deliver)

    def _deliver(self) -> None:
        self._is_carrying = False
        if not self._queue:
            return
        if self._link.blocked_since is not None:
            self._is_carrying = True
            self._stalled_since = self._fabric.scheduler.now
            self._link.stalled.append(self._repeat)
            return
        if not self._fabric.is_powered(self.peer_host):
            # Retransmitted until the machine is up and resets the unknown stream.
            self._is_carrying = True
            self._fabric.scheduler.after(self._link.randomness.uniform(0.2, 1.0), self._deliver)
            return
        _, item = self._queue.popleft()
        self.peer.take(item)
        self._carry()

    def _repeat(self) -> None:
        """The link works again: the next retransmission succeeds, 0.2, 0.4, 0.8, … s after the loss."""
        now = self._fabric.scheduler.now
        due, pause = self._stalled_since, _FIRST_REPETITION_SECONDS
        while due < now:
            due += pause * self._link.randomness.uniform(0.9, 1.1)
            pause = min(2 * pause, _LONGEST_REPETITION_SECONDS)
        self._fabric.scheduler.at(due, self._deliver)

    def take(self, item: bytes | _Mark) -> None:
        """Takes an item that has arrived."""
        if self._closed or self._orphaned:
            if item is not _RESET and not (item is _END and self._closed):
                self._respond_reset()
            return
        if self._broken is not None:
            return
        if isinstance(item, bytes):
            self._fabric.note_delivery(item)
            self._arrived += item
        elif item is _END:
            self._ended = True
        else:
            self._broken = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            if not self._is_cut:
                self._queue.clear()
            self._notify_writable()
        self._notify_readable()

    def _respond_reset(self) -> None:
        """Responds with a reset to bytes of an unknown stream."""
        self._queue.clear()
        self._post(_RESET)

    def _acknowledge(self, count: int) -> None:
        if self._link.blocked_since is not None:
            if not self._acknowledgement_held:
                self._link.stalled.append(self._acknowledge_held)
            self._acknowledgement_held += count
        else:
            self.peer.acknowledged(count)

    def _acknowledge_held(self) -> None:
        count, self._acknowledgement_held = self._acknowledgement_held, 0
        self.peer.acknowledged(count)

    def acknowledged(self, count: int) -> None:
        self._unacknowledged -= count
        if self._on_writable is not None:
            self._notify_writable()

    # Readiness, level-triggered as with select

    def _notify_readable(self) -> None:
        if self._on_readable is None or self._is_read_due:
            return
        if self._arrived or self._is_readable:
            self._is_read_due = True
            self._loop.call_soon(self._call_readable)

    @property
    def _is_readable(self) -> bool:
        return bool(self._arrived) or self._ended or self._broken is not None

    def _call_readable(self) -> None:
        self._is_read_due = False
        if self._on_readable is not None and (self._arrived or self._is_readable):
            self._on_readable()
            self._notify_readable()

    def _notify_writable(self) -> None:
        if self._on_writable is not None and not self._is_write_due and self._is_writable:
            self._is_write_due = True
            self._loop.call_soon(self._call_writable)

    @property
    def _is_writable(self) -> bool:
        return self._unacknowledged < self._window or self._broken is not None

    def _call_writable(self) -> None:
        self._is_write_due = False
        if self._on_writable is not None and self._is_writable:
            self._on_writable()
            self._notify_writable()
