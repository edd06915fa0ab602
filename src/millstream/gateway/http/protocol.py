"""uvicorn's HTTP protocol with limits on the head of a request: its size, and the time to receive it.

uvicorn has no such limits: one connection without credentials, whose head never ends, could use all memory of the
gateway.
"""

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millstream.gateway.http.errors import JSON, error_document, json_bytes
from millstream.gateway.identity.authentication import CERTIFICATE

MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_SECONDS = 30.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    """Set while the head of a request is expected."""
    _head_bytes = 0
    _certificate: str | None = None
    """The subject of the client's certificate, which was verified in the handshake."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._certificate = _subject(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_complete()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(
                    431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes", "send fewer headers"
                )

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets JSON, as every other error does."""
        self._refuse(400, "the request is not valid HTTP/1.1", "send a request line and headers as RFC 9112 says")

    def on_message_begin(self) -> None:
        if self._head_timer is None:
            self._await_head()
        super().on_message_begin()
        if self._certificate is not None:
            self.scope[CERTIFICATE] = self._certificate  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._head_is_complete()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._timed_out)

    def _head_is_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _timed_out(self) -> None:
        self._refuse(
            408, f"the head of the request was not complete within {HEAD_TIMEOUT_SECONDS:g} s", "send it faster"
        )

    def _refuse(self, status: int, message: str, hint: str) -> None:
        self._head_is_complete()
        is_responding = self.cycle is not None and not self.cycle.response_complete
        if not is_responding and not self.transport.is_closing():  # otherwise it would be inside another response
            body = json_bytes(error_document("", status, message, hint))
            self.transport.write(_head(status, body) + body)
        self.transport.close()


def _head(status: int, body: bytes) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {JSON}",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _subject(transport: asyncio.Transport) -> str | None:
    """The subject of the client's certificate (RFC 4514); None without TLS, and without a certificate."""
    tls = transport.get_extra_info("ssl_object")
    content = None if tls is None else tls.getpeercert(binary_form=True)
    if not content:
        return None
    from cryptography import x509

    return x509.load_der_x509_certificate(content).subject.rfc4514_string()
