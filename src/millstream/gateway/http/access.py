"""Access control: credentials, protection against pages of other sites, and the health endpoints.

A browser sends requests of any page to any address. So requests that change something must not have the `Origin` of
another site, and on loopback the `Host` must be a name of this machine (protection against DNS rebinding). Websockets
are checked in the same way at their handshake.

`/livez`: the process responds. `/readyz`: it is up to date with the cluster.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.gateway.http.configuration import Credentials, is_loopback
from millstream.gateway.http.errors import ApiError, error_response
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import Doc, endpoint, record, text

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


class Access:
    def __init__(self, app: ASGIApp, credentials: Credentials, *, loopback: bool) -> None:
        self._app = app
        self._credentials = credentials
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None:
                app = refusal if scope["type"] == "http" else _closed
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._loopback and not is_loopback(_hostname(f"//{host}")):
            hint = "use localhost, or start the gateway with --http HOST:PORT"
            return error_response(scope["path"], 421, 421, f"the Host header {host!r} does not match this server", hint)
        origin = headers.get("origin")
        changes = scope.get("method") not in _READING  # a websocket has no method
        if origin is not None and changes and _host_of(origin) != host:
            hint = "use the pages of this gateway, or a program that is not a browser"
            return error_response(scope["path"], 403, 403, f"requests from pages of {origin} are refused", hint)
        if _is_cross_site(headers):
            hint = "use the pages of this gateway, or a program that is not a browser"
            return error_response(scope["path"], 403, 403, "requests from pages of other sites are refused", hint)
        if not self._credentials or scope["path"] in OPEN_PATHS:
            return None
        if self._credentials.admit(headers.get("authorization", "")):
            return None
        challenge = {"WWW-Authenticate": 'Basic realm="millstream"'}
        hint = "send basic or bearer authentication"
        return error_response(scope["path"], 401, 40101, "the credentials are missing or wrong", hint, challenge)


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
