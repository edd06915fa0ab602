"""From plain functions to HTTP endpoints: the body is read within a limit, the function runs in a thread."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.gateway.answers import json_answer
from millstream.gateway.asked import Asked
from millstream.gateway.errors import BadRequestError

Handler = Callable[[Asked], Any]
"""Returns what becomes the JSON of the answer, or an answer of its own."""

MAX_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Threads:
    """Those of one app, for questions and for changes: when the cluster is away, changes wait, and must not keep
    questions out."""

    reading: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    writing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(16))


def endpoint(
    method: str,
    path: str,
    handler: Handler,
    *,
    media_type: str,
    max_bytes: int = MAX_BODY_BYTES,
    at_once: bool = False,
) -> Route:
    """`at_once`: the handler waits for nothing and needs no thread."""

    async def serve(request: Request) -> Response:
        asked = Asked(request, await read_body(request, max_bytes))
        try:
            if at_once:
                result = handler(asked)
            else:
                threads: Threads = request.app.state.threads
                limiter = threads.reading if method == "GET" else threads.writing
                result = await to_thread.run_sync(handler, asked, limiter=limiter)
        except RecursionError:
            raise BadRequestError(422, "what was sent is nested too deeply: make it flatter") from None
        if isinstance(result, Response):
            return result
        plain = "application/json" in asked.accepts and media_type not in asked.accepts
        return json_answer(result, media_type="application/json" if plain else media_type)

    return Route(path, serve, methods=[method])


async def read_body(request: Request, max_bytes: int) -> bytes:
    """413 as soon as it is seen to be more than the limit; nothing more of it is read."""
    refusal = BadRequestError(413, f"the body is larger than {max_bytes} bytes: send less at once")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise refusal
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise refusal
    except ClientDisconnect:
        raise BadRequestError(400, "the connection was closed before the body was complete") from None
    return bytes(body)
