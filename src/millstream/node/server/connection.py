"""One client's connection: requests in, responses out in the order of the requests.

Requests are pipelined: each goes to the service when it is complete, also while earlier ones wait (a long poll, an
fsync). Responses are sent in order. A connection has a budget for each turn of the event loop; more requests that have
arrived wait until other connections had their turn, and those of a busy tenant until others had theirs
(`fair_turns`). Everything is bounded: waiting responses, unsent bytes, the size of a frame, the memory for frames that
arrive in pieces. Above a limit, the socket is not read. The socket of a client above its quota is not read either, for
the throttle time in its response (*muted*).
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from millstream.formats.model.access_control import ANONYMOUS
from millstream.node.server.fair_turns import FairTurns
from millstream.node.server.limits import RequestMemory, address_key
from millstream.node.server.network import Transport
from millstream.node.server.plain_http import METHODS, HttpExchange, HttpService
from millstream.node.server.service import Authentication, Part, Parts, Peer, Pending, ReadPause, Refused, Service

SCRATCH_BYTES = 64 << 10
"""The size of one read: a busy connection must not keep the event loop from the others."""

TURN_REQUESTS: Final = 64
TURN_SECONDS: Final = 0.002
"""The budget of a connection in one turn of the event loop."""

_STALLED_SECONDS = 10.0
_MIN_BYTES_PER_SECOND = 32 << 10
COPIED_FILE_BYTES: Final = 32 << 10
"""File ranges up to this size are copied and sent in one call with the bytes around them, which costs less than a call
for each piece. They are copied when they are sent, so a slow peer takes no memory."""
_GATHERED_BYTES: Final = 64 << 10

_SIZE: Final = struct.Struct(">i")
_MIN_FRAME_BYTES: Final = 8  # api key, version, correlation id
_TLS_HANDSHAKE, _TLS_MAJOR_VERSION = 0x16, 0x03
"""The first bytes of a client that uses TLS."""

_log = logging.getLogger("millstream.net")


class ListenerState(Protocol):
    """What a listener shares with all its connections: service, memory, limits, buffer."""

    service: Service
    memory: RequestMemory
    login_memory: RequestMemory
    """For clients that have not logged in yet: they must not take the memory of others."""
    scratch: bytearray
    scratch_view: memoryview
    max_frame_bytes: int
    max_waiting_responses: int
    max_unsent_bytes: int
    http: HttpService | None
    pauses: int
    authenticate: Callable[[Peer], Authentication] | None
    turns: FairTurns

    def now(self) -> float: ...

    def stopwatch(self) -> float: ...

    def call_soon(self, callback: Callable[[], None]) -> object: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle: ...

    def forget(self, connection: "Connection") -> None: ...


class Connection:
    """One connection of a client: reads frames, gives them to the service, and sends the responses in order."""

    __slots__ = (
        "_blocked",
        "_corked",
        "_frame",
        "_frame_filled",
        "_frame_since",
        "_frame_size",
        "_frame_view",
        "_http",
        "_memory",
        "_mute",
        "_out",
        "_out_sent",
        "_paused",
        "_principal",
        "_read_pause",
        "_responses",
        "_rest",
        "_shared",
        "_stopwatch",
        "_tenant",
        "_transport",
        "_turns",
        "_unsent",
        "_yielded",
        "closed",
        "last_active",
        "opened",
        "peer",
    )

    def __init__(self, transport: Transport, peer: Peer, shared: ListenerState) -> None:
        self._transport = transport
        self._shared = shared
        self._turns = shared.turns
        self._stopwatch = shared.stopwatch
        self.peer = peer
        self.closed = False
        self.opened = self.last_active = shared.now()
        self._rest = b""  # bytes that were read and not yet handled
        self._frame: bytearray | None = None  # a frame that arrives in pieces
        self._frame_view = memoryview(b"")
        self._memory = shared.memory  # of the frame
        self._frame_size = self._frame_filled = 0
        self._frame_since = 0.0
        self._responses: deque[Pending] = deque()
        self._out: deque[Part] = deque()
        self._out_sent = 0  # of the first part
        self._unsent = 0  # bytes in memory, without file ranges
        self._corked = False  # responses are collected, to be sent in one call
        self._blocked = False  # the send buffer is full
        self._paused = False
        self._yielded = False  # more requests have arrived; they are handled in a later turn of the loop
        self._read_pause: ReadPause | None = None  # of the last request, while it waits
        self._mute: asyncio.TimerHandle | None = None  # ends the throttle time of a client above its quota
        self._http: HttpExchange | None = None
        if shared.authenticate is not None:
            peer.authentication = shared.authenticate(peer)
        self._principal = peer.principal
        self._tenant = shared.turns.join(_tenant_name(peer))
        peer.throttle = self._throttle
        transport.watch_readable(self._on_readable)

    # Reading

    def _on_readable(self) -> None:
        if self.peer.principal != self._principal:
            self._change_tenant()
        turns = self._turns
        if turns.is_shared and turns.must_wait(self._tenant):
            self._yielded = True
            self._transport.watch_readable(None)
            turns.wait(self._tenant, self._read_in_turn)
            return
        self._read()

    def _read_in_turn(self) -> None:
        self._yielded = False
        if self._paused or self.closed:
            return
        self._read()
        if not self._paused and not self._yielded and not self.closed and self._http is None:
            self._transport.watch_readable(self._on_readable)

    def _change_tenant(self) -> None:
        """The client has authenticated since the last read."""
        turns = self._turns
        turns.leave(self._tenant)
        self._principal = self.peer.principal
        self._tenant = turns.join(_tenant_name(self.peer))

    def _read(self) -> None:
        shared = self._shared
        self.last_active = shared.now()
        try:
            if self._frame is not None:
                self._read_into_frame(self._frame)
                return
            kept = len(self._rest)
            received = self._transport.receive_into(shared.scratch_view[kept:])
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not received:
            self.close()
            return
        if kept:
            shared.scratch[:kept] = self._rest
            self._rest = b""
        self._handle_frames(shared.scratch, 0, kept + received)

    def _read_into_frame(self, frame: bytearray) -> None:
        if self._frame_filled == len(frame):
            self._frame_view.release()
            self._memory.extend(frame, self._frame_size)
            self._frame_view = memoryview(frame)
        received = self._transport.receive_into(self._frame_view[self._frame_filled : self._frame_size])
        if not received:
            self.close()
            return
        self._frame_filled += received
        if self._frame_filled == self._frame_size:
            self._frame_view.release()
            self._frame = None
            begun = self._stopwatch()
            try:
                self._corked = True
                self._handle_frame(frame, 0, self._frame_size)
            finally:
                self._memory.give_back(frame, self._frame_size)
            self._uncork()
            self._tenant.spent += self._stopwatch() - begun

    def _handle_frames(self, buffer: bytearray, position: int, end: int) -> None:
        """Handles the frames in buffer[position:end] and keeps the rest."""
        shared = self._shared
        smallest, largest = _MIN_FRAME_BYTES, shared.max_frame_bytes
        if self.peer.authentication is not None:
            smallest, largest = self.peer.authentication.frame_limits(largest)
        turns, stopwatch = self._turns, self._stopwatch
        left, begun = TURN_REQUESTS, stopwatch()
        is_shared = turns.is_shared
        until = turns.deadline(self._tenant, begun) if is_shared else begun + TURN_SECONDS
        self._corked = True
        while end - position >= 4 and not self._paused and not self.closed:
            size: int = _SIZE.unpack_from(buffer, position)[0]
            if not smallest <= size <= largest:
                if self._take_http(buffer, position, end):
                    return
                if buffer[position] == _TLS_HANDSHAKE and buffer[position + 1] == _TLS_MAJOR_VERSION:
                    _log.warning(
                        "connection_refused peer=%s:%d listener=%s reason=the client uses TLS, but the listener is %s: "
                        "use its security protocol, or another listener",
                        self.peer.host, self.peer.port, self.peer.listener, self.peer.security_protocol,
                    )  # fmt: skip
                    self._close_after_responses()
                    return
                _log.warning(
                    "frame_refused peer=%s:%d size=%d largest=%d: this is not a Kafka client, or "
                    "socket.request.max.bytes (before authentication sasl.server.max.receive.size) is too small for it",
                    self.peer.host, self.peer.port, size, largest,
                )  # fmt: skip
                self._close_after_responses()
                return
            start = position + 4
            if end - start < size:
                if self._begin_frame(size, buffer, start, end):
                    position = end
                break
            self._handle_frame(buffer, start, start + size)
            position = start + size
            left -= 1
            if position < end and (left <= 0 or stopwatch() > until) and not self._paused and not self.closed:
                self._yield()
                break
            if self._unsent > self._shared.max_unsent_bytes:
                # A few small requests can have large responses: send them before making more.
                if not self._blocked:
                    self._flush()
                if self._unsent > self._shared.max_unsent_bytes:
                    self._pause()
        if self.closed:
            return
        if position < end:
            self._rest = bytes(buffer[position:end])
        self._uncork()
        if is_shared:
            self._tenant.spent += stopwatch() - begun

    def _yield(self) -> None:
        """Serves other connections before more requests of this one."""
        self._yielded = True
        self._transport.watch_readable(None)
        turns = self._turns
        if turns.is_shared:
            turns.wait(self._tenant, self._continue_after_yield)
        else:
            self._shared.call_soon(self._continue_after_yield)

    def _continue_after_yield(self) -> None:
        self._yielded = False
        if not self._paused and not self.closed:
            self._handle_rest()

    def _handle_rest(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._handle_frames(bytearray(rest), 0, len(rest))
        if not self._paused and not self._yielded and not self.closed:
            self._transport.watch_readable(self._on_readable)

    def _take_http(self, buffer: bytearray, position: int, end: int) -> bool:
        """Gives the connection to an `HttpExchange` if this is an HTTP request; returns whether it is."""
        service = self._shared.http
        if service is None or self._responses or self._out or bytes(buffer[position : position + 4]) not in METHODS:
            return False
        self._http = HttpExchange(self._transport, self.peer, service, bytes(buffer[position:end]), self.close)
        return True

    def _begin_frame(self, size: int, buffer: bytearray, start: int, end: int) -> bool:
        authentication = self.peer.authentication
        is_known = authentication is None or authentication.is_authenticated
        memory = self._memory = self._shared.memory if is_known else self._shared.login_memory
        frame = memory.take(size)
        if frame is None:
            self._pause()
            memory.wait(self._resume)
            return False
        arrived = end - start
        frame[:arrived] = buffer[start:end]
        self._frame, self._frame_view = frame, memoryview(frame)
        self._frame_size, self._frame_filled = size, arrived
        self._frame_since = self.last_active
        return True

    def _handle_frame(self, buffer: bytearray, start: int, end: int) -> None:
        try:
            response = self._shared.service.handle(buffer, start, end, self.peer)
        except Refused as refusal:
            _log.warning("request_refused peer=%s:%d reason=%s", self.peer.host, self.peer.port, refusal)
            self._close_after_responses()
            return
        if isinstance(response, Pending):
            self._responses.append(response)
            response.when_resolved(self._send_resolved)
            if response.read_pause is not None and not response.read_pause.is_over:
                self._read_pause = response.read_pause
                self._read_pause.when_over(self._on_read_pause_over)
                self._pause()
            if response.resolved:
                self._send_resolved()
        elif response is not None:
            if self._responses:
                done = Pending()
                done.resolve(response)
                done.held_bytes = sum(len(part) for part in response if isinstance(part, (bytes, bytearray)))
                self._unsent += done.held_bytes
                self._responses.append(done)
            else:
                self._send(response)
        if len(self._responses) >= self._shared.max_waiting_responses:
            self._pause()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._shared.pauses += 1
            self._transport.watch_readable(None)

    def _on_read_pause_over(self) -> None:
        self._read_pause = None
        self._resume()

    def _throttle(self, throttle_ms: int) -> None:
        """Mutes the connection: responses are sent, and requests are not read for this time.

        The connection looks at the socket once more, so that a peer that closes it is noticed.
        """
        if self.closed:
            return
        until = self._shared.now() + throttle_ms / 1000
        mute = self._mute
        if mute is not None:
            if mute.when() >= until:
                return
            mute.cancel()
        self._mute = self._shared.call_at(until, self._unmute)
        if mute is None and not self._paused:
            self._paused = True
            if self._frame is None and not self._yielded:
                self._transport.watch_readable(self._read_muted)
            else:
                self._transport.watch_readable(None)

    def _read_muted(self) -> None:
        """Reads once while the connection is muted: the end of the stream closes it, requests wait."""
        if not self._rest:
            self._read()
        self._transport.watch_readable(None)

    def _unmute(self) -> None:
        self._mute = None
        now = self.last_active = self._shared.now()
        if self._frame is not None:
            self._frame_since = now
        self._resume()

    def _resume(self) -> None:
        if (
            not self._paused
            or self.closed
            or self._read_pause is not None
            or self._mute is not None
            or len(self._responses) >= self._shared.max_waiting_responses
            or self._unsent > self._shared.max_unsent_bytes
        ):
            return
        self._paused = False
        if not self._yielded:
            self._handle_rest()

    # Writing

    def _send_resolved(self) -> None:
        responses = self._responses
        was_corked, self._corked = self._corked, True
        while responses and responses[0].resolved:
            response = responses.popleft()
            self._unsent -= response.held_bytes
            if response.failed:
                self.close()
                return
            if response.parts is not None:
                self._send(response.parts)
            if response.is_last:
                self._close_after_responses()
                return
        if not was_corked:
            self._uncork()
        if self._paused:
            self._resume()

    def _send(self, parts: Parts) -> None:
        if self.closed:
            return
        for part in parts:
            if isinstance(part, (bytes, bytearray)):
                self._unsent += len(part)
            self._out.append(part)
        if not self._corked and not self._blocked:
            self._flush()

    def _uncork(self) -> None:
        """Sends the responses to requests that arrived together in one call."""
        self._corked = False
        if self._out and not self._blocked and not self.closed:
            self._flush()

    def _flush(self) -> None:
        try:
            self._send_out()
        except BlockingIOError:
            if not self._blocked:
                self._blocked = True
                self._transport.watch_writable(self._on_writable)
            if self._unsent > self._shared.max_unsent_bytes:
                self._pause()
        except OSError as error:
            _log.debug("send_failed peer=%s:%d error=%s", self.peer.host, self.peer.port, error)
            self.close()
        else:
            if self._blocked:
                self._blocked = False
                self._transport.watch_writable(None)

    def _on_writable(self) -> None:
        self.last_active = self._shared.now()
        self._flush()
        if self._paused:
            self._resume()

    def _send_out(self) -> None:
        out, transport = self._out, self._transport
        while out:
            part = out[0] if len(out) == 1 or self._out_sent else self._gather()
            if isinstance(part, (bytes, bytearray)):
                sent = self._out_sent
                count = transport.send(memoryview(part)[sent:] if sent else part)
                self._unsent -= count
                if sent + count < len(part):
                    self._out_sent = sent + count
                    raise BlockingIOError
            else:
                while self._out_sent < part.length:
                    count = transport.send_file(part, self._out_sent)
                    if not count:
                        raise OSError("a segment file is shorter than the range to send")
                    self._out_sent += count
            out.popleft()
            self._out_sent = 0

    def _gather(self) -> Part:
        """Joins the small parts at the head of the queue, so that they are sent in one call."""
        out = self._out
        pieces: list[bytes | bytearray] = []
        size = 0
        while out and size < _GATHERED_BYTES:
            part = out[0]
            if not isinstance(part, (bytes, bytearray)):
                if part.length > COPIED_FILE_BYTES:
                    break
                part = part.file.read_at(part.position, part.length)
                if len(part) != out[0].length:  # type: ignore[union-attr]
                    raise OSError("a segment file is shorter than the range to send")
                self._unsent += len(part)
            pieces.append(part)
            size += len(part)
            out.popleft()
        if pieces:
            out.appendleft(b"".join(pieces) if len(pieces) > 1 else pieces[0])
        return out[0]

    # Ending

    def _close_after_responses(self) -> None:
        """Closes the connection after the responses that are ready."""
        if self._out and not self._blocked:
            self._flush()
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._transport.close()
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
        self.peer.throttle = None
        self._turns.leave(self._tenant)
        for response in self._responses:
            response.abandon()
        self._responses.clear()
        self.peer.close()
        if self._http is not None:
            self._http.close()
        self._out.clear()
        self._rest = b""
        if self._frame is not None:
            frame, self._frame = self._frame, None
            self._frame_view.release()
            self._memory.give_back(frame, self._frame_size)
        self._shared.forget(self)

    @property
    def is_muted(self) -> bool:
        """Whether the socket is not read, because the client is above its quota."""
        return self._mute is not None

    @property
    def is_paused(self) -> bool:
        """Whether the socket is not read, because a limit is reached; a quota is not such a limit."""
        return self._paused and self._mute is None

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for its response, or to be read; false if the peer does not read its responses."""
        return (bool(self._responses) or self._mute is not None) and not self._blocked

    def is_stalling(self, now: float) -> bool:
        """Whether a frame has begun and arrives slower than the minimum rate."""
        elapsed = now - self._frame_since
        return (
            self._frame is not None
            and self._mute is None
            and elapsed > _STALLED_SECONDS
            and self._frame_filled < elapsed * _MIN_BYTES_PER_SECOND
        )


def _tenant_name(peer: Peer) -> str:
    return str(peer.principal) if peer.principal != ANONYMOUS else address_key(peer.host)
