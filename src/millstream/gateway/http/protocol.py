"""uvicorn's HTTP, with bounds on a request's head: its size, and the time it may take.

uvicorn has none of these, and keeps what comes until it is complete: one connection without credentials, whose head
never ends, could take all of the gateway's memory.
"""

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millstream.gateway.http.errors import JSON, error_document, json_bytes

MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 30.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    """Runs while a head is awaited."""
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes", "send fewer headers")

    def on_message_begin(self) -> None:
        if self._head_timer is None:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_over()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_late)

    def _head_is_over(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        self._refuse(408, f"the request's head was not complete within {HEAD_TIMEOUT_S:g} s", "send it faster")

    def _refuse(self, status: int, message: str, hint: str) -> None:
        self._head_is_over()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and not self.transport.is_closing():  # or else it would be in the midst of another answer
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
