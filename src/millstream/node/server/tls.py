"""TLS as a transport on top of another transport, for accepted connections and for connections to other nodes.

OpenSSL works on memory (`ssl.SSLObject` with two buffers), so it runs on sockets and in the simulator alike. Promises:
- Readiness callbacks are those of the transport below, plus one when decrypted bytes are left over.
- Buffers are bounded: one read of encrypted bytes, and the encrypted bytes of one `send` or file slice.
- Slices of files above `INLINE_BYTES` are read and encrypted in a thread. Until it is done, nothing else is sent or
  received: an SSL object is for one thread at a time, and the order of bytes is kept.
- Steps of handshakes, which compute signatures, run in threads, a few at a time.
- `close` sends what was accepted by `send`, for a limited time.

Certificates and their checks are in `node/security/certificates.py`; limits on handshakes are in `handshakes.py`.
"""

import asyncio
import contextlib
import datetime
import errno
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from millstream.formats.model.access_control import Principal
from millstream.node.server.network import Listening, Network, Transport
from millstream.node.server.service import FilePart, OpenFile

T = TypeVar("T")

INLINE_BYTES = 128 << 10
"""Bytes that are encrypted at once on the event loop: about 0.1 ms of work."""
SLICE_BYTES = 256 << 10
"""The size of a file slice that is read and encrypted in a thread. A slow client holds this much memory."""
_READ_BYTES = 64 << 10
_READS_AT_ONCE = 8
_LINGER_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
_STEPS_AT_ONCE = 2
"""Steps of handshakes that run in threads at the same time. The other threads are for disk operations."""
_HANDSHAKE_RECORD = 0x16
"""The first byte of every TLS connection."""


class HandshakeError(ConnectionError):
    """The other side responded, but there is no TLS connection with it."""


class NotTlsError(HandshakeError):
    """The first bytes of the peer are not TLS."""

    def __init__(self, begin: bytes) -> None:
        super().__init__("the peer does not use TLS")
        self.begin = begin


class SilentPeerError(ConnectionResetError):
    """The peer connected and closed without a byte, as a probe of the port does."""


class Offload(Protocol):
    def __call__(self, function: Callable[[], T]) -> "asyncio.Future[T]": ...


class TlsRuntime:
    """What the TLS transports of one listener, or of one network, share: event loop, threads, read buffer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offload: Offload) -> None:
        self.loop = loop
        self.offload = offload
        self.scratch = bytearray(_READ_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.steps = asyncio.Semaphore(_STEPS_AT_ONCE)


class ServerTls(Protocol):
    """The certificates of a listener. The context changes when new certificates are taken over."""

    @property
    def context(self) -> ssl.SSLContext: ...

    @property
    def expires_at(self) -> datetime.datetime | None: ...

    def principal(self, certificate: bytes | None) -> Principal:
        """The principal of a client with this certificate (DER); None if it has none."""
        ...


class ClientTls(Protocol):
    """The certificates of connections to other nodes."""

    @property
    def context(self) -> ssl.SSLContext: ...


class TlsTransport:
    """`Transport`, encrypted. It can be used after `handshake`."""

    def __init__(
        self,
        transport: Transport,
        context: ssl.SSLContext,
        runtime: TlsRuntime,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self.peer_host, self.peer_port = transport.peer_host, transport.peer_port
        self._transport = transport
        self._runtime = runtime
        self._is_server = server_side
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._unsent = memoryview(b"")
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._is_read_due = False
        self._is_watching_readable = False
        self._is_watching_writable = False
        self._job: asyncio.Future[int] | None = None
        self._encrypted: int | None = None  # bytes of a file slice that `send_file` has not reported yet
        self._broken: OSError | None = None
        self._is_established = False
        self._has_ended = False  # the peer has said that nothing follows
        self._closed = False
        self._linger: asyncio.TimerHandle | None = None

    # The handshake

    async def handshake(self) -> None:
        """Raises HandshakeError if the peer does not agree, and another OSError if the connection breaks."""
        if self._is_server:
            await self._arrival(is_first=True)
        while True:
            try:
                async with self._runtime.steps:
                    await self._runtime.offload(self._ssl.do_handshake)
            except ssl.SSLWantReadError:
                await self._departure()
                await self._arrival(is_first=False)
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    self._send_pending()  # the alert
                raise HandshakeError(tls_reason(error)) from None
            else:
                break
        self._is_established = True
        await self._departure()

    async def _arrival(self, *, is_first: bool) -> None:
        """Waits for encrypted bytes, and passes them to OpenSSL."""
        runtime = self._runtime
        while True:
            try:
                count = self._transport.receive_into(runtime.scratch_view)
            except BlockingIOError:
                await self._ready(self._transport.watch_readable)
                continue
            if not count and is_first:
                raise SilentPeerError(errno.ECONNRESET, "the peer closed the connection without a byte")
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection during the TLS handshake")
            if is_first and runtime.scratch[0] != _HANDSHAKE_RECORD:
                raise NotTlsError(bytes(runtime.scratch[: min(count, 16)]))
            self._incoming.write(runtime.scratch_view[:count])
            return

    async def _departure(self) -> None:
        """Waits until the encrypted bytes have been sent."""
        while not self._send_pending():
            await self._ready(self._transport.watch_writable)

    async def _ready(self, watch: Callable[[Callable[[], None] | None], None]) -> None:
        ready: asyncio.Future[None] = self._runtime.loop.create_future()

        def on_ready() -> None:
            if not ready.done():
                ready.set_result(None)

        watch(on_ready)
        try:
            await ready
        finally:
            if not self._closed:
                watch(None)

    async def drain(self) -> None:
        """After a failed handshake: reads for a moment, so that the peer gets the alert, and not a reset."""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._departure()
                while True:
                    try:
                        if not self._transport.receive_into(self._runtime.scratch_view):
                            return
                    except BlockingIOError:
                        await self._ready(self._transport.watch_readable)

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate (DER), if it sent one."""
        return self._ssl.getpeercert(binary_form=True)

    @property
    def description(self) -> str:
        """Version and cipher suite."""
        cipher = self._ssl.cipher()
        return f"{self._ssl.version()} {cipher[0] if cipher else ''}"

    # Reading

    def receive_into(self, buffer: memoryview) -> int:
        self._check_usable()
        if self._has_ended:
            return 0
        incoming, engine = self._incoming, self._ssl
        size = len(buffer)
        total = 0
        reads = _READS_AT_ONCE
        try:
            is_starved = False
            while total < size:
                if is_starved or (not incoming.pending and not engine.pending()):
                    if total:
                        break
                    reads -= 1
                    if reads < 0:
                        self._read_soon()
                        raise BlockingIOError(errno.EAGAIN, "many records without data")
                    self._receive()
                    is_starved = False
                try:
                    # With a buffer it returns the number of bytes; the type stubs do not know this.
                    count: int = engine.read(size - total, buffer[total:])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    if self._outgoing.pending:
                        self._flush()  # OpenSSL responds to the peer: an alert, or a new key
                    is_starved = True
                    continue
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    count = 0
                if not count:
                    self._has_ended = True
                    if total:
                        self._read_soon()  # the end: the socket itself may stay open and silent
                    break
                total += count
            if self._outgoing.pending:
                self._flush()
        except ssl.SSLError as error:
            self._broken = ConnectionError(f"TLS failed: {tls_reason(error)}")
            with contextlib.suppress(OSError):
                self._flush()  # the alert
            raise self._broken from None
        if total and (self._incoming.pending or self._ssl.pending()):
            self._read_soon()
        return total

    def _receive(self) -> None:
        """Passes encrypted bytes to OpenSSL; BlockingIOError if none have arrived."""
        scratch = self._runtime.scratch_view
        count = self._transport.receive_into(scratch)
        if count:
            self._incoming.write(scratch[:count])
        else:
            self._incoming.write_eof()

    def _read_soon(self) -> None:
        """Calls back once more: the transport below knows nothing of bytes that were already taken from it."""
        if not self._is_read_due and self._on_readable is not None:
            self._is_read_due = True
            self._runtime.loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._is_read_due = False
        if self._on_readable is not None and self._job is None:
            self._on_readable()

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        if self._closed or self._job is not None:
            return
        self._watch_readable(callback is not None)
        if callback is not None and (self._incoming.pending or self._ssl.pending()):
            self._read_soon()

    def _watch_readable(self, wanted: bool) -> None:
        if wanted != self._is_watching_readable:
            self._is_watching_readable = wanted
            self._transport.watch_readable(self._readable if wanted else None)

    def _readable(self) -> None:
        if self._job is not None or self._on_readable is None:
            # The bytes wait. Most slices are done before any arrive, so watching ends here, and not with each slice.
            self._watch_readable(False)
        else:
            self._on_readable()

    # Writing

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._check_usable()
        if self._unsent and not self._flush():
            raise BlockingIOError(errno.EAGAIN, "earlier bytes wait to be sent")
        if len(data) > INLINE_BYTES:
            data = memoryview(data)[:INLINE_BYTES]
        if data:
            done = self._ssl.write(data)
            if done < len(data):
                self._encrypt(memoryview(data)[done:])
        self._flush()
        return len(data)

    def send_file(self, part: FilePart, sent: int) -> int:
        if self._encrypted is not None:
            count, self._encrypted = self._encrypted, None
            return count
        self._check_usable()
        if not self._flush():
            raise BlockingIOError(errno.EAGAIN, "earlier bytes wait to be sent")
        position, length = part.position + sent, part.length - sent
        if length > INLINE_BYTES:
            self._encrypt_in_thread(part.file, position, min(length, SLICE_BYTES))
            raise BlockingIOError(errno.EAGAIN, "a thread encrypts the bytes")
        data = part.file.read_at(position, length)
        self._encrypt(memoryview(data))
        self._flush()
        return len(data)

    def _encrypt(self, view: memoryview) -> None:
        while view:
            view = view[self._ssl.write(view) :]

    def _encrypt_in_thread(self, file: OpenFile, position: int, length: int) -> None:
        def read_and_encrypt() -> int:
            data = file.read_at(position, length)
            self._encrypt(memoryview(data))
            return len(data)

        self._job = self._runtime.offload(read_and_encrypt)
        self._watch_writable()
        self._job.add_done_callback(self._encryption_done)

    def _encryption_done(self, job: "asyncio.Future[int]") -> None:
        self._job = None
        if job.cancelled():
            self._broken = ConnectionError("the node stops")
        elif (error := job.exception()) is not None:
            self._broken = error if isinstance(error, OSError) else ConnectionError(str(error))
        else:
            self._encrypted = job.result()
        if self._closed:
            self._end()
            return
        self.watch_readable(self._on_readable)
        self._writable()

    def _flush(self) -> bool:
        """Sends encrypted bytes; returns whether none are left. The rest is sent when the transport is writable."""
        done = self._send_pending()
        if not done or self._is_watching_writable:
            self._watch_writable()
        return done

    def _send_pending(self) -> bool:
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._transport.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        if not self._closed:
            self._watch_writable()

    def _watch_writable(self) -> None:
        """Watches the transport below while there is something to send, or the connection waits to send."""
        wanted = self._job is None and (bool(self._unsent) or self._on_writable is not None)
        if wanted != self._is_watching_writable:
            self._is_watching_writable = wanted
            self._transport.watch_writable(self._writable if wanted else None)

    def _writable(self) -> None:
        try:
            done = self._broken is not None or self._send_pending()
        except OSError as error:
            self._broken = error
            self._unsent = memoryview(b"")
            done = True
        if self._closed:
            if done:
                self._end_now()
            return
        if done:
            callback = self._on_writable
            if callback is None and self._broken is not None:
                callback = self._on_readable  # which finds the error
            if callback is not None:
                callback()
        if not self._closed:
            self._watch_writable()

    # Ending

    def _check_usable(self) -> None:
        if self._job is not None:
            raise BlockingIOError(errno.EAGAIN, "a thread encrypts bytes")
        if self._closed:
            raise OSError(errno.EBADF, "the connection is closed")
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_readable = self._on_writable = None
        self._is_watching_readable = False
        self._transport.watch_readable(None)  # also during a handshake
        if self._job is None:
            self._end()

    def _end(self) -> None:
        """Sends what was accepted and the end of the stream, then closes the transport."""
        try:
            if self._broken is None and self._is_established:
                with contextlib.suppress(ssl.SSLError, ValueError):
                    self._ssl.unwrap()
                if not self._send_pending():
                    self._watch_writable()
                    self._linger = self._runtime.loop.call_later(_LINGER_SECONDS, self._end_now)
                    return
        except OSError:
            pass
        self._end_now()

    def _end_now(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._unsent = memoryview(b"")
        self._transport.close()


def tls_reason(error: ssl.SSLError) -> str:
    """A reason that people can read: `certificate has expired`, `no shared cipher`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLEOFError):
        return "the peer closed the connection"
    return (error.reason or str(error)).replace("_", " ").lower()


class TlsNetwork:
    """`Network` whose connections use TLS; for connections to other nodes."""

    def __init__(self, network: Network, tls: ClientTls, runtime: TlsRuntime, *, timeout_s: float) -> None:
        self._network = network
        self._tls = tls
        self._runtime = runtime
        self._timeout_s = timeout_s

    def listen(
        self, host: str, port: int, *, backlog: int = 1024, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1
    ) -> Listening:
        """Without TLS: a `Listener` makes the transports of accepted connections."""
        return self._network.listen(
            host,
            port,
            backlog=backlog,
            receive_buffer_bytes=receive_buffer_bytes,
            send_buffer_bytes=send_buffer_bytes,
        )

    async def connect(self, host: str, port: int) -> Transport:
        """As without TLS; HandshakeError if the other node is not trusted, or does not trust this one."""
        transport = await self._network.connect(host, port)
        secured: TlsTransport | None = None
        try:
            secured = TlsTransport(transport, self._tls.context, self._runtime, server_side=False, server_hostname=host)
            async with asyncio.timeout(self._timeout_s):
                await secured.handshake()
        except BaseException as error:
            (secured or transport).close()
            if isinstance(error, HandshakeError):
                raise HandshakeError(f"TLS with {host}:{port} failed: {error}") from None
            if isinstance(error, ValueError):
                raise ConnectionError(f"TLS with {host}:{port} failed: {error}") from None
            raise
        return secured
