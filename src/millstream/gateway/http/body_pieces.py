"""A request's body as it comes: one that is cut off, or takes too long to come, is refused."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from millstream.gateway.http.errors import BadRequestError

BODY_TIMEOUT_S = 60.0


async def body_pieces(request: Request, within_s: float = BODY_TIMEOUT_S) -> AsyncIterator[bytes]:
    """408 when the time for all of it is up: what was set aside for a body must not wait for one that never ends."""
    pieces = request.stream()
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise BadRequestError(
                408,
                f"the body was not complete within {within_s:g} s",
                "send it faster, or less at once",
                headers={"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise BadRequestError(
                400, "the connection was closed before the body was complete", "send it again"
            ) from None
        yield piece
