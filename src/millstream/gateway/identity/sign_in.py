"""The sign-in pages of the console: name and password (checked by the cluster), OpenID Connect, and sign-out.

Plain HTML without scripts, below /console/sign-in and /console/sign-out, served without credentials. Forms have a token
against requests of other sites, and pages of other sites are refused before by `Origin` (`http/access.py`). After the
sign-in the browser goes to an address of the console only: the return address is checked, and anything else is
replaced.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.gateway.http.audit import AUTHENTICATION
from millstream.gateway.http.errors import ApiError, error_response
from millstream.gateway.http.request import read_body
from millstream.gateway.identity.authentication import (
    FORM,
    OIDC,
    SESSION,
    Authentication,
    UnauthenticatedError,
    address_of_client,
    cluster_in,
    cluster_path,
    is_console,
)
from millstream.gateway.identity.credentials import InvalidCredentialsError, password_credential, token_credential
from millstream.gateway.identity.oidc import PENDING_SECONDS, OidcClient, OidcError
from millstream.gateway.identity.sessions import (
    COOKIE,
    PATH,
    ConsoleSession,
    clear_cookie,
    read_cookie,
    set_cookie,
)
from millstream.gateway.identity.sign_in_delay import TooManyAttemptsError
from millstream.raw_client import WireError

SIGN_IN = f"{PATH}/sign-in"
SIGN_OUT = f"{PATH}/sign-out"
_START, _CALLBACK = f"{SIGN_IN}/start", f"{SIGN_IN}/callback"
_FORM_COOKIE, _STATE_COOKIE = "millstream_form", "millstream_state"
_MOST_BYTES = 64 << 10
_MOST_RETURN = 2_000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Millstream</title><style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }}
body {{ display: grid; min-height: 100vh; margin: 0; place-items: center; background: Canvas; color: CanvasText; }}
main {{ width: min(22rem, 90vw); }} h1 {{ font-size: 1.4rem; }}
label {{ display: block; margin: .8rem 0; }}
input, select {{ display: block; width: 100%; box-sizing: border-box; padding: .5rem; font: inherit; }}
button, a.button {{ display: block; width: 100%; box-sizing: border-box; padding: .6rem; margin: .8rem 0; font: inherit;
 text-align: center; color: white; background: #2563eb; border: 0; border-radius: 6px; text-decoration: none; }}
.error {{ color: #dc2626; }} </style></head><body><main><h1>{title}</h1>{body}</main></body></html>
"""


class SignInPages:
    """An ASGI app in front of the console: serves its own paths, and passes on all others."""

    def __init__(
        self, app: ASGIApp, authentication: Authentication, origin: str | None, oidc: OidcClient | None
    ) -> None:
        """`origin`: the public origin of the gateway, such as https://console.example; None: as the browser sees it."""
        self._app = app
        self._authentication = authentication
        self._origin = origin
        self._oidc = oidc
        self._handlers: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", SIGN_IN): self._show,
            ("POST", SIGN_IN): self._password,
            ("GET", SIGN_OUT): self._ask_to_leave,
            ("POST", SIGN_OUT): self._leave,
        }
        if oidc is not None:
            self._handlers |= {("GET", _START): self._start, ("GET", _CALLBACK): self._callback}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_sign_in(scope["path"]):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        handler = self._handlers.get((request.method, scope["path"]))
        if handler is None:
            response = error_response(scope["path"], 404, 404, "there is no such page", f"GET {SIGN_IN}")
        else:
            try:
                response = await handler(request)
            except ApiError as error:
                response = self._page(request, error.message, error.status)
            except WireError as error:
                response = self._page(request, f"The cluster cannot verify the sign-in now: {error}.", 503)
        await response(scope, receive, send)

    # Name and password

    async def _show(self, request: Request) -> Response:
        return self._page(request, "")

    def _page(self, request: Request, problem: str, status: int = 200) -> Response:
        return_to = safe_return(request.query_params.get("next", ""))
        seed = secrets.token_urlsafe(24)
        body = f'<p class="error" role="alert">{escape(problem)}</p>' if problem else ""
        if self._authentication.passes_through:
            chosen = cluster_in(return_to) or self._authentication.cluster_name
            choice = "".join(
                f"<option{' selected' if name == chosen else ''}>{escape(name)}</option>"
                for name in self._authentication.by_cluster
            )
            body += (
                f'<form method="post" action="{SIGN_IN}?{escape(urlencode({"next": return_to}))}">'
                f'<input type="hidden" name="csrf" value="{self._form_token(seed)}">'
                '<label>Name <input name="name" autocomplete="username" autofocus required></label>'
                '<label>Password <input name="password" type="password" autocomplete="current-password" required>'
                "</label>"
                + (f'<label>Cluster <select name="cluster">{choice}</select></label>' if choice else "")
                + '<button type="submit">Sign in</button></form>'
            )
        if self._oidc is not None:
            target = escape(urlencode({"next": return_to}))
            body += f'<a class="button" href="{_START}?{target}">Sign in with single sign-on</a>'
        cookie = set_cookie(_FORM_COOKIE, seed, SIGN_IN, 3600, secure=self._secure(request))
        return _html("Sign in", body, status, cookie)

    async def _password(self, request: Request) -> Response:
        if not self._authentication.passes_through:
            return self._page(request, "Passwords are not accepted here.", 403)
        fields = await _form(request)
        seed = request.cookies.get(_FORM_COOKIE, "")
        if not seed or not hmac.compare_digest(fields.get("csrf", "").encode(), self._form_token(seed).encode()):
            return self._page(request, "The form is too old. Try again.", 403)
        authentication = self._authentication
        assert authentication.mechanism is not None
        return_to = safe_return(request.query_params.get("next", ""))
        chosen = fields.get("cluster", "")
        if chosen in authentication.by_cluster and chosen != cluster_in(return_to):
            return_to = f"{cluster_path(chosen)}/"
        try:
            credential = password_credential(
                fields.get("name", ""), fields.get("password", ""), authentication.mechanism
            )
            caller = await authentication.at(return_to).verified(credential, address_of_client(request.scope), FORM)
        except (InvalidCredentialsError, UnauthenticatedError):
            return self._page(request, "Name or password is wrong.", 401)
        return self._begin(request, caller.name, caller.groups, credential, None, return_to, FORM)

    def _begin(
        self,
        request: Request,
        user: str,
        groups: frozenset[str],
        credential: object,
        ends_at: float | None,
        return_to: str,
        method: str,
    ) -> Response:
        """A new session; one that the browser had before ends."""
        sessions, secure = self._authentication.sessions, self._secure(request)
        before = sessions.find(read_cookie(request.headers.get("cookie", ""), COOKIE))
        if before is not None:
            sessions.end(before)
        session = sessions.begin(user, groups, credential, ends_at)  # type: ignore[arg-type]
        self._authentication.trail.record(
            AUTHENTICATION, "success", user, address_of_client(request.scope), mechanism=method
        )
        response = _redirect(safe_return(return_to))
        response.headers.append("set-cookie", sessions.cookie(session, secure=secure))
        for name in (_FORM_COOKIE, _STATE_COOKIE):
            response.headers.append("set-cookie", clear_cookie(name, SIGN_IN, secure=secure))
        return response

    # OpenID Connect

    async def _start(self, request: Request) -> Response:
        assert self._oidc is not None
        try:
            where, state = await self._oidc.begin(
                self._public(request) + _CALLBACK, safe_return(request.query_params.get("next", ""))
            )
        except OidcError as error:
            return self._page(request, f"Single sign-on failed: {error}.", 502)
        response = _redirect(where)
        cookie = set_cookie(_STATE_COOKIE, state, SIGN_IN, int(PENDING_SECONDS), secure=self._secure(request))
        response.headers.append("set-cookie", cookie)
        return response

    async def _callback(self, request: Request) -> Response:
        assert self._oidc is not None
        authentication, address = self._authentication, address_of_client(request.scope)
        try:
            async with authentication.delay.attempt(address):
                try:
                    signed_in = await self._oidc.complete(
                        dict(request.query_params), request.cookies.get(_STATE_COOKIE, "")
                    )
                except OidcError as error:
                    authentication.counts[OIDC, "failed"] += 1
                    await authentication.delay.after_failure(address, "", OIDC, str(error))
                    raise
        except TooManyAttemptsError:
            authentication.counts[OIDC, "refused"] += 1
            return self._page(request, "Too many sign-ins at the same time. Wait a moment, then try again.", 429)
        except OidcError as error:
            return self._page(request, f"Single sign-on failed: {error}.", 401)
        credential, ends_at = None, None
        oidc = authentication.rules.oidc
        if oidc is not None and oidc.uses_token:
            try:
                credential = token_credential(signed_in.access_token, authentication.rules.tokens)
                await authentication.at(safe_return(signed_in.return_to)).verified(credential, address, OIDC)
            except (InvalidCredentialsError, UnauthenticatedError):
                return self._page(request, "The cluster refuses the access token of the provider.", 401)
            ends_at = signed_in.token_ends_at
        else:
            authentication.counts[OIDC, "succeeded"] += 1
        return self._begin(request, signed_in.user, signed_in.groups, credential, ends_at, signed_in.return_to, OIDC)

    # Sign-out

    async def _ask_to_leave(self, request: Request) -> Response:
        session = self._session(request)
        if session is None:
            return _redirect(SIGN_IN)
        body = (
            f"<p>Signed in as {escape(session.user)}.</p>"
            f'<form method="post" action="{SIGN_OUT}"><input type="hidden" name="csrf" value="{escape(session.csrf)}">'
            f'<button type="submit">Sign out</button></form><p><a href="{PATH}">Back to the console</a></p>'
        )
        return _html("Sign out", body, 200)

    async def _leave(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None:
            given = (await _form(request)).get("csrf", "")
            if not hmac.compare_digest(given.encode(), session.csrf.encode()):
                return _html("Sign out", "<p>The form is too old. Go back and try again.</p>", 403)
            self._authentication.sessions.end(session)
        response = _redirect(SIGN_IN)
        response.headers.append("set-cookie", clear_cookie(COOKIE, PATH, secure=self._secure(request)))
        return response

    def _session(self, request: Request) -> ConsoleSession | None:
        return self._authentication.sessions.find(read_cookie(request.headers.get("cookie", ""), COOKIE))

    # Parts

    def _form_token(self, seed: str) -> str:
        return self._authentication.sessions.sign("form", seed)

    def _public(self, request: Request) -> str:
        return self._origin or f"{request.url.scheme}://{request.url.netloc}"

    def _secure(self, request: Request) -> bool:
        return self._public(request).startswith("https:")


def is_sign_in(path: str) -> bool:
    return path in (SIGN_IN, SIGN_OUT) or path.startswith(f"{SIGN_IN}/")


def safe_return(text: str) -> str:
    """The address to return to: a path of the console, or its overview instead of anything else."""
    path = text.partition("?")[0]
    inside = path == PATH or path.startswith(f"{PATH}/")
    plain = text.isascii() and text.isprintable() and not any(sign in text for sign in ("\\", "//", "..", "#", " "))
    if not inside or not plain or len(text) > _MOST_RETURN or is_sign_in(path):
        return PATH
    return text


def sign_in_redirect(scope: Scope) -> Response | None:
    """For a browser without a session that opens a page of the console; None for anything else."""
    if not wants_page(scope):
        return None
    query = scope.get("query_string", b"").decode("latin-1")
    target = quote(scope["path"], safe="/") + (f"?{query}" if query else "")
    return _redirect(f"{SIGN_IN}?{urlencode({'next': safe_return(target)})}")


def problem_page(scope: Scope, error: ApiError, clusters: Sequence[str]) -> Response | None:
    """The error, with links to all clusters, for a browser that opens a page of the console. None for anything else,
    and if there is one cluster."""
    if not clusters or not is_console(scope["path"]) or not wants_page(scope):
        return None
    links = "".join(f'<li><a href="{cluster_path(name)}/">{escape(name)}</a></li>' for name in clusters)
    name = cluster_in(scope["path"])
    title = f"Cluster {name}" if name in clusters else "Clusters"
    body = f'<p class="error" role="alert">{escape(error.message)}</p><p>{escape(error.hint)}</p>'
    return _html(title, f"{body}<p>Clusters of this console:</p><ul>{links}</ul>", error.status)


def wants_page(scope: Scope) -> bool:
    """Whether a browser opens a page."""
    return (
        scope["type"] == "http" and scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")
    )


def _redirect(where: str) -> Response:
    return Response(status_code=303, headers={"Location": where, "Cache-Control": "no-store"})


def _html(title: str, body: str, status: int, *cookies: str) -> Response:
    response = Response(_PAGE.format(title=escape(title), body=body), status, dict(_HEADERS), "text/html")
    for cookie in cookies:
        response.headers.append("set-cookie", cookie)
    return response


async def _form(request: Request) -> dict[str, str]:
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise ApiError(415, "the form has another content type", "use the sign-in page")
    body = await read_body(request, _MOST_BYTES)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise ApiError(400, "the form is malformed", "use the sign-in page") from None


__all__ = [
    "SESSION",
    "SIGN_IN",
    "SIGN_OUT",
    "SignInPages",
    "is_sign_in",
    "problem_page",
    "safe_return",
    "sign_in_redirect",
]
