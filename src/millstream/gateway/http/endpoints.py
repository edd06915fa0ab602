"""From plain functions to HTTP endpoints: the body is read within a limit, the function runs in a thread or, if it is
a coroutine, in the event loop."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from millstream.gateway.http.answers import JSON, json_answer
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.body_pieces import body_pieces
from millstream.gateway.http.described import Doc
from millstream.gateway.http.errors import BadRequestError

Handler = Callable[[Asked], Any]
"""Returns what becomes the JSON of the answer, or an answer of its own; None is 204, no content. A plain function runs
in a thread and may block; a coroutine function runs in the event loop and must not."""

MAX_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Threads:
    """Those of one app, for questions and for changes: when the cluster is away, changes wait, and must not keep
    questions out."""

    reading: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    writing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(16))


class DescribedRoute(Route):
    """A route that says what it is for."""

    def __init__(self, method: str, path: str, serve: Callable[[Request], Awaitable[Response]], doc: Doc) -> None:
        super().__init__(path, serve, methods=[method])
        self.method = method
        self.doc = doc

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        try:
            return super().matches(scope)
        except ValueError:  # a number of more digits than Python reads; nothing is called so
            return Match.NONE, {}


def endpoint(
    method: str,
    path: str,
    handler: Handler,
    *,
    doc: Doc,
    media_type: str = JSON,
    max_bytes: int = MAX_BODY_BYTES,
    at_once: bool = False,
    reads_body: bool = True,
) -> DescribedRoute:
    """`at_once`: the handler waits for nothing and needs no thread. Without `reads_body` it reads `asked.request`'s
    stream on its own, or leaves it."""
    in_loop = at_once or inspect.iscoroutinefunction(handler)

    async def serve(request: Request) -> Response:
        asked = Asked(request, await read_body(request, max_bytes) if reads_body else b"")
        try:
            if in_loop:
                result = handler(asked)
                if inspect.isawaitable(result):
                    result = await result
            else:
                threads = cast(Threads, request.app.state.threads)
                limiter = threads.reading if method == "GET" else threads.writing
                result = await to_thread.run_sync(handler, asked, limiter=limiter)
        except RecursionError:
            raise BadRequestError(422, "what was sent is nested too deeply", "make it flatter") from None
        except UnicodeEncodeError:  # JSON can spell halves of characters; names and settings cannot hold them
            raise BadRequestError(
                400, "what was sent holds half of a surrogate pair, which is no text", "send whole characters"
            ) from None
        if isinstance(result, Response):
            return result
        if result is None:
            return Response(status_code=204)
        plain = JSON in asked.accepts and media_type not in asked.accepts
        return json_answer(result, status=doc.status, media_type=JSON if plain else media_type)

    return DescribedRoute(method, path, serve, doc)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """413 as soon as it is seen to be more than the limit; nothing more of it is read."""
    refusal = BadRequestError(413, f"the body is larger than {max_bytes} bytes", "send less at once")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise refusal
    body = bytearray()
    async for piece in body_pieces(request):
        body += piece
        if len(body) > max_bytes:
            raise refusal
    return bytes(body)
