"""Access control: credentials, protection against pages of other sites, and the health endpoints.

A browser sends requests of any page to any address. So requests that change something must not have the `Origin` of
another site, and on loopback the `Host` must be a name of this machine (protection against DNS rebinding). Websockets
are checked in the same way at their handshake.

`/livez`: the process responds. `/readyz`: it is up to date with the cluster.
"""

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.access.roles import Role
from millstream.gateway.http.audit import AUTHORIZATION
from millstream.gateway.http.configuration import is_loopback
from millstream.gateway.http.errors import ApiError, error_for_wire_error, error_response
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import Doc, endpoint, record, text
from millstream.gateway.identity.authentication import (
    Authentication,
    UnauthenticatedError,
    address_of_client,
    is_console,
)
from millstream.gateway.identity.caller import CALLER, Caller, set_caller
from millstream.gateway.identity.sign_in import is_sign_in, problem_page, sign_in_redirect
from millstream.raw_client import WireError

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""Served without credentials: probes have none, and the response says only yes or no."""


def health_routes(not_ready_reason: Callable[[], str | None]) -> list[BaseRoute]:
    def ready(req: ApiRequest) -> object:
        reason = not_ready_reason()
        if reason:
            raise ApiError(503, f"not ready: {reason}")
        return {"status": "ready"}

    def doc(summary: str) -> Doc:
        return Doc(tag="Health", summary=summary, response=record({"status": text("live or ready.")}))

    return [
        endpoint(
            "GET", "/livez", lambda req: {"status": "live"}, doc=doc("Whether the process responds"), at_once=True
        ),
        endpoint("GET", "/readyz", ready, doc=doc("Whether the gateway is up to date with the cluster"), at_once=True),
    ]


_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SAY_NO = "an administrator gives roles in the access file of the gateway"


class Access:
    """In front of everything: finds the caller, or responds itself."""

    def __init__(
        self,
        app: ASGIApp,
        authentication: Authentication,
        *,
        loopback: bool,
        origins: Sequence[str] = (),
        strict_transport: bool = False,
        note_status: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`origins`: those of a proxy in front, whose pages are ours. `strict_transport`: tells browsers to use HTTPS
        only (HSTS). `note_status`: called with the status of each response."""
        self._app = app
        self._authentication = authentication
        self._loopback = loopback
        self._origins = frozenset(origins)
        self._hosts = frozenset(_host_of(origin) for origin in origins)
        self._strict_transport = strict_transport
        self._note_status = note_status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = self._noting(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            reason = "a page of another site, or a Host header of another machine"
            self._authentication.trail.record_rarely(
                AUTHORIZATION, "denied", "", address_of_client(scope), reason=reason
            )
        elif not self._is_open(scope["path"]):
            authentication = self._authentication.at(scope["path"])
            try:
                caller = await authentication.caller(scope)
            except UnauthenticatedError:
                refusal = self._unauthenticated(scope)
            except ApiError as error:
                refusal = self._response(scope, error)
            except WireError as error:
                refusal = self._response(scope, error_for_wire_error(error))
            else:
                refusal = self._without_role(scope, caller)
                if refusal is None:
                    await self._serve(caller, scope, receive, send)
                    return
                authentication.trail.record(
                    AUTHORIZATION, "denied", caller.name, address_of_client(scope), resource=scope["path"]
                )
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await (refusal if scope["type"] == "http" else _closed)(scope, receive, send)

    async def _serve(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        set_caller(caller)
        scope[CALLER] = caller
        caller.connection.hold()
        try:
            await self._app(scope, receive, send)
        finally:
            caller.connection.release()

    def _noting(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note_status(message["status"])
                if self._strict_transport:
                    MutableHeaders(scope=message)["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        return sending

    def _is_open(self, path: str) -> bool:
        return path in OPEN_PATHS or (self._authentication.has_sign_in and is_sign_in(path))

    def _refusal(self, scope: Scope) -> Response | None:
        """Of requests for another host, and of requests by pages of other sites."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        is_probe = "host" not in headers and scope["path"] in OPEN_PATHS  # HTTP/1.0; a browser always has a host
        if (
            self._loopback
            and not is_probe
            and not is_loopback(_hostname(f"//{host}"))
            and host.lower() not in self._hosts
        ):
            hint = "use localhost, or start the gateway with --http HOST:PORT, or --allowed-origin behind a proxy"
            return error_response(scope["path"], 421, 421, f"the Host header {host!r} does not match this server", hint)
        origin = headers.get("origin")
        changes = scope.get("method") not in _READING  # a websocket has no method
        if origin is not None and changes and _host_of(origin) != host and origin.lower() not in self._origins:
            hint = "use the pages of this gateway, or a program that is not a browser; see --allowed-origin for a proxy"
            return error_response(scope["path"], 403, 403, f"requests from pages of {origin} are refused", hint)
        if _is_cross_site(headers):
            hint = "use the pages of this gateway, or a program that is not a browser"
            return error_response(scope["path"], 403, 403, "requests from pages of other sites are refused", hint)
        return None

    def _unauthenticated(self, scope: Scope) -> Response:
        authentication = self._authentication
        if authentication.has_sign_in and is_console(scope["path"]):
            page = sign_in_redirect(scope)
            if page is not None:
                return page
        challenge = {"WWW-Authenticate": authentication.challenges}
        hint = "send basic or bearer authentication"
        if not (authentication.credentials or authentication.passes_through):
            hint = "this gateway has a sign-in for the console only; programs need --auth-file or --pass-through"
        return error_response(scope["path"], 401, 40101, "the credentials are missing or wrong", hint, challenge)

    def _without_role(self, scope: Scope, caller: Caller) -> Response | None:
        if caller.role > Role.NONE:
            return None
        error = ApiError(403, f"{caller.name or 'anonymous'} has no role here", _SAY_NO, code=40302)
        return self._response(scope, error)

    def _response(self, scope: Scope, error: ApiError) -> Response:
        """A page for a browser that opens the console of several clusters: it leads to the others."""
        page = problem_page(scope, error, list(self._authentication.by_cluster))
        if page is not None:
            return page
        return error_response(scope["path"], error.status, error.code, error.message, error.hint, error.headers)


def _is_cross_site(headers: Headers) -> bool:
    """Whether a page of another site sent the request, other than by a link that a person follows.

    Such a page cannot read the response, but a poll alone moves the position of a consumer.
    """
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"


async def _closed(scope: Scope, receive: Receive, send: Send) -> None:
    """Before the handshake is accepted: the server responds with 403."""
    await send({"type": "websocket.close", "code": 1008})


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _hostname(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
