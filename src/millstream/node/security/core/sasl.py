"""The authentication of one connection by SASL, as a state machine without input and output.

| stage | allowed | next stage |
|---|---|---|
| OPENING | ApiVersions, a few times | OPENING |
| OPENING | SaslHandshake with an enabled mechanism | EXCHANGE |
| EXCHANGE | a message of the mechanism | EXCHANGE, AUTHENTICATED |
| AUTHENTICATED | SaslHandshake, if the session has an end, once a second | EXCHANGE (re-authentication) |
| FAILED | nothing | |

Everything else leads to FAILED, and the caller closes the connection. The number of messages is limited. A
re-authentication must use the same mechanism and lead to the same principal (KIP-368).

The mechanisms are in `plain.py`, `scram.py` and `oauthbearer.py`; bytes and timers in
`node/security/sasl_server.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import Protocol

from millstream.common.lazy_dataclass import dataclass

_MOST_STEPS = 6
"""SCRAM needs two, OAUTHBEARER two, PLAIN one."""
_MOST_VERSIONS = 4
"""ApiVersions requests before the handshake: a client may try several versions."""
_SHORTEST_REAUTHENTICATION_SECONDS = 1.0


class AuthenticationError(Exception):
    """A login failed. The reason is for the log of the server; it has no secrets.

    Only a public reason is sent to the client: others could tell whether a user exists.
    """

    def __init__(self, reason: str, *, is_public: bool = False) -> None:
        super().__init__(reason)
        self.is_public = is_public


class IllegalStateError(Exception):
    """A request that is not allowed now. The connection ends."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The login continues: a message for the client."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The login succeeded. `data` is the last message for the client."""

    data: bytes = field(repr=False)
    user: str
    kind: str = "User"
    groups: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    """The end of the credential, for tokens."""
    by_token: bool = False


class Mechanism(Protocol):
    """The server's side of one login."""

    async def step(self, message: bytes) -> Challenge | Authenticated:
        """Takes a message of the client; raises AuthenticationError."""
        ...


class Stage(Enum):
    OPENING = "before the handshake"
    EXCHANGE = "authentication"
    AUTHENTICATED = "after authentication"
    FAILED = "after a failed authentication"


class SaslConversation:
    """The state of one connection."""

    def __init__(self, mechanisms: Mapping[str, Callable[[], Mechanism]]) -> None:
        self._mechanisms = mechanisms
        self.stage = Stage.OPENING
        self.mechanism = ""
        self.is_raw = False
        """Whether messages come without Kafka's request header: after a handshake of version 0."""
        self.is_repeated = False
        """Whether this is a re-authentication."""
        self.who: Authenticated | None = None
        self.ends_at_s: float | None = None
        """The end of the session, on the clock of the caller; None if it has none."""
        self._requested_mechanism = ""
        self._login: Mechanism | None = None
        self._steps = 0
        self._versions = 0
        self._last_repeat_s: float | None = None

    def api_versions(self) -> None:
        """An ApiVersions request arrived."""
        self._versions += 1
        if self.stage is not Stage.OPENING or self._versions > _MOST_VERSIONS:
            raise self.refuse(f"ApiVersions is not allowed {self.stage.value}")

    def handshake(self, mechanism: str, *, is_raw: bool, now_s: float) -> bool:
        """A SaslHandshake request arrived. Returns whether the mechanism is enabled."""
        if self.stage is Stage.AUTHENTICATED and self.may_repeat(now_s):
            self.is_repeated = True
            self._last_repeat_s = now_s
        elif self.stage is not Stage.OPENING:
            raise self.refuse(f"SaslHandshake is not allowed {self.stage.value}")
        make = self._mechanisms.get(mechanism)
        if make is None:
            self.stage = Stage.FAILED
            return False
        self._requested_mechanism = mechanism
        self.is_raw, self._login, self._steps, self.stage = is_raw, make(), 0, Stage.EXCHANGE
        return True

    def may_repeat(self, now_s: float) -> bool:
        """Whether a handshake begins a re-authentication now."""
        if self.stage is not Stage.AUTHENTICATED or self.ends_at_s is None:
            return False
        return self._last_repeat_s is None or now_s - self._last_repeat_s >= _SHORTEST_REAUTHENTICATION_SECONDS

    async def step(self, message: bytes) -> Challenge | Authenticated:
        """A message of the mechanism arrived. Raises AuthenticationError, after which nothing is allowed."""
        if self.stage is not Stage.EXCHANGE or self._login is None:
            raise self.refuse(f"SaslAuthenticate is not allowed {self.stage.value}")
        login, self._login = self._login, None  # no second message until this one is handled
        self._steps += 1
        try:
            if self.is_repeated and self._requested_mechanism != self.mechanism:
                raise AuthenticationError(
                    f"SASL mechanism '{self._requested_mechanism}' requested by client is not supported for "
                    f"re-authentication of mechanism '{self.mechanism}'",
                    is_public=True,
                )
            if self._steps > _MOST_STEPS:
                raise AuthenticationError(f"more than {_MOST_STEPS} messages")
            result = await login.step(message)
            if isinstance(result, Authenticated):
                self._check_unchanged(result)
        except BaseException:
            self.stage = Stage.FAILED
            raise
        if isinstance(result, Challenge):
            self._login = login
        else:
            self.stage, self.who, self.mechanism = Stage.AUTHENTICATED, result, self._requested_mechanism
        return result

    def _check_unchanged(self, result: Authenticated) -> None:
        before = self.who
        if self.is_repeated and before is not None and (before.kind, before.user) != (result.kind, result.user):
            raise AuthenticationError(
                f"Cannot change principals during re-authentication from {before.kind}.{before.user}: "
                f"{result.kind}.{result.user}",
                is_public=True,
            )

    def refuse(self, reason: str) -> IllegalStateError:
        self.stage, self._login = Stage.FAILED, None
        return IllegalStateError(reason)


def session_lifetime_ms(credential_expires_at_ms: int | None, max_reauth_ms: int, now_ms: int) -> int | None:
    """How long a session may last: None without an end. The shorter of both limits counts, as in Kafka."""
    limits = []
    if credential_expires_at_ms is not None:
        limits.append(credential_expires_at_ms - now_ms)
    if max_reauth_ms > 0:
        limits.append(max_reauth_ms)
    return max(0, min(limits)) if limits else None
