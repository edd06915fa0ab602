"""The credentials of a request: a name with a password, a bearer token, or a client certificate.

Only the `Authorization` header and the certificate of the TLS connection count. Headers by which a proxy would speak
for another user (`X-Forwarded-User`, `Proxy-Authorization`, …) are not read at all.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass, field

from millstream.access.rules_file import CertificateRule, TokenClaims
from millstream.raw_client.client_properties import as_user, with_token

_LONGEST_NAME = 1024
_LONGEST_SECRET = 32 << 10
"""A token with many groups has several KiB."""


_KAFKAS_CLAIMS = TokenClaims()


class InvalidCredentialsError(ValueError):
    """The header is malformed. The text has no part of it."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Exactly one of `password` and `token` is set. Neither appears in logs: both are left out of `repr`."""

    name: str
    """The user; for a token, the one that it claims. It is true once the cluster has accepted the token."""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    mechanism: str = "PLAIN"
    groups: frozenset[str] = frozenset()
    """Groups that the token claims."""

    def digest(self, salt: bytes) -> bytes:
        """A key for caches. The salt is random for each process, so it tells nothing about the secret."""
        parts = (self.mechanism, self.name, self.token or "", self.password or "")
        content = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
        return hmac.digest(salt, content, "sha256")

    def settings(self, connection: dict[str, str]) -> dict[str, str]:
        """The settings of a connection to the cluster as this caller, from those of the gateway."""
        if self.token is not None:
            return with_token(connection, self.token)
        return as_user(connection, self.name, self.password or "", self.mechanism)


def parse_authorization(header: str, mechanism: str, claims: TokenClaims = _KAFKAS_CLAIMS) -> Credential | None:
    """None if the header is absent. InvalidCredentialsError if it is not `Basic` or `Bearer`, or malformed."""
    if not header:
        return None
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "basic":
        return _basic(rest.strip(), mechanism)
    if scheme.lower() == "bearer":
        return token_credential(rest.strip(), claims)
    raise InvalidCredentialsError("the scheme is neither Basic nor Bearer")


def _basic(text: str, mechanism: str) -> Credential:
    try:
        pair = base64.b64decode(text.encode("latin-1"), validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise InvalidCredentialsError("it is not base64 of NAME:PASSWORD in UTF-8") from None
    name, colon, password = pair.partition(":")
    return password_credential(name, password if colon else "", mechanism)


def password_credential(name: str, password: str, mechanism: str) -> Credential:
    if not name or not password or len(name) > _LONGEST_NAME or len(password) > _LONGEST_SECRET:
        raise InvalidCredentialsError("name or password is empty or too long")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name + password):
        raise InvalidCredentialsError("name or password has a control character")  # NUL separates the parts of PLAIN
    return Credential(name, password=password, mechanism=mechanism)


def token_credential(token: str, claims: TokenClaims = _KAFKAS_CLAIMS) -> Credential:
    if not token or len(token) > _LONGEST_SECRET:
        raise InvalidCredentialsError("the token is empty or too long")
    if not token.isascii() or any(ord(letter) <= 32 or ord(letter) == 127 for letter in token):
        raise InvalidCredentialsError("the token has characters that no token has")
    content = _claims(token)
    name, groups = content.get(claims.user), content.get(claims.groups)
    if isinstance(groups, str):
        groups = [groups]
    return Credential(
        # Who has no name shares nothing with others: consumers and streams belong to a name.
        name if isinstance(name, str) and name else f"(token {hashlib.sha256(token.encode()).hexdigest()[:32]})",
        token=token,
        mechanism="OAUTHBEARER",
        groups=frozenset(each for each in groups if isinstance(each, str)) if isinstance(groups, list) else frozenset(),
    )


def certificate_credential(rule: CertificateRule, mechanism: str) -> Credential:
    return Credential(rule.username, password=rule.password, mechanism=rule.mechanism or mechanism)


def _claims(token: str) -> dict[str, object]:
    """The claims of a JWT, not checked: the cluster checks the token before they are used."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
