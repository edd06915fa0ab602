"""How much of what producers sent is not answered yet: more than the limit is refused, so that memory has a bound."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from millstream.gateway.http.body_pieces import body_pieces
from millstream.gateway.http.errors import BadRequestError

_ENOUGH = 64 << 10
"""A stretch of a body whose length was not announced; counted before it is read."""


class InFlight:
    """Used from one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    def take(self, size: int) -> None:
        """429 if it would be too much; otherwise `give_back` must follow."""
        if self._bytes and self._bytes + size > self._max_bytes:
            raise BadRequestError(
                429,
                f"{self._bytes} bytes of other requests wait to be written already",
                "send it again in a second",
                code=42901,
                headers={"Retry-After": "1"},
            )
        self._bytes += size

    def give_back(self, size: int) -> None:
        self._bytes -= size

    @asynccontextmanager
    async def body(self, request: Request, max_bytes: int, within_s: float) -> AsyncIterator[bytes]:
        """The whole body, counted from before it is read until it has been dealt with."""
        refusal = BadRequestError(413, f"the body is larger than {max_bytes} bytes", "send less at once")
        announced = request.headers.get("content-length", "")
        taken = 0
        try:
            if announced.isdigit():
                if int(announced) > max_bytes:
                    raise refusal
                self.take(int(announced))
                taken = int(announced)
            chunks, size = [], 0
            async for chunk in body_pieces(request, within_s):
                size += len(chunk)
                if size > max_bytes:
                    raise refusal
                if size > taken:
                    more = max(size - taken, _ENOUGH)
                    self.take(more)
                    taken += more
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self.give_back(taken)
