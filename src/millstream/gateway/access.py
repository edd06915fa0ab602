"""Who may ask: credentials if there are any, and no web page of another site.

A browser sends a page's requests to whatever address the page names, this gateway's included: so requests that change
something must not carry another site's `Origin`, and on loopback the `Host` must be a name of this machine, or else
another site's name could have been pointed here.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.gateway.errors import error_answer
from millstream.gateway.health import OPEN_PATHS

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class CredentialsError(ValueError):
    """The file with credentials cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is let in: names with passwords, and tokens. Empty: everybody."""

    passwords: tuple[tuple[str, str], ...] = ()
    tokens: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.passwords or self.tokens)

    def admit(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header is good; takes as long for a wrong guess as for a near one."""
        scheme, _, rest = authorization.partition(" ")
        given = rest.strip().encode()
        if scheme.lower() == "bearer":
            return _any_equal(given, [token.encode() for token in self.tokens])
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(given, validate=True)
            except binascii.Error:
                return False
            return _any_equal(pair, [f"{name}:{password}".encode() for name, password in self.passwords])
        return False


def _any_equal(given: bytes, known: Sequence[bytes]) -> bool:
    return sum(hmac.compare_digest(given, one) for one in known) > 0


def read_credentials(text: str) -> Credentials:
    """Lines `basic NAME:PASSWORD` or `bearer TOKEN`; empty ones and those that begin with # do not count."""
    passwords, tokens = [], []
    for number, line in enumerate(text.splitlines(), 1):
        kind, _, rest = line.strip().partition(" ")
        name, colon, password = rest.strip().partition(":")
        if not kind or kind.startswith("#"):
            continue
        if kind == "basic" and name and colon and password:
            passwords.append((name, password))
        elif kind == "bearer" and rest.strip():
            tokens.append(rest.strip())
        else:
            raise CredentialsError(f"line {number}: write 'basic NAME:PASSWORD' or 'bearer TOKEN'")
    if not passwords and not tokens:
        raise CredentialsError("nobody is named there: write lines 'basic NAME:PASSWORD' or 'bearer TOKEN'")
    return Credentials(tuple(passwords), tuple(tokens))


class Access:
    def __init__(self, app: ASGIApp, credentials: Credentials, *, loopback: bool) -> None:
        self._app = app
        self._credentials = credentials
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            app = self._refusal(scope) or app
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._loopback and _hostname(f"//{host}") not in _LOOPBACK_NAMES:
            return error_answer(
                421, 421, f"this gateway is not {host}: ask for localhost, or bind it with --http HOST:PORT"
            )
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in _READING and urlsplit(origin).netloc != host:
            return error_answer(403, 403, f"pages of {origin} may not change anything here")
        if not self._credentials or scope["path"] in OPEN_PATHS:
            return None
        if self._credentials.admit(headers.get("authorization", "")):
            return None
        challenge = {"WWW-Authenticate": 'Basic realm="millstream"'}
        return error_answer(401, 40101, "send credentials: basic or bearer authentication", challenge)


def _hostname(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
