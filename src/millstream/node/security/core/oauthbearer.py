"""SASL OAUTHBEARER (RFC 7628): the first message of a client, and the checks of a JSON Web Token (RFC 7519).

A token must be signed with one of the known public keys and an asymmetric algorithm that fits the key. So a token
without a signature (`none`), or one that is signed with the public key as a shared secret (`HS256`), is refused. The
key is found by `kid` among the known keys only: headers that point to other keys (`jwk`, `jku`, `x5u`) are ignored.
Kafka's unsecured tokens are never accepted.

`joserfc` checks signatures. The keys come from `node/security/jwks.py`.
"""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from millstream.common.lazy_dataclass import dataclass
from millstream.node.security.core.sasl import Authenticated, AuthenticationError, Challenge

Key = RSAKey | ECKey | OKPKey
_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC:P-256": ("ES256",),
    "EC:P-384": ("ES384",),
    "EC:P-521": ("ES512",),
    "OKP:Ed25519": ("EdDSA", "Ed25519"),
}
"""The algorithms by type of key. There is no symmetric one."""
_EVERY_ALGORITHM = sorted({name for names in _ALGORITHMS.values() for name in names})
_REGISTRY = jws.JWSRegistry(algorithms=_EVERY_ALGORITHM, strict_check_header=False)
_FIRST_MESSAGE = re.compile(rb"n,(?:a=((?:[^=,\x00]|=2C|=3D)*))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_BEARER = re.compile(r"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
_LONGEST_CLAIM = 1024
_MOST_GROUPS = 256
_FAILED = b'{"status":"invalid_token"}'
_SMALLEST_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must have."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    groups_claim: str | None = None


@dataclass(frozen=True, slots=True)
class VerificationKeys:
    """Public keys for signatures: by id, and those without one."""

    by_id: Mapping[str, Key]
    nameless: tuple[Key, ...] = ()

    def all(self) -> tuple[Key, ...]:
        return (*self.by_id.values(), *self.nameless)


NO_KEYS = VerificationKeys({})


def read_keys(document: bytes) -> VerificationKeys:
    """The keys of a JWKS document that can verify signatures; ValueError if it has none."""
    try:
        parsed = json.loads(document)
        rows = [row for row in parsed["keys"] if isinstance(row, dict)]
    except (ValueError, TypeError, KeyError):
        raise ValueError('not a JSON Web Key Set: an object with "keys" is expected') from None
    by_id: dict[str, Key] = {}
    nameless: list[Key] = []
    for row in rows:
        if row.get("kty") not in ("RSA", "EC", "OKP") or row.get("use", "sig") != "sig":
            continue
        try:
            (key,) = KeySet.import_key_set({"keys": [_public(row)]}).keys
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if not isinstance(key, RSAKey | ECKey | OKPKey) or not algorithms_of(key):
            continue
        kid = row.get("kid")
        if isinstance(kid, str) and kid:
            by_id[kid] = key
        else:
            nameless.append(key)
    if not by_id and not nameless:
        raise ValueError("it has no public key for signatures (RSA of 2048 bits or more, EC or Ed25519)")
    return VerificationKeys(by_id, tuple(nameless))


_PRIVATE_FIELDS = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))


def _public(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name not in _PRIVATE_FIELDS}
    return {**kept, "kid": kept.get("kid") or "none"}


def algorithms_of(key: Key) -> tuple[str, ...]:
    """The algorithms with which this key may verify."""
    if isinstance(key, RSAKey):
        if key.public_key.key_size < _SMALLEST_RSA_BITS:
            return ()
        names = _ALGORITHMS["RSA"]
    else:
        names = _ALGORITHMS.get(f"{key.key_type}:{key.curve_name}", ())
    own = key.alg
    return tuple(name for name in names if own is None or name == own)


@dataclass(frozen=True, slots=True)
class TokenClaims:
    subject: str
    expires_at_ms: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenHead:
    algorithm: str
    key_id: str | None


def token_head(token: str) -> TokenHead:
    """The algorithm and the key id of a token, before anything in it is trusted."""
    parts = token.split(".")
    if len(parts) != 3:
        raise AuthenticationError("the token is not a signed JWT of three parts")
    head = _json(parts[0], "header")
    algorithm, kid = head.get("alg"), head.get("kid")
    if algorithm not in _EVERY_ALGORITHM:
        raise AuthenticationError(f"the algorithm {_shown(algorithm)} is not allowed: only asymmetric ones are")
    if "crit" in head or "b64" in head:
        raise AuthenticationError("the header of the token has critical extensions, which are not supported")
    if kid is not None and not isinstance(kid, str):
        raise AuthenticationError("the key id of the token is not text")
    return TokenHead(algorithm, kid)


def find_key(head: TokenHead, keys: VerificationKeys) -> Key | None:
    """The key for a token. None if its id is unknown: the keys may have been rotated."""
    if head.key_id is not None:
        return keys.by_id.get(head.key_id)
    fitting = [key for key in keys.all() if head.algorithm in algorithms_of(key)]
    return fitting[0] if len(fitting) == 1 else None


def check_token(token: str, head: TokenHead, key: Key, rules: TokenRules, now_s: float) -> TokenClaims:
    """The claims of a token whose signature, times, issuer and audience are right; raises AuthenticationError."""
    if head.algorithm not in algorithms_of(key):
        raise AuthenticationError(f"the algorithm {head.algorithm} does not fit the key")
    try:
        verified = jws.deserialize_compact(token, key, algorithms=[head.algorithm], registry=_REGISTRY)
    except (JoseError, ValueError, TypeError):
        raise AuthenticationError("the signature of the token is wrong") from None
    try:
        claims = json.loads(verified.payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise AuthenticationError("the token has no claims")
    return _checked(claims, rules, now_s)


def _checked(claims: dict[str, Any], rules: TokenRules, now_s: float) -> TokenClaims:
    expires = _time(claims, "exp")
    if expires is None:
        raise AuthenticationError("the token has no claim exp")
    if now_s >= expires + rules.clock_skew_s:
        raise AuthenticationError("the token has expired")
    if (begins := _time(claims, "nbf")) is not None and now_s < begins - rules.clock_skew_s:
        raise AuthenticationError("the token is not valid yet (nbf)")
    issued = _time(claims, "iat")
    if issued is None:
        raise AuthenticationError("the token has no claim iat")
    if now_s < issued - rules.clock_skew_s:
        raise AuthenticationError("the token was issued in the future (iat)")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise AuthenticationError(f"the issuer {_shown(claims.get('iss'))} is not sasl.oauthbearer.expected.issuer")
    if rules.audiences and not set(_texts(claims.get("aud"))) & set(rules.audiences):
        raise AuthenticationError(
            f"the audience {_shown(claims.get('aud'))} is not in sasl.oauthbearer.expected.audience"
        )
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip() or len(subject) > _LONGEST_CLAIM:
        raise AuthenticationError(f"the claim {rules.subject_claim} is not the name of a user")
    groups = _texts(claims.get(rules.groups_claim)) if rules.groups_claim else ()
    if len(groups) > _MOST_GROUPS:
        raise AuthenticationError(f"the token has {len(groups)} groups; at most {_MOST_GROUPS} are allowed")
    return TokenClaims(subject, int(expires * 1000), tuple(name for name in groups if 0 < len(name) <= _LONGEST_CLAIM))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise AuthenticationError(f"the claim {name} is not a time")
    return float(value)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _json(part: str, what: str) -> dict[str, Any]:
    try:
        parsed = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise AuthenticationError(f"the {what} of the token is not JSON")
    return parsed


def _shown(value: object) -> str:
    return repr(value)[:100]


Validate = Callable[[str], Awaitable[TokenClaims]]
"""Checks a token with the current keys."""


class OAuthBearerServer:
    """The server's side of one login.

    After a wrong token the client gets a message with the status, and sends one byte, before the login fails.
    """

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._failure: AuthenticationError | None = None

    async def step(self, message: bytes) -> Challenge | Authenticated:
        if self._failure is not None:
            raise AuthenticationError(_FAILED.decode(), is_public=True) from self._failure
        authorization_id, token = first_message(message)
        try:
            claims = await self._validate(token)
            if authorization_id and authorization_id != claims.subject:
                raise AuthenticationError("the client requested another authorization id than that of the token")
        except AuthenticationError as failure:
            self._failure = failure
            return Challenge(_FAILED)
        return Authenticated(b"", claims.subject, groups=claims.groups, expires_at_ms=claims.expires_at_ms)

    @property
    def failure(self) -> AuthenticationError | None:
        """Why the token was refused, for the log."""
        return self._failure


def first_message(message: bytes) -> tuple[str, str]:
    """The authorization id and the token of a client's first message."""
    found = _FIRST_MESSAGE.fullmatch(message)
    if found is None:
        raise AuthenticationError("Invalid OAUTHBEARER client first message", is_public=True)
    pairs: dict[str, str] = {}
    for pair in found[2].decode("ascii").split("\x01"):
        name, equals, value = pair.partition("=")
        if equals and name in pairs:
            raise AuthenticationError("Invalid OAUTHBEARER client first message", is_public=True)
        pairs[name] = value
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise AuthenticationError("Invalid OAUTHBEARER client first message: invalid 'auth' format", is_public=True)
    authorization_id = (found[1] or b"").decode(errors="replace").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, bearer[1]


def oauthbearer_client(token: str, extensions: Iterable[tuple[str, str]] = ()) -> bytes:
    """The first message of a client."""
    rest = "".join(f"\x01{name}={value}" for name, value in extensions)
    return f"n,,\x01auth=Bearer {token}{rest}\x01\x01".encode()
