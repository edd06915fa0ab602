"""Tokens for OAUTHBEARER: a given token, a file, or an OAuth endpoint (client credentials, RFC 6749 section 4.4).

For clients, and for nodes that authenticate to other nodes. A token is read again for each new connection; that of an
endpoint is kept until shortly before its end. Tokens are not checked here: the broker checks them. It blocks.
"""

import base64
import binascii
import http.client
import json
import ssl
import threading
import time
import urllib.parse
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass

_LARGEST_BYTES = 1 << 20
_SHORTEST_SECONDS = 60.0
"""A token is replaced this long before its end."""
_USUAL_LIFETIME_SECONDS = 3600.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class TokenError(Exception):
    """There is no token. The text says why, without secrets."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Exactly one of `token`, `file` and `endpoint` is set."""

    token: str | None = field(default=None, repr=False)
    file: str | None = None
    endpoint: str | None = None
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None


def is_private(url: str) -> bool:
    """Whether a secret may be sent to this address: by TLS, or to this machine."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


_kept: dict[TokenSource, tuple[str, float]] = {}
_lock = threading.Lock()


def bearer_token(source: TokenSource, timeout_s: float) -> tuple[str, float]:
    """The token, and the time of its end in seconds since 1970. TokenError if there is none."""
    if source.token is not None:
        return source.token, _end_of(source.token)
    if source.file is not None:
        try:
            with open(source.file, encoding="utf-8") as file:
                token = file.read(_LARGEST_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenError(f"{source.file}: the token cannot be read: {_reason(error)}") from error
        if not token:
            raise TokenError(f"{source.file}: the file of the token is empty")
        return token, _end_of(token)
    with _lock:
        kept = _kept.get(source)
        if kept is None or kept[1] - _SHORTEST_SECONDS < time.time():
            kept = _kept[source] = _requested(source, timeout_s)
        return kept


def _requested(source: TokenSource, timeout_s: float) -> tuple[str, float]:
    where = f"sasl.oauthbearer.token.endpoint.url={source.endpoint}"
    url = urllib.parse.urlsplit(source.endpoint or "")
    connection: http.client.HTTPConnection
    if not is_private(source.endpoint or ""):
        raise TokenError(f"{where}: give https://… or file:///…")
    if url.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout_s)
    fields = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
    pair = f"{urllib.parse.quote_plus(source.client_id)}:{urllib.parse.quote_plus(source.client_secret)}"
    headers = {
        "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", path, urllib.parse.urlencode(fields), headers)
        response = connection.getresponse()
        content = response.read(_LARGEST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise TokenError(f"{where}: no token: {_reason(error)}") from error
    finally:
        connection.close()
    try:
        document = json.loads(content)
        token, lifetime_s = str(document["access_token"]), float(document.get("expires_in", 0))
    except (ValueError, KeyError, TypeError) as error:
        raise TokenError(
            f"{where}: status {response.status} and no access_token: check client id, secret and scope"
        ) from error
    return token, time.time() + lifetime_s if lifetime_s > 0 else _end_of(token)


def _end_of(token: str) -> float:
    """The `exp` of a JWT; an hour from now for any other token."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return time.time() + _USUAL_LIFETIME_SECONDS


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
