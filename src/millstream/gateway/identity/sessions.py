"""Sessions of the console: a signed cookie with a random id, and what it stands for in memory.

The cookie is HttpOnly and SameSite=Lax, is sent below /console only, and Secure with HTTPS. It has an absolute end and
an idle time. A sign-in always makes a new id, so an id that was planted in a browser is worth nothing. A password
of a session is needed to connect as its user; it is kept in memory only, and gone with the session.
"""

import hashlib
import hmac
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.gateway.identity.credentials import Credential

COOKIE = "millstream_session"
PATH = "/console"
LIFETIME_SECONDS = 8 * 3600.0
IDLE_SECONDS = 3600.0
_MOST = 10_000
_LONGEST_COOKIE = 512


@dataclass(slots=True)
class ConsoleSession:
    id: str = field(repr=False)
    user: str
    groups: frozenset[str]
    credential: Credential | None
    """None: pages act with the gateway's own connection, within the role of the user."""
    ends_at: float
    """Seconds since 1970."""
    used_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    ended: bool = False


class ConsoleSessions:
    """Used in the event loop."""

    def __init__(
        self,
        *,
        lifetime_s: float = LIFETIME_SECONDS,
        idle_s: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lifetime_s = lifetime_s
        self._idle_s = idle_s
        self._clock = clock
        self._key = os.urandom(32)
        """New at each start: then users sign in again, as their sessions are in memory anyway."""
        self._open: OrderedDict[str, ConsoleSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, user: str, groups: frozenset[str], credential: Credential | None, ends_at: float | None = None
    ) -> ConsoleSession:
        now = self._clock()
        end = min(now + self._lifetime_s, ends_at or now + self._lifetime_s)
        session = ConsoleSession(secrets.token_urlsafe(32), user, groups, credential, end, now)
        self._open[session.id] = session
        while len(self._open) > _MOST:
            self.end(next(iter(self._open.values())))
        return session

    def end(self, session: ConsoleSession) -> None:
        session.ended = True
        session.credential = None
        self._open.pop(session.id, None)

    def is_valid(self, session: ConsoleSession) -> bool:
        """Ends a session whose time is over."""
        now = self._clock()
        if not session.ended and (now >= session.ends_at or now - session.used_at > self._idle_s):
            self.end(session)
        return not session.ended

    def touch(self, session: ConsoleSession) -> None:
        session.used_at = self._clock()

    def find(self, cookie: str) -> ConsoleSession | None:
        """The session of a cookie; None if it is not ours, not open, or over."""
        if not cookie or len(cookie) > _LONGEST_COOKIE or not cookie.isascii():
            return None
        session_id, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._signature(session_id), signature):
            return None
        session = self._open.get(session_id)
        if session is None or not self.is_valid(session):
            return None
        self._open.move_to_end(session_id)
        self.touch(session)
        return session

    def cookie(self, session: ConsoleSession, *, secure: bool) -> str:
        """The value of the Set-Cookie header."""
        value = f"{session.id}.{self._signature(session.id)}"
        return set_cookie(COOKIE, value, PATH, max(1, int(session.ends_at - self._clock())), secure=secure)

    def _signature(self, session_id: str) -> str:
        return self.sign("session", session_id)

    def sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


def set_cookie(name: str, value: str, path: str, max_age_s: int, *, secure: bool) -> str:
    return f"{name}={value}; Path={path}; Max-Age={max_age_s}; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")


def clear_cookie(name: str, path: str, *, secure: bool) -> str:
    return set_cookie(name, "", path, 0, secure=secure)


def read_cookie(header: str, name: str) -> str:
    """The value of a cookie; the first of several with the same name."""
    for part in header.split(";"):
        given, _, value = part.strip().partition("=")
        if given == name:
            return value
    return ""
