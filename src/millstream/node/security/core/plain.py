"""SASL PLAIN (RFC 4616): the password itself, in one message. Only over TLS, or between processes of one machine.

All comparisons take the same time, whether the user exists or not.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping

from millstream.node.security.core.sasl import Authenticated, AuthenticationError


class PlainServer:
    """The server's side of one login. `users` returns the passwords by user."""

    def __init__(self, users: Callable[[], Mapping[str, str]]) -> None:
        self._users = users

    async def step(self, message: bytes) -> Authenticated:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationError("the message is not UTF-8") from None
        if len(parts) != 3:
            raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        for name, value in (("username", user), ("password", password)):
            if not value:
                raise AuthenticationError(f"Authentication failed: {name} not specified", is_public=True)
        if not _fits(self._users(), user, password):
            raise AuthenticationError("Authentication failed: Invalid username or password", is_public=True)
        if authorization_id and authorization_id != user:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username",
                is_public=True,
            )
        return Authenticated(b"", user)


def _fits(users: Mapping[str, str], user: str, password: str) -> bool:
    expected = users.get(user)
    known = hashlib.sha256((expected if expected is not None else "").encode()).digest()
    given = hashlib.sha256(password.encode()).digest()
    return hmac.compare_digest(known, given) and expected is not None


def plain_client(user: str, password: str) -> bytes:
    """The one message of a client."""
    return b"\0".join((b"", user.encode(), password.encode()))
