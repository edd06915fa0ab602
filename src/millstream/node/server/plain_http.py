"""One HTTP exchange on a connection that turned out not to speak Kafka: a request's head in, one answer out, the end.

Just enough for a probe or a scrape (GET and HEAD, no body, no second request), so that a node can be looked at where it
already listens. The first four bytes of a method, read as the size of a frame, are larger than any frame may be, which
is how the two are told apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from millstream.node.server.network import Transport

METHODS = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN"))
"""How requests begin; those that are not answered are at least told so."""
LARGEST_FRAME_BYTES = 1 << 30
"""Frames of Kafka are smaller than any of METHODS would be as a size."""
LARGEST_HEAD_BYTES = 16 << 10
_READ_BYTES = 4096
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    path: str
    query: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    content_type: str = TEXT


class HttpService(Protocol):
    def answer(self, request: HttpRequest, deliver: Callable[[HttpResponse], None]) -> None:
        """Answers through `deliver`, now or later."""
        ...


class HttpExchange:
    def __init__(
        self, transport: Transport, service: HttpService, received: bytes, finished: Callable[[], None]
    ) -> None:
        """Takes a transport over, with what was read from it; `finished` closes it when all is said."""
        self._transport = transport
        self._service = service
        self._finished = finished
        self._head = bytearray(received)
        self._is_closed = False
        self._has_body = True
        self._out = memoryview(b"")
        transport.watch_readable(None)
        if not self._consider():
            transport.watch_readable(self._on_readable)

    def close(self) -> None:
        """The connection is over: what is not yet answered will not be."""
        self._is_closed = True

    # Reading

    def _on_readable(self) -> None:
        try:
            received = self._transport.receive_into(piece := memoryview(bytearray(_READ_BYTES)))
        except BlockingIOError:
            return
        except OSError:
            received = 0
        if not received:
            self._finished()
            return
        self._head += piece[:received]
        if self._consider():
            # Whoever has asked may close its side at once and still wants the answer.
            self._transport.watch_readable(None)

    def _consider(self) -> bool:
        """Whether there is all that is needed for an answer, which is then under way."""
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            end = self._head.find(b"\n\n")
        if end < 0 and len(self._head) <= LARGEST_HEAD_BYTES:
            return False
        if end < 0 or end > LARGEST_HEAD_BYTES:
            self._deliver(HttpResponse(431, f"a request's head may have {LARGEST_HEAD_BYTES} bytes\n".encode()))
            return True
        line = bytes(self._head[:end]).splitlines()[0].decode("latin-1")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._deliver(HttpResponse(400, b"this is not a request of HTTP/1.x: say GET /metrics HTTP/1.1\n"))
            return True
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            self._deliver(HttpResponse(405, b"only GET and HEAD are answered here; the HTTP gateway takes the rest\n"))
            return True
        self._has_body = method == "GET"
        try:
            parts = urlsplit(target)
            request = HttpRequest(parts.path, parse_qs(parts.query, keep_blank_values=True, max_num_fields=100))
        except ValueError:
            self._deliver(HttpResponse(400, b"the address cannot be read\n"))
            return True
        self._service.answer(request, self._deliver)
        return True

    # Writing

    def _deliver(self, answer: HttpResponse) -> None:
        if self._is_closed:
            return
        allow = "Allow: GET, HEAD\r\n" if answer.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            f"{allow}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        ).encode()
        self._out = memoryview(head + answer.body if self._has_body else head)
        self._send()

    def _send(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._transport.send(self._out) :]
        except BlockingIOError:
            self._transport.watch_writable(self._send)
            return
        except OSError:
            self._finished()
            return
        self._read_rest()
        self._finished()

    def _read_rest(self) -> None:
        """A socket that is closed with bytes unread takes the answer back from whoever has not read it yet."""
        try:
            self._transport.receive_into(memoryview(bytearray(64 << 10)))
        except OSError:
            pass
