"""The simulated network: hosts and links, with delays, partitions, and machines that lose power.

Streams behave like TCP: bytes arrive in order or the stream breaks. So a lost packet is a delay, and a partition is
silence. After a partition, the bytes in flight arrive with the next retransmission of the kernel; the intervals between
retransmissions grow. The connecting end detects an unreachable peer after UNACKNOWLEDGED_SECONDS; the accepting end
does not.
A host has one address, its name. The sockets of a process belong to its `Attachment`: when the process is killed, the
kernel closes them; when the machine loses power, peers get nothing.
"""

import asyncio
import errno
import random
import struct
import zlib
from collections.abc import Callable
from math import log

from millstream.node.server.network import CONNECT_TIMEOUT_SECONDS
from millstream.simulator.loop import Scheduler, SimulatedLoop
from millstream.simulator.transport import SimulatedListening, SimulatedTransport

_WINDOWS = (4 << 10, 64 << 10, 256 << 10)
_FIRST_EPHEMERAL_PORT = 40_000
_MOMENT = struct.Struct(">d")


class Link:
    """One direction between two hosts."""

    def __init__(self, source: str, target: str, seed: str) -> None:
        self.source = source
        self.target = target
        self.randomness = random.Random(f"{seed}/link/{source}>{target}")
        self.base_seconds = 30e-6 if source == target else self.randomness.uniform(0.0002, 0.002)
        self.bytes_per_second = 100e6
        self.slowness = 1.0
        """Factor of a delay fault."""
        self.blocked_since: float | None = None
        self._busy_until = 0.0
        self.stalled: list[Callable[[], None]] = []
        """Callbacks for when the link works again."""

    def delay(self, now: float, size: int) -> float:
        """The delay of bytes sent now. Later bytes wait for earlier ones."""
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
    """All hosts and links."""

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
        """Checksum of all delivered bytes with their times. Equal fingerprints mean equal runs."""
        self.is_encrypted = False
        """With TLS the bytes are random; then only their number counts in the fingerprint."""
        self.delivered_bytes = 0

    # Hosts and links

    def attach(self, host: str, loop: SimulatedLoop) -> "Attachment":
        """The network interface for a process on this host. Turns the machine on."""
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
        """Blocks all bytes from one host to the other until `heal`."""
        assert source != target
        link = self.link(source, target)
        if not link.blocked:
            link.blocked_since = self.scheduler.now
            self._check_reachability({source, target})

    def heal(self, source: str, target: str) -> None:
        self.link(source, target).heal()

    def streams(self) -> "list[SimulatedTransport]":
        """The connecting end of each stream."""
        return [
            transport
            for attachment in self.attachments.values()
            for transport in attachment.transports
            if transport.is_client
        ]

    def power_off(self, host: str) -> None:
        self._powered[host] = False
        self._check_reachability({host})

    def _check_reachability(self, hosts: set[str]) -> None:
        """Streams between these hosts check after a while whether the peer is reachable."""
        for stream in self.streams():
            if hosts <= {stream.host, stream.peer_host}:
                stream.check_reachability()

    # For transports

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    def window(self) -> int:
        return self._randomness.choice(_WINDOWS)

    def note_delivery(self, payload: bytes) -> None:
        self.delivered_bytes += len(payload)
        content = b"%d" % len(payload) if self.is_encrypted else payload
        self.fingerprint = zlib.crc32(_MOMENT.pack(self.scheduler.now) + content, self.fingerprint)

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
        if host not in ("", "0.0.0.0", "::", self.host):  # nosec B104: compared, not bound
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self.host}")
        listening = SimulatedListening(self, port or self.fabric.next_port(), backlog)
        self.fabric.take_address(listening)
        self._listening[listening] = None
        return listening

    async def connect(self, host: str, port: int) -> "SimulatedTransport":
        self.check_alive()
        established: asyncio.Future[SimulatedTransport] = self.loop.create_future()
        if not self.fabric.knows(host):
            raise OSError(errno.EHOSTUNREACH, f"unknown host {host}")
        handshake = _Handshake(self, host, port, established)
        handshake.start()
        self.fabric.scheduler.after(CONNECT_TIMEOUT_SECONDS, handshake.give_up)
        try:
            return await established
        except asyncio.CancelledError:
            if established.done() and not established.cancelled() and established.exception() is None:
                established.result().close()
            raise

    def check_alive(self) -> None:
        if not self.alive:
            raise OSError(errno.EIO, "this process has ended")

    def forget_listening(self, listening: "SimulatedListening") -> None:
        self._listening.pop(listening, None)

    def end(self, *, power_lost: bool) -> None:
        """The process ends. The kernel closes its streams, unless the machine lost power."""
        self.alive = False
        for listening in list(self._listening):
            listening.end(power_lost=power_lost)
        for transport in list(self.transports):
            transport.end_process(power_lost=power_lost)
        self.transports.clear()
        if power_lost:
            self.fabric.power_off(self.host)

    def __repr__(self) -> str:
        return f"<network of {self.host}>"


class _Handshake:
    """One attempt to connect. Lost packets are not retransmitted within the timeout."""

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

    def start(self) -> None:
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
        scheduler.after(self._back.delay(scheduler.now, 60), self._complete, listening)

    def _complete(self, listening: "SimulatedListening | None") -> None:
        if self._established.done() or not self._client.alive:
            return
        if listening is None or not listening.open or listening.is_full:
            self._established.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "connection refused"))
            return
        client = SimulatedTransport(self._client, self._host, self._port, is_client=True)
        server = SimulatedTransport(listening.attachment, self._client.host, self._fabric.next_port(), is_client=False)
        client.join(server)
        server.join(client)
        client.check_reachability()
        scheduler = self._fabric.scheduler
        scheduler.after(self._there.delay(scheduler.now, 60), listening.arrive, server)
        self._established.set_result(client)
