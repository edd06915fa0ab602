"""The simulated network: byte streams between hosts, with delays, partitions, breaks, and machines that vanish.

Streams behave as TCP shows them to a program: bytes arrive in order or the stream breaks. So the loss of a packet is a
delay, a partition is silence, and a message that is "lost" is one whose stream broke, before it was delivered or after.
After a partition, bytes that were under way come with the kernel's next repetition, and those are further and further
apart. The end that connected notices after UNACKNOWLEDGED_S that the other cannot be reached; the other does not.
A host has one address, its name. What one process opens goes with it (`Attachment`): when it is killed the kernel says
goodbye to its peers; when the machine loses power, nobody does.
"""

import asyncio
import errno
import random
import struct
import zlib
from collections import deque
from collections.abc import Callable
from math import log

from millstream.node.server.network import CONNECT_TIMEOUT_S, UNACKNOWLEDGED_S
from millstream.node.server.service import FilePart
from millstream.simulator.loop import SimulatedLoop
from millstream.simulator.scheduler import Scheduler

_WINDOWS = (4 << 10, 64 << 10, 256 << 10)
_SPLIT_CHANCE = 0.05
_FIRST_REPETITION_SECONDS = 0.2
_LONGEST_REPETITION_SECONDS = 120.0
_KEEP_ALIVE_SECONDS = 1.0
_FIRST_EPHEMERAL_PORT = 40_000
_MOMENT = struct.Struct(">d")


class _Mark:
    """What travels in a stream besides bytes."""


_END, _RESET = _Mark(), _Mark()


class Link:
    """One direction between two hosts."""

    def __init__(self, source: str, target: str, seed: str) -> None:
        self.source = source
        self.target = target
        self.randomness = random.Random(f"{seed}/link/{source}>{target}")
        self.base_seconds = 30e-6 if source == target else self.randomness.uniform(0.0002, 0.002)
        self.bytes_per_second = 100e6
        self.slowness = 1.0
        """By how much a delay spike makes it slower."""
        self.blocked_since: float | None = None
        self._busy_until = 0.0
        self.stalled: list[Callable[[], None]] = []
        """What waits for the link to be whole again."""

    def delay(self, now: float, size: int) -> float:
        """How long bytes sent now are under way; later ones wait for earlier ones."""
        begin = self._busy_until if self._busy_until > now else now
        self._busy_until = begin + size / self.bytes_per_second
        jitter = -log(1.0 - self.randomness.random()) / 2.0  # exponential, half a time unit on average
        return self._busy_until - now + self.base_seconds * self.slowness * (1.0 + (jitter if jitter < 10.0 else 10.0))

    @property
    def blocked(self) -> bool:
        return self.blocked_since is not None

    def heal(self) -> None:
        self.blocked_since = None
        stalled, self.stalled = self.stalled, []
        for resume in stalled:
            resume()


class Fabric:
    """All hosts, and what lies between them."""

    def __init__(self, scheduler: Scheduler, seed: str) -> None:
        self.scheduler = scheduler
        self._seed = seed
        self._randomness = random.Random(f"{seed}/network")
        self._links: dict[tuple[str, str], Link] = {}
        self._powered: dict[str, bool] = {}
        self._listening: dict[tuple[str, int], SimulatedListening] = {}
        self.attachments: dict[str, Attachment] = {}
        self._ports = _FIRST_EPHEMERAL_PORT
        self.fingerprint = 0
        """Of every byte delivered, with its time: two runs with one fingerprint were the same run."""
        self.delivered_bytes = 0

    # Hosts and links

    def attach(self, host: str, loop: SimulatedLoop) -> "Attachment":
        """The network as a process on this host uses it. Switches the machine on."""
        self._powered[host] = True
        attachment = self.attachments[host] = Attachment(self, host, loop)
        return attachment

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[(source, target)] = Link(source, target, self._seed)
        return found

    def links(self) -> list[Link]:
        return list(self._links.values())

    def is_powered(self, host: str) -> bool:
        return self._powered.get(host, False)

    def block(self, source: str, target: str) -> None:
        """Nothing gets from one host to the other until `heal`."""
        assert source != target
        link = self.link(source, target)
        if not link.blocked:
            link.blocked_since = self.scheduler.now
            self._let_go({source, target})

    def heal(self, source: str, target: str) -> None:
        self.link(source, target).heal()

    def streams(self) -> "list[SimulatedTransport]":
        """One end of each stream, the one that connected."""
        return [
            transport
            for attachment in self.attachments.values()
            for transport in attachment.transports
            if transport.is_client
        ]

    def power_off(self, host: str) -> None:
        self._powered[host] = False
        self._let_go({host})

    def _let_go(self, hosts: set[str]) -> None:
        """Those who connected to, from or between these hosts may find after a while that no host can be reached."""
        for stream in self.streams():
            if hosts <= {stream.host, stream.peer_host}:
                stream.watch_reach()

    # For transports

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    def window(self) -> int:
        return self._randomness.choice(_WINDOWS)

    def note_delivery(self, payload: bytes) -> None:
        self.delivered_bytes += len(payload)
        self.fingerprint = zlib.crc32(_MOMENT.pack(self.scheduler.now) + payload, self.fingerprint)

    def take_address(self, listening: "SimulatedListening") -> None:
        address = (listening.host, listening.port)
        if address in self._listening:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self._listening[address] = listening

    def give_back_address(self, listening: "SimulatedListening") -> None:
        if self._listening.get((listening.host, listening.port)) is listening:
            del self._listening[(listening.host, listening.port)]

    def listener_at(self, host: str, port: int) -> "SimulatedListening | None":
        return self._listening.get((host, port))

    def knows(self, host: str) -> bool:
        return host in self._powered


class Attachment:
    """`Network` for one process on one host."""

    def __init__(self, fabric: Fabric, host: str, loop: SimulatedLoop) -> None:
        self.fabric = fabric
        self.host = host
        self.loop = loop
        self.alive = True
        self.transports: dict[SimulatedTransport, None] = {}
        self._listening: dict[SimulatedListening, None] = {}

    def listen(
        self, host: str, port: int, *, backlog: int = 1024, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1
    ) -> "SimulatedListening":
        self.check_alive()
        if host not in ("", "0.0.0.0", "::", self.host):
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self.host}")
        listening = SimulatedListening(self, port or self.fabric.next_port(), backlog)
        self.fabric.take_address(listening)
        self._listening[listening] = None
        return listening

    async def connect(self, host: str, port: int) -> "SimulatedTransport":
        self.check_alive()
        established: asyncio.Future[SimulatedTransport] = self.loop.create_future()
        if not self.fabric.knows(host):
            raise OSError(errno.EHOSTUNREACH, f"there is no host {host}")
        handshake = _Handshake(self, host, port, established)
        handshake.knock()
        self.fabric.scheduler.after(CONNECT_TIMEOUT_S, handshake.give_up)
        try:
            return await established
        except asyncio.CancelledError:
            if established.done() and not established.cancelled() and established.exception() is None:
                established.result().close()
            raise

    def check_alive(self) -> None:
        if not self.alive:
            raise OSError(errno.EIO, "this process is gone")

    def forget_listening(self, listening: "SimulatedListening") -> None:
        self._listening.pop(listening, None)

    def end(self, *, power_lost: bool) -> None:
        """The process dies. Its kernel ends its streams, unless the machine died with it."""
        self.alive = False
        for listening in list(self._listening):
            listening.end(power_lost=power_lost)
        for transport in list(self.transports):
            transport.orphan(power_lost=power_lost)
        self.transports.clear()
        if power_lost:
            self.fabric.power_off(self.host)

    def __repr__(self) -> str:
        return f"<network of {self.host}>"


class _Handshake:
    """One attempt to connect. What is lost is not repeated in time."""

    def __init__(
        self, client: Attachment, host: str, port: int, established: "asyncio.Future[SimulatedTransport]"
    ) -> None:
        self._client = client
        self._fabric = client.fabric
        self._host = host
        self._port = port
        self._established = established
        self._there = self._fabric.link(client.host, host)
        self._back = self._fabric.link(host, client.host)

    def knock(self) -> None:
        if self._established.done() or not self._client.alive:
            return
        if self._there.blocked or not self._fabric.is_powered(self._host):
            return
        scheduler = self._fabric.scheduler
        scheduler.after(self._there.delay(scheduler.now, 60), self._arrive)

    def give_up(self) -> None:
        if not self._established.done() and self._client.alive:
            self._established.set_exception(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    def _arrive(self) -> None:
        if not self._fabric.is_powered(self._host) or self._back.blocked:
            return
        scheduler = self._fabric.scheduler
        listening = self._fabric.listener_at(self._host, self._port)
        scheduler.after(self._back.delay(scheduler.now, 60), self._answered, listening)

    def _answered(self, listening: "SimulatedListening | None") -> None:
        if self._established.done() or not self._client.alive:
            return
        if listening is None or not listening.open or listening.is_full:
            self._established.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "connection refused"))
            return
        client = SimulatedTransport(self._client, self._host, self._port, is_client=True)
        server = SimulatedTransport(listening.attachment, self._client.host, self._fabric.next_port(), is_client=False)
        client.join(server)
        server.join(client)
        client.watch_reach()
        scheduler = self._fabric.scheduler
        scheduler.after(self._there.delay(scheduler.now, 60), listening.arrive, server)
        self._established.set_result(client)


class SimulatedListening:
    def __init__(self, attachment: Attachment, port: int, backlog: int) -> None:
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
        self._tell()

    def watch(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback
        self._tell()

    def _tell(self) -> None:
        if self._callback is not None and self._waiting and not self._is_due:
            self._is_due = True
            self.attachment.loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        if self._callback is not None and self._waiting:
            self._callback()
            self._tell()

    def accept(self) -> "SimulatedTransport":
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "nobody waits")
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

    def __init__(self, attachment: Attachment, peer_host: str, peer_port: int, *, is_client: bool) -> None:
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
        """The process that had it is gone."""
        self._closed = False
        self._is_cut = False
        """Something between the two has broken the stream; both will hear of it."""
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
        """The kernel has dropped the stream without a word to the other end."""
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
        raise BlockingIOError(errno.EAGAIN, "nothing has arrived")

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._check_open()
        if self._broken is not None:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        count = min(len(data), self._window - self._unacknowledged)
        if count <= 0 and len(data):
            raise BlockingIOError(errno.EAGAIN, "the peer takes no more")
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
            raise BlockingIOError(errno.EAGAIN, "the peer takes no more")
        data = part.file.read_at(part.position + sent, min(part.length - sent, room))
        return self.send(data) if data else 0

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        self._tell_readable()

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        self._tell_writable()

    def close(self) -> None:
        if self._closed or self._orphaned:
            return
        self._end_locally(_RESET if self._arrived else _END)

    # As the network and the faults use it

    def reset(self) -> None:
        """Breaks the stream for both, as a router that forgot it would: what is under way is lost from some byte on."""
        for end in (self, self.peer):
            if not end._is_cut:
                end.lose_tail()
                end._post(_RESET)
                end._is_cut = True

    def watch_reach(self) -> None:
        """Something between the two may be broken: looks in a while whether it still is."""
        if self._since_when_unreachable() is not None:
            uncertainty = self._link.randomness.uniform(0.0, _KEEP_ALIVE_SECONDS)
            self._fabric.scheduler.after(UNACKNOWLEDGED_S + uncertainty, self._give_up)

    def _since_when_unreachable(self) -> float | None:
        moments = [link.blocked_since for link in (self._link, self._back) if link.blocked_since is not None]
        if not self._fabric.is_powered(self.peer_host):
            return 0.0
        return min(moments, default=None)

    def _give_up(self) -> None:
        since = self._since_when_unreachable()
        if self._closed or self._orphaned or self._broken is not None:
            return
        if since is not None and self._fabric.scheduler.now - since >= UNACKNOWLEDGED_S:
            self._has_given_up = True
            self._queue.clear()
            self._broken = TimeoutError(errno.ETIMEDOUT, "connection timed out")
            self._tell_writable()
            self._tell_readable()

    def lose_tail(self) -> None:
        """Keeps a random part of what is under way."""
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

    def orphan(self, *, power_lost: bool) -> None:
        """The process is gone. Without power nothing more leaves; otherwise what is in the kernel's buffers does."""
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
            # Sent again and again until somebody is there to say that the stream is unknown.
            self._is_carrying = True
            self._fabric.scheduler.after(self._link.randomness.uniform(0.2, 1.0), self._deliver)
            return
        _, item = self._queue.popleft()
        self.peer.take(item)
        self._carry()

    def _repeat(self) -> None:
        """The link is whole again: the kernel notices when it next repeats what was lost, after 0.2, 0.4, 0.8, … s."""
        now = self._fabric.scheduler.now
        due, pause = self._stalled_since, _FIRST_REPETITION_SECONDS
        while due < now:
            due += pause * self._link.randomness.uniform(0.9, 1.1)
            pause = min(2 * pause, _LONGEST_REPETITION_SECONDS)
        self._fabric.scheduler.at(due, self._deliver)

    def take(self, item: bytes | _Mark) -> None:
        """Something has arrived."""
        if self._closed or self._orphaned:
            if item is not _RESET and not (item is _END and self._closed):
                self._answer_reset()
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
            self._tell_writable()
        self._tell_readable()

    def _answer_reset(self) -> None:
        """Bytes for a stream that this machine knows nothing of (any more)."""
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
            self._tell_writable()

    # Readiness: said as long as it lasts, like select does

    def _tell_readable(self) -> None:
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
            self._tell_readable()

    def _tell_writable(self) -> None:
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
            self._tell_writable()
