"""Names, passwords and tokens: how they are written down, and whether a request has one of them.

Needs none of the gateway's packages, so that `millstream serve` can check them before anything is started.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from dataclasses import dataclass


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
        given = rest.strip().encode("latin-1", "replace")  # as a header is decoded: the bytes that were sent
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
