"""Who may ask: credentials if there are any, and no web page of another site.

A browser sends a page's requests to whatever address the page names, this gateway's included: so requests that change
something must not carry another site's `Origin`, and on loopback the `Host` must be a name of this machine, or else
another site's name could have been pointed here. A websocket can change things, and a browser opens it to any site
without asking: it is held to the same, at its handshake.

`/livez`: this process answers. `/readyz`: it is up to date with the cluster.
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
"""Answered without credentials: probes have none, and learn nothing but yes or no."""


def health_routes(trouble: Callable[[], str | None]) -> list[BaseRoute]:
    def ready(asked: ApiRequest) -> object:
        reason = trouble()
        if reason:
            raise ApiError(503, f"not ready: {reason}")
        return {"status": "ready"}

    def doc(summary: str) -> Doc:
        return Doc(tag="Health", summary=summary, answer=record({"status": text("It is so.")}))

    return [
        endpoint(
            "GET", "/livez", lambda asked: {"status": "live"}, doc=doc("Whether this process answers"), at_once=True
        ),
        endpoint("GET", "/readyz", ready, doc=doc("Whether this gateway is up to date with the cluster"), at_once=True),
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
            hint = "ask for localhost, or bind the gateway with --http HOST:PORT"
            return error_response(scope["path"], 421, 421, f"this gateway is not {host}", hint)
        origin = headers.get("origin")
        changes = scope.get("method") not in _READING  # a websocket has no method
        if origin is not None and changes and _place(origin) != host:
            hint = "use this gateway's own pages, or a program that is no browser"
            return error_response(scope["path"], 403, 403, f"pages of {origin} may not change anything here", hint)
        if _is_of_another_page(headers):
            hint = "use this gateway's own pages, or a program that is no browser"
            return error_response(scope["path"], 403, 403, "pages of other sites may not ask for anything here", hint)
        if not self._credentials or scope["path"] in OPEN_PATHS:
            return None
        if self._credentials.admit(headers.get("authorization", "")):
            return None
        challenge = {"WWW-Authenticate": 'Basic realm="millstream"'}
        hint = "send basic or bearer authentication"
        return error_response(scope["path"], 401, 40101, "these are no credentials of this gateway", hint, challenge)


def _is_of_another_page(headers: Headers) -> bool:
    """Whether a browser says that another site's page asks, other than by a link that a person follows.

    Such a page could not read the answer; but to be polled is enough for a consumer to move on.
    """
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"


async def _closed(scope: Scope, receive: Receive, send: Send) -> None:
    """Before it was accepted: the server answers the handshake with 403."""
    await send({"type": "websocket.close", "code": 1008})


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _hostname(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
