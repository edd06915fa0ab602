"""Bodies with `Content-Encoding: gzip`, decompressed as they arrive.

What follows sees the plain body in small pieces, so its limits on the size of a body are limits on the decompressed
size, and a few bytes that would become gigabytes are refused at the limit. Other encodings are 415.
"""

import asyncio
import zlib
from collections import deque

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.gateway.http.errors import ApiError, error_response

_PIECE_BYTES = 64 << 10
_MOST_EMPTY = 100
"""Members of a body without a byte of content. Each costs a copy of what follows, and counts for no limit."""
_GZIP = 16 + zlib.MAX_WBITS
_NAMES = frozenset({"gzip", "x-gzip"})


class Inflating:
    """An ASGI app in front of the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encodings = Headers(scope=scope).getlist("content-encoding") if scope["type"] == "http" else []
        encoding = ",".join(encodings).strip().lower()
        if encoding in ("", "identity"):
            await self._app(scope, receive, send)
        elif encoding in _NAMES:
            scope = {**scope, "headers": list(scope["headers"])}
            headers = MutableHeaders(scope=scope)
            for name in ("content-encoding", "content-length"):  # they are about the compressed body
                if name in headers:
                    del headers[name]
            await self._app(scope, _InflatedBody(receive).receive, send)
        else:
            refusal = error_response(
                scope["path"],
                415,
                415,
                f"Content-Encoding {encoding[:50]!r} is not supported",
                "send the body as it is, or with gzip",
                {"Accept-Encoding": "gzip"},
            )
            await refusal(scope, receive, send)


class _InflatedBody:
    """The `receive` of one request."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._stream = zlib.decompressobj(_GZIP)
        self._began = False
        """Whether bytes of the current gzip member have arrived."""
        self._waiting: deque[bytes] = deque()
        """Compressed bytes that are not decompressed yet."""
        self._is_last = False
        self._empty = 0

    async def receive(self) -> Message:
        while True:
            piece = self._next_piece()
            if piece:
                await asyncio.sleep(0)  # other requests get a turn: one piece of the network may become very many
                return {"type": "http.request", "body": piece, "more_body": True}
            if self._is_last:
                if self._began and not self._stream.eof:
                    raise _broken("it is cut off")
                self._began = False
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            if message.get("body"):
                self._waiting.append(message["body"])
            self._is_last = not message.get("more_body", False)

    def _next_piece(self) -> bytes:
        """At most `_PIECE_BYTES` of the plain body; empty if more must arrive first."""
        while self._waiting:
            data = self._waiting.popleft()
            if self._stream.eof:  # gzip allows several members, one after the other
                self._stream = zlib.decompressobj(_GZIP)
            try:
                piece = self._stream.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise _broken(str(error)) from None
            self._began = True
            rest = self._stream.unconsumed_tail or self._stream.unused_data
            if rest:
                self._waiting.appendleft(rest)
            if piece:
                return piece
            if self._stream.eof:
                self._empty += 1
                if self._empty > _MOST_EMPTY:
                    raise _broken("it has too many empty members")
        return b""


def _broken(reason: str) -> ApiError:
    return ApiError(400, f"the body is not gzip: {reason}", "compress it again, or send it without Content-Encoding")
