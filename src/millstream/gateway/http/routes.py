"""From plain functions to HTTP endpoints: the body is read within a limit, the function runs in a thread or, if it is
a coroutine, in the event loop.

What a route says about itself: from this the OpenAPI description is made, so no route is without one.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from millstream.gateway.http.errors import JSON, ApiError, json_response
from millstream.gateway.http.request import ApiRequest, body_pieces

JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query or a header. Those of the path are found in the path; list one here only to say more of it."""

    name: str
    description: str
    schema: JsonSchema
    place: Literal["query", "header", "path"] = "query"
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    tag: str
    """The heading it stands under."""
    summary: str
    """One line, as in a table of contents."""
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: JsonSchema | None = None
    """None: takes no body."""
    body_type: str = JSON
    answer: JsonSchema | None = None
    """None: the answer has no body."""
    answer_type: str = JSON
    status: int = 200
    """Of an answer that is no error."""
    partial: JsonSchema | None = None
    """The answer when only some of what was asked could be done (207), if that can be."""
    errors: Sequence[int] = ()
    """Statuses that need naming, besides those that every route may give (`openapi` has them)."""
    body_required: bool = True
    example: Any = None
    """Of the body."""


# JSON Schema, briefly

ANYTHING: JsonSchema = {}
TEXT: JsonSchema = {"type": "string"}
FLAG: JsonSchema = {"type": "boolean"}
INT32: JsonSchema = {"type": "integer", "format": "int32"}
INT64: JsonSchema = {"type": "integer", "format": "int64"}


def text(description: str, **more: Any) -> JsonSchema:
    return {"type": "string", "description": description} | more


def whole(description: str = "", minimum: int | None = None, maximum: int | None = None) -> JsonSchema:
    bounds = {"description": description or None, "minimum": minimum, "maximum": maximum}
    return {"type": "integer"} | {name: value for name, value in bounds.items() if value is not None}


def nullable(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(of: JsonSchema, **more: Any) -> JsonSchema:
    return {"type": "array", "items": of} | more


def mapping(of: JsonSchema) -> JsonSchema:
    return {"type": "object", "additionalProperties": of}


def record(
    required: Mapping[str, JsonSchema], optional: Mapping[str, JsonSchema] | None = None, *, closed: bool = False
) -> JsonSchema:
    """An object with these fields; others may be there too, unless it is closed."""
    schema: dict[str, Any] = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return schema


ERROR: JsonSchema = record(
    {
        "error_code": whole("The HTTP status, or a number that begins with it and says more."),
        "message": text("What happened."),
        "hint": text("What to do."),
    }
)
CONFLUENT_ERROR: JsonSchema = record(
    {"error_code": whole("The HTTP status, or a number that begins with it and says more."), "message": TEXT}
)
"""Of the paths that speak as Confluent's services do (see errors.is_confluent)."""


Handler = Callable[[ApiRequest], Any]
"""Returns what becomes the JSON of the answer, or an answer of its own; None is 204, no content. A plain function runs
in a thread and may block; a coroutine function runs in the event loop and must not."""

MAX_BODY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Threads:
    """Those of one app, for questions and for changes: when the cluster is away, changes wait, and must not keep
    questions out."""

    reading: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    writing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(16))


class DocumentedRoute(Route):
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
) -> DocumentedRoute:
    """`at_once`: the handler waits for nothing and needs no thread. Without `reads_body` it reads `asked.request`'s
    stream on its own, or leaves it."""
    in_loop = at_once or inspect.iscoroutinefunction(handler)

    async def serve(request: Request) -> Response:
        asked = ApiRequest(request, await read_body(request, max_bytes) if reads_body else b"")
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
            raise ApiError(422, "what was sent is nested too deeply", "make it flatter") from None
        except UnicodeEncodeError:  # JSON can spell halves of characters; names and settings cannot hold them
            raise ApiError(
                400, "what was sent holds half of a surrogate pair, which is no text", "send whole characters"
            ) from None
        if isinstance(result, Response):
            return result
        if result is None:
            return Response(status_code=204)
        plain = JSON in asked.accepts and media_type not in asked.accepts
        return json_response(result, status=doc.status, media_type=JSON if plain else media_type)

    return DocumentedRoute(method, path, serve, doc)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """413 as soon as it is seen to be more than the limit; nothing more of it is read."""
    refusal = ApiError(413, f"the body is larger than {max_bytes} bytes", "send less at once")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise refusal
    body = bytearray()
    async for piece in body_pieces(request):
        body += piece
        if len(body) > max_bytes:
            raise refusal
    return bytes(body)
