"""Routes with their documentation: `endpoint` makes an HTTP route from a plain function and a `Doc`.

The body is read within a limit. The function runs in a thread or, if it is a coroutine function, in the event loop.
Bodies are documented by their msgspec types: `openapi` derives their JSON Schemas.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from anyio import CapacityLimiter, to_thread
from msgspec import Meta, Struct
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from millstream.access.roles import Role
from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http.audit import ADMINISTRATION, AUTHORIZATION, AuditTrail
from millstream.gateway.http.errors import JSON, ApiError, error_for_wire_error, json_response
from millstream.gateway.http.request import ApiRequest, read_body
from millstream.gateway.identity.caller import CALLER, Caller, current_caller
from millstream.gateway.identity.missing_acl import Needs, missing_acl
from millstream.raw_client import RefusedError, WireError
from millstream.registry.errors import RegistryError

JsonSchema = Mapping[str, Any]
BodyType = Any
"""A type that msgspec knows (a Struct, `list[int]`, …), or a JSON Schema as a dict."""

MAX_BODY_BYTES = 4 << 20

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, extra_json_schema={"format": "int64"})]


class Error(Struct):
    """An error response."""

    error_code: Annotated[int, Meta(description="The HTTP status, or a longer code that begins with it.")]
    message: Annotated[str, Meta(description="What is wrong.")]
    hint: Annotated[str, Meta(description="What to do.")]


class ConfluentError(Struct):
    """An error response of the paths that follow Confluent's APIs (see errors.is_confluent)."""

    error_code: Annotated[int, Meta(description="The HTTP status, or a longer code that begins with it.")]
    message: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, a header, or the path. Path parameters are found by themselves; list one to describe
    it."""

    name: str
    description: str
    schema: BodyType
    place: Literal["query", "header", "path"] = "query"
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """The documentation of one route."""

    tag: str
    """The section that lists it."""
    summary: str
    """One line."""
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: BodyType | None = None
    """None: the route takes no body."""
    body_type: str = JSON
    more_body_types: Sequence[str] = ()
    """Other types of the same body."""
    response: BodyType | None = None
    """The body of a successful response. None: it has none."""
    response_type: str = JSON
    status: int = 200
    """Of a successful response."""
    partial: BodyType | None = None
    """The body of a 207 response: only a part of the request succeeded."""
    errors: Sequence[int] = ()
    """Statuses beside those of all routes (see openapi)."""
    body_required: bool = True
    example: Any = None
    """Of the body."""


# JSON Schemas for parameters, and for bodies without a type

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
    """An object with these fields; others are allowed unless it is closed."""
    schema: dict[str, Any] = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return schema


# Routes

Handler = Callable[[ApiRequest], Any]
"""Returns the JSON document of the response, or a Response; None is 204, no content. A plain function runs in a thread
and may block; a coroutine function runs in the event loop and must not block."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of one app. Reads and writes have their own: while the cluster is unreachable, writes wait, and must
    not block reads."""

    reading: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(32))
    writing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(16))


ErrorForm = Callable[[ApiError | RegistryError], ApiError]
"""Translates an error into the codes of another API."""


class DocumentedRoute(Route):
    def __init__(
        self,
        method: str,
        path: str,
        serve: Callable[[Request], Awaitable[Response]],
        doc: Doc,
        role: Role,
        *,
        when: Callable[[Headers], bool] | None = None,
        is_confluent: bool = False,
    ) -> None:
        super().__init__(path, serve, methods=[method])
        self.method = method
        self.doc = doc
        self.role = role
        """The lowest role that may call it."""
        self.is_confluent = is_confluent
        """Its errors have Confluent's form."""
        self._when = when

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        try:
            found = super().matches(scope)
        except ValueError:  # a number with more digits than Python parses
            return Match.NONE, {}
        if self._when is not None and found[0] is not Match.NONE and not self._when(Headers(scope=scope)):
            return Match.NONE, {}
        return found


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
    role: Role | None = None,
    needs: Needs = Needs(),
    errors: ErrorForm | None = None,
    when: Callable[[Headers], bool] | None = None,
) -> DocumentedRoute:
    """`role`: the lowest that may call it; without it, viewer for GET and admin for all others. `needs`: the ACLs that
    an error names. `at_once`: the handler does not block and needs no thread. Without `reads_body` the handler reads
    the stream of the request itself, or ignores it. `errors`: errors get the codes and the form of another API.
    `when`: the route is for requests with certain headers; others match a later route."""
    in_loop = at_once or inspect.iscoroutinefunction(handler)
    lowest = role if role is not None else Role.VIEWER if method == "GET" else Role.ADMIN
    administers = lowest > Role.VIEWER and reads_body and not path.startswith("/consumers")

    async def serve(request: Request) -> Response:
        try:
            response = await explaining(request)
        except Exception as error:
            _audit(request, f"{method} {path}", administers, error)
            raise
        if administers:
            _audit(request, f"{method} {path}", administers, None)
        return response

    async def explaining(request: Request) -> Response:
        try:
            check_role(request, lowest)
            return await respond(request)
        except (ApiError, WireError) as error:
            if errors is None and not isinstance(error, (ApiError, RefusedError)):
                raise
            found = explained(error, needs, request.path_params)
            raise (found if errors is None else in_form(errors(found))) from error
        except RegistryError as error:
            if errors is None:
                raise
            raise in_form(errors(error)) from error

    async def respond(request: Request) -> Response:
        req = ApiRequest(request, await read_body(request, max_bytes) if reads_body else b"")
        try:
            if in_loop:
                result = handler(req)
                if inspect.isawaitable(result):
                    result = await result
            else:
                threads = cast(Threads, request.app.state.threads)
                limiter = threads.reading if method == "GET" else threads.writing
                result = await to_thread.run_sync(handler, req, limiter=limiter)
        except RecursionError:
            raise ApiError(422, "the body is nested too deeply", "reduce its nesting") from None
        except UnicodeEncodeError:  # JSON can have unpaired surrogates; names and settings cannot
            raise ApiError(
                400, "the body has an unpaired surrogate, which is not valid text", "send whole characters"
            ) from None
        if isinstance(result, Response):
            return result
        if result is None:
            return Response(status_code=204)
        plain = JSON in req.accepts and media_type not in req.accepts
        return json_response(result, status=doc.status, media_type=JSON if plain else media_type)

    return DocumentedRoute(method, path, serve, doc, lowest, when=when, is_confluent=errors is not None)


def in_form(error: ApiError) -> ApiError:
    error.is_confluent = True
    return error


def _audit(request: Request, route: str, administers: bool, error: Exception | None) -> None:
    """Records what was refused, and changes. Health checks have no caller."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        return
    code = 0 if error is None else int(getattr(error, "code", 500) or 500)
    is_denied = str(code).startswith("403")
    if not (administers or is_denied):
        return
    result = "denied" if is_denied else "failure" if error is not None else "success"
    more: dict[str, object] = {} if error is None else {"error": code}
    cast(AuditTrail, request.app.state.trail).record(
        AUTHORIZATION if is_denied else ADMINISTRATION,
        result,
        caller.name,
        request.client.host if request.client is not None else "unknown",
        api=route,
        resource=request.url.path,
        **more,
    )


def check_role(request: Request, lowest: Role) -> None:
    """403 if the caller has a lower role. Health checks have no caller."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is not None and caller.role < lowest:
        raise ApiError(
            403,
            f"{caller.name or 'anonymous'} has the role {caller.role}; this needs {lowest}",
            "an administrator gives roles in the access file of the gateway",
            code=40302,
        )


def explained(error: ApiError | WireError, needs: Needs, path_parameters: Mapping[str, Any]) -> ApiError:
    """The same error; one about missing rights names the ACL."""
    found = error if isinstance(error, ApiError) else error_for_wire_error(error)
    if found.kafka is None:
        return found
    caller = current_caller()
    if found.kafka is ErrorCode.SASL_AUTHENTICATION_FAILED:
        if caller.acts_as_itself:
            return ApiError(401, "the cluster does not accept the credentials any more", "send others", code=40101)
        return ApiError(502, found.message, "the gateway's own credentials are refused: check them", code=50202)
    user = caller.name if caller.acts_as_itself else caller.connection.cluster.user
    return missing_acl(found.kafka, needs, path_parameters, user or "ANONYMOUS", found.message)
