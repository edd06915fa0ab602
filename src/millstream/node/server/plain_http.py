"""One HTTP exchange on a connection that is not a Kafka client's: one request, one response, then the end.

Enough for a probe or a scrape (GET and HEAD, no body, no second request), so that a node can be observed on the port
where it listens. The first four bytes of a method, read as the size of a frame, are larger than any frame may be. By
that the two protocols are distinguished.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from millstream.common.lazy_dataclass import dataclass
from millstream.node.server.network import Transport
from millstream.node.server.service import Peer

METHODS = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN"))
"""The first bytes of HTTP requests. Other methods than GET and HEAD get status 405."""
MAX_FRAME_BYTES = 1 << 30
"""Below the smallest of METHODS, read as a size."""
MAX_HEAD_BYTES = 16 << 10
_READ_BYTES = 4096
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    path: str
    query: dict[str, list[str]]
    host: str | None = None
    """The name in the Host header, without a port; None if there is no such header. Lower case."""
    peer: Peer | None = None
    """The client of the connection. It may have logged in by SASL before it sent the request."""
    accepts_gzip: bool = False


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    content_type: str = TEXT
    content_encoding: str | None = None


class HttpService(Protocol):
    def respond(self, request: HttpRequest, deliver: Callable[[HttpResponse], None]) -> None:
        """Responds through `deliver`, now or later."""
        ...


class HttpExchange:
    def __init__(
        self, transport: Transport, peer: Peer, service: HttpService, received: bytes, finished: Callable[[], None]
    ) -> None:
        """Takes a transport over, with the bytes read from it; `finished` closes it after the response."""
        self._transport = transport
        self._peer = peer
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
        """The connection ended: no response is sent any more."""
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
            # The client may close its side at once and still read the response.
            self._transport.watch_readable(None)

    def _consider(self) -> bool:
        """Whether the request is complete; if so, the response is on its way."""
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            end = self._head.find(b"\n\n")
        if end < 0 and len(self._head) <= MAX_HEAD_BYTES:
            return False
        if end < 0 or end > MAX_HEAD_BYTES:
            self._deliver(HttpResponse(431, f"the request head is larger than {MAX_HEAD_BYTES} bytes\n".encode()))
            return True
        lines = bytes(self._head[:end]).decode("latin-1").splitlines()
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._deliver(HttpResponse(400, b"not an HTTP/1.x request: send, for example, GET /metrics HTTP/1.1\n"))
            return True
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            self._deliver(
                HttpResponse(405, b"only GET and HEAD are supported here; use the HTTP gateway for other methods\n")
            )
            return True
        self._has_body = method == "GET"
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=100)
            request = HttpRequest(parts.path, query, _host(lines[1:]), self._peer, _accepts_gzip(lines[1:]))
        except ValueError:
            self._deliver(HttpResponse(400, b"the URL is not valid\n"))
            return True
        self._service.respond(request, self._deliver)
        return True

    # Writing

    def _deliver(self, response: HttpResponse) -> None:
        if self._is_closed:
            return
        allow = "Allow: GET, HEAD\r\n" if response.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
        encoding = f"Content-Encoding: {response.content_encoding}\r\n" if response.content_encoding else ""
        head = (
            f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n"
            f"{encoding}{allow}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        ).encode()
        self._out = memoryview(head + response.body if self._has_body else head)
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
        """Reads the rest of the request: closing a socket with unread bytes would discard the response."""
        try:
            self._transport.receive_into(memoryview(bytearray(64 << 10)))
        except OSError:
            pass


def _accepts_gzip(headers: list[str]) -> bool:
    for name, _, value in (line.partition(":") for line in headers):
        if name.strip().lower() == "accept-encoding":
            for coding in value.lower().split(","):
                words = [word.strip() for word in coding.split(";")]
                if words[0] == "gzip":
                    return not any(word.startswith("q=0") and not word.strip("q=0.") for word in words[1:])
    return False


def _host(headers: list[str]) -> str | None:
    """ValueError if there are several, or one that is not a name or an address."""
    found = [value.strip() for name, _, value in (line.partition(":") for line in headers) if name.lower() == "host"]
    if len(found) > 1:
        raise ValueError("more than one Host header")
    return (urlsplit(f"//{found[0]}").hostname or "") if found else None
