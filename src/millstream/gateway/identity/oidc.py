"""OpenID Connect sign-in: authorization code with PKCE (RFC 7636), state, nonce, and an id token checked against JWKS.

The id token must be signed by a key of the issuer with one of the configured algorithms; `none` and symmetric
algorithms are never among them, and keys or addresses of keys in the token itself are ignored. `state` works once, for
ten minutes, and only in the browser that began the sign-in.
"""

import base64
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from millstream.access.rules_file import OidcSettings

PENDING_SECONDS = 600.0
_MOST_PENDING = 1_000
_CLOCK_SKEW_SECONDS = 60
_TIMEOUT_SECONDS = 10.0
_KEYS_SECONDS = 600.0
_KEYS_AGAIN_SECONDS = 10.0
"""The keys are read again for an unknown key id, but not more often."""
_LARGEST_BYTES = 1 << 20
_log = logging.getLogger("millstream.gateway.oidc")


class OidcError(Exception):
    """The sign-in failed. The text is for the log and for the user, and has no secrets."""


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect_uri: str
    return_to: str
    began_at: float


@dataclass(frozen=True, slots=True)
class SignedIn:
    user: str
    groups: frozenset[str]
    return_to: str
    access_token: str = field(repr=False)
    token_ends_at: float | None


class OidcClient:
    """Used in the event loop."""

    def __init__(
        self,
        settings: OidcSettings,
        *,
        clock: Callable[[], float] = time.time,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._transport = transport
        self._provider: dict[str, Any] | None = None
        self._keys: KeySet | None = None
        self._keys_at = float("-inf")
        self._pending: OrderedDict[str, PendingSignIn] = OrderedDict()

    async def begin(self, redirect_uri: str, return_to: str) -> tuple[str, str]:
        """The address of the provider to go to, and the state, which the browser must keep in a cookie."""
        provider = await self._discovered()
        now = self._clock()
        pending = PendingSignIn(secrets.token_urlsafe(32), secrets.token_urlsafe(48), redirect_uri, return_to, now)
        state = secrets.token_urlsafe(32)
        self._pending[state] = pending
        while len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=").decode()
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._settings.client_id,
                "redirect_uri": redirect_uri,
                "scope": " ".join(self._settings.scopes),
                "state": state,
                "nonce": pending.nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        endpoint = str(provider["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}", state

    async def complete(self, parameters: Mapping[str, str], state_of_browser: str) -> SignedIn:
        """Checks the response of the provider, which the browser brings. OidcError if anything does not fit."""
        state = parameters.get("state", "")
        if not state or not secrets.compare_digest(state.encode(), state_of_browser.encode()):
            raise OidcError("the state does not belong to a sign-in that began in this browser")
        pending = self._pending.pop(state, None)
        if pending is None or self._clock() - pending.began_at > PENDING_SECONDS:
            raise OidcError("the sign-in took too long or was completed before")
        if parameters.get("error"):
            raise OidcError(f"the provider refused: {parameters['error'][:100]!r}")
        if parameters.get("iss", self._settings.issuer) != self._settings.issuer:  # RFC 9207
            raise OidcError("the response is from another issuer")
        if not parameters.get("code"):
            raise OidcError("the response has no code")
        tokens = await self._exchange(parameters["code"], pending)
        claims = await self._checked(str(tokens.get("id_token", "")), pending.nonce)
        user, groups = claims.get(self._settings.user_claim), claims.get(self._settings.groups_claim, [])
        if not isinstance(user, str) or not user:
            raise OidcError(f"the id token has no {self._settings.user_claim!r}")
        lifetime = tokens.get("expires_in")
        return SignedIn(
            user,
            frozenset(each for each in groups if isinstance(each, str)) if isinstance(groups, list) else frozenset(),
            pending.return_to,
            str(tokens.get("access_token", "")),
            self._clock() + lifetime if isinstance(lifetime, (int, float)) and lifetime > 0 else None,
        )

    async def _exchange(self, code: str, pending: PendingSignIn) -> dict[str, Any]:
        provider = await self._discovered()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
            "client_id": self._settings.client_id,
        }
        secret = self._settings.client_secret
        auth = httpx.BasicAuth(self._settings.client_id, secret) if secret else None
        document = await self._json("POST", str(provider["token_endpoint"]), data=fields, auth=auth)
        if "id_token" not in document:
            raise OidcError("the provider gave no id token for the code")
        return document

    async def _checked(self, token: str, nonce: str) -> dict[str, Any]:
        settings, now = self._settings, self._clock()
        try:
            decoded = await self._decoded(token)
        except (JoseError, ValueError) as error:
            raise OidcError(f"the id token is not valid: {type(error).__name__}") from None
        claims = decoded
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != settings.issuer:
            raise OidcError("the id token is from another issuer")
        if settings.client_id not in audiences:
            raise OidcError("the id token is for another client")
        if (len(audiences) > 1 or "azp" in claims) and claims.get("azp") != settings.client_id:
            raise OidcError("the id token was given to another client")
        if not _is_time(claims.get("exp")) or claims["exp"] + _CLOCK_SKEW_SECONDS <= now:
            raise OidcError("the id token is expired")
        if not _is_time(claims.get("iat")) or claims["iat"] - _CLOCK_SKEW_SECONDS > now:
            raise OidcError("the id token is from the future")
        if "nbf" in claims and (not _is_time(claims["nbf"]) or claims["nbf"] - _CLOCK_SKEW_SECONDS > now):
            raise OidcError("the id token is not valid yet")
        given = claims.get("nonce")
        if not isinstance(given, str) or not secrets.compare_digest(given.encode(), nonce.encode()):
            raise OidcError("the id token belongs to another sign-in")
        return claims

    async def _decoded(self, token: str) -> dict[str, Any]:
        algorithms = list(self._settings.algorithms)
        try:
            return dict(jwt.decode(token, await self._key_set(), algorithms=algorithms).claims)
        except (JoseError, ValueError):
            if self._clock() - self._keys_at < _KEYS_AGAIN_SECONDS:
                raise
        self._keys = None  # the provider may have new keys
        return dict(jwt.decode(token, await self._key_set(), algorithms=algorithms).claims)

    async def _key_set(self) -> KeySet:
        if self._keys is None or self._clock() - self._keys_at > _KEYS_SECONDS:
            provider = await self._discovered()
            document = await self._json("GET", str(provider["jwks_uri"]))
            try:
                self._keys = KeySet.import_key_set(document)  # type: ignore[arg-type]
            except (JoseError, ValueError, KeyError, TypeError):
                raise OidcError("the keys of the provider cannot be read") from None
            self._keys_at = self._clock()
        return self._keys

    async def _discovered(self) -> dict[str, Any]:
        if self._provider is None:
            issuer = self._settings.issuer
            document = await self._json("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
            if document.get("issuer") != issuer:
                raise OidcError(f"the provider says that its issuer is {str(document.get('issuer'))[:200]!r}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                where = str(document.get(name, ""))
                if not where.startswith("https://") and not (
                    issuer.startswith("http://") and where.startswith("http://")
                ):
                    raise OidcError(f"the provider has no {name} with https")
            self._provider = document
        return self._provider

    async def _json(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        try:
            async with httpx.AsyncClient(
                timeout=_TIMEOUT_SECONDS, transport=self._transport, trust_env=False
            ) as client:
                response = await client.request(method, url, **options)
        except httpx.HTTPError as error:
            _log.warning("oidc_unreachable url=%s reason=%s", url, type(error).__name__)
            raise OidcError("the provider cannot be reached") from None
        if len(response.content) > _LARGEST_BYTES:
            raise OidcError("the response of the provider is too large")
        try:
            document = response.json()
        except ValueError:
            document = None
        if response.status_code != 200 or not isinstance(document, dict):
            reason = document.get("error") if isinstance(document, dict) else None
            _log.warning("oidc_refused url=%s status=%d error=%r", url, response.status_code, str(reason)[:100])
            raise OidcError(f"the provider responded with status {response.status_code}")
        return document


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
