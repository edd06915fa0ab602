"""SCRAM users and delegation tokens: list, add, change, remove.

A password is salted and hashed here. The cluster gets only the result, and stores keys that come from it.
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.admin.errors import InvalidArgumentError, NotFoundError, check
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client import Cluster
from millstream.raw_client.errors import error_code, refusal

MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
_NAMES = {number: name for name, (number, _) in MECHANISMS.items()}
DEFAULT_ITERATIONS = 8192
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_SALT_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH = 26
_TOKEN_ERRORS = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "there are no tokens: set delegation.token.secret.key on all nodes",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "tokens need a client that is authenticated by SASL or TLS, and not by a token"
    ),
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "there is no token with this HMAC",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the token has expired: create a new one",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only the owner, the requester and the renewers may do this",
}


@dataclass(frozen=True, slots=True)
class User:
    """A SCRAM user, with the iterations of each of its mechanisms."""

    name: str
    iterations: dict[str, int]


@dataclass(frozen=True, slots=True)
class Token:
    """A delegation token. A client logs in with its id as user and `hmac` as password, by SCRAM."""

    token_id: str
    hmac: str = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int


class UserAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def users(self, names: Sequence[str] | None = None) -> list[User]:
        """All users, or those with these names; raises NotFoundError for one that does not exist."""
        if names is not None and not names:
            return []
        # No names are all users. Apache Kafka does not respond to null from a caller without the right.
        rows = [{"name": name} for name in names or ()]
        response = self._cluster.call("describe_user_scram_credentials", users=rows)
        check("users", response)
        found = []
        for row in response.results:
            if row.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                raise NotFoundError(f"there is no user {row.user}")
            check(f"user {row.user}", row)
            infos = {_NAMES.get(info.mechanism, str(info.mechanism)): info.iterations for info in row.credential_infos}
            found.append(User(row.user, infos))
        return sorted(found, key=lambda user: user.name)

    def set_password(
        self, name: str, password: str, mechanisms: Sequence[str], iterations: int = DEFAULT_ITERATIONS
    ) -> None:
        """Adds a user, or changes the password of one, for these mechanisms."""
        if not name or not password:
            raise InvalidArgumentError("a user needs a name and a password that are not empty")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise InvalidArgumentError(f"iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        rows = []
        for mechanism in mechanisms:
            if mechanism not in MECHANISMS:
                raise InvalidArgumentError(f"{mechanism!r} is not a mechanism: give {' or '.join(MECHANISMS)}")
            number, algorithm = MECHANISMS[mechanism]
            salt = "".join(secrets.choice(_SALT_CHARACTERS) for _ in range(_SALT_LENGTH)).encode()
            rows.append(
                {
                    "name": name,
                    "mechanism": number,
                    "iterations": iterations,
                    "salt": salt,
                    "salted_password": hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations),
                }
            )
        for row in rows:
            self._alter(name, upsertions=[row])

    def add(
        self, name: str, password: str, mechanisms: Sequence[str] = (), iterations: int = DEFAULT_ITERATIONS
    ) -> list[str]:
        """Adds a user; InvalidArgumentError if it exists. Returns its mechanisms, by default all."""
        wanted = list(mechanisms or MECHANISMS)
        if name in {user.name for user in self.users()}:
            raise InvalidArgumentError(f"user {name} exists: `millstream user password {name}` changes the password")
        self.set_password(name, password, wanted, iterations)
        return wanted

    def change_password(self, name: str, password: str, iterations: int = DEFAULT_ITERATIONS) -> list[str]:
        """Changes the password of a user that exists, for all its mechanisms; returns them."""
        (user,) = self.users([name])
        self.set_password(name, password, list(user.iterations), iterations)
        return list(user.iterations)

    def remove(self, name: str) -> list[str]:
        """Removes a user with all its mechanisms; returns them."""
        (user,) = self.users([name])
        rows = [{"name": name, "mechanism": MECHANISMS[each][0]} for each in user.iterations]
        for row in rows:
            self._alter(name, deletions=[row])
        return list(user.iterations)

    def _alter(
        self, name: str, *, upsertions: Sequence[dict[str, Any]] = (), deletions: Sequence[dict[str, Any]] = ()
    ) -> None:
        """One request for each mechanism: Kafka refuses a user that is twice in a request (DUPLICATE_RESOURCE)."""
        response = self._cluster.call("alter_user_scram_credentials", upsertions=upsertions, deletions=deletions)
        for row in response.results:
            check(f"user {name}", row)

    # Tokens

    def tokens(self, owner: str | None = None) -> list[Token]:
        """The tokens that this client may see."""
        owners = None if owner is None else [_principal(owner)]
        response = self._cluster.call("describe_delegation_token", owners=owners)
        _check_token(response)
        return [
            Token(
                row.token_id,
                base64.b64encode(row.hmac).decode(),
                f"{row.principal_type}:{row.principal_name}",
                f"{row.token_requester_principal_type}:{row.token_requester_principal_name}",
                tuple(f"{each.principal_type}:{each.principal_name}" for each in row.renewers),
                row.issue_timestamp,
                row.expiry_timestamp,
                row.max_timestamp,
            )
            for row in response.tokens
        ]

    def create_token(self, owner: str | None, renewers: Sequence[str], max_lifetime_ms: int = -1) -> Token:
        of = _principal(owner) if owner is not None else {"principal_type": None, "principal_name": None}
        response = self._cluster.call(
            "create_delegation_token",
            owner_principal_type=of["principal_type"],
            owner_principal_name=of["principal_name"],
            renewers=[_principal(each) for each in renewers],
            max_lifetime_ms=max_lifetime_ms,
        )
        _check_token(response)
        return Token(
            response.token_id,
            base64.b64encode(response.hmac).decode(),
            f"{response.principal_type}:{response.principal_name}",
            f"{response.token_requester_principal_type}:{response.token_requester_principal_name}",
            tuple(renewers),
            response.issue_timestamp_ms,
            response.expiry_timestamp_ms,
            response.max_timestamp_ms,
        )

    def renew_token(self, hmac: str, period_ms: int = -1) -> int:
        """Returns the new time of expiry, in milliseconds since 1970."""
        response = self._cluster.call("renew_delegation_token", hmac=_digest(hmac), renew_period_ms=period_ms)
        _check_token(response)
        return int(response.expiry_timestamp_ms)

    def remove_token(self, token_id: str) -> None:
        """Removes the token with this id, for callers that do not have its HMAC. NotFoundError if there is none."""
        found = [token.hmac for token in self.tokens() if token.token_id == token_id]
        if not found:
            raise NotFoundError(f"there is no token {token_id}")
        self.expire_token(found[0])

    def expire_token(self, hmac: str, period_ms: int = -1) -> int:
        """Removes a token, or changes its time of expiry."""
        response = self._cluster.call("expire_delegation_token", hmac=_digest(hmac), expiry_time_period_ms=period_ms)
        _check_token(response)
        return int(response.expiry_timestamp_ms)


def _check_token(response: Message) -> None:
    if response.error_code:
        code = error_code(response.error_code)
        raise refusal("delegation token", code, _TOKEN_ERRORS.get(ErrorCode(response.error_code)))


def _principal(text: str) -> dict[str, str | None]:
    kind, colon, name = text.partition(":")
    if not colon:
        kind, name = "User", text
    if not kind or not name:
        raise InvalidArgumentError(f"{text!r} is not a principal: write User:NAME")
    return {"principal_type": kind, "principal_name": name}


def _digest(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidArgumentError(
            "the HMAC of a token is base64 text, as `millstream user token list` shows it"
        ) from None
