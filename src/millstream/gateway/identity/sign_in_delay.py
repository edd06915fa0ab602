"""Slows down failed sign-ins, by address and by user, with bounded memory.

The response to a failure is late: the delay doubles with each failure, up to a limit, and is forgotten after a while
without failures. A correct password is never delayed, so one user cannot lock out another. Since a caller could wait
in many connections at once, the number of failures that wait is limited, by address and in total; beyond it an attempt
that has not been verified before is refused at once (429).
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millstream.gateway.http.audit import AUTHENTICATION, AuditTrail

_FIRST_SECONDS, _LONGEST_SECONDS = 0.2, 5.0
_FORGOTTEN_AFTER_SECONDS = 600.0
_KEPT = 10_000
_WAITING_PER_ADDRESS = 8
_WAITING = 256
_LONGEST_NAME = 80
_log = logging.getLogger("millstream.gateway.sign_in")


class TooManyAttemptsError(Exception):
    """Too many failed attempts wait already."""


class SignInDelay:
    """Used in the event loop."""

    def __init__(
        self,
        trail: AuditTrail | None = None,
        *,
        first_s: float = _FIRST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trail = trail or AuditTrail()
        self._first_s = first_s
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """Number of failures and time of the last, by ("address" or "user", name)."""
        self._attempts: dict[str, int] = {}
        """Attempts by address that are being verified or wait after a failure."""
        self._total = 0

    @asynccontextmanager
    async def attempt(self, address: str) -> AsyncIterator[None]:
        """Around the verification of credentials that are not known yet, and the delay after a failure."""
        if self._total >= _WAITING or self._attempts.get(address, 0) >= _WAITING_PER_ADDRESS:
            self._trail.record_rarely(AUTHENTICATION, "denied", "", address, reason="too many failed sign-ins wait")
            raise TooManyAttemptsError
        self._total += 1
        self._attempts[address] = self._attempts.get(address, 0) + 1
        try:
            yield
        finally:
            self._total -= 1
            self._attempts[address] -= 1
            if not self._attempts[address]:
                del self._attempts[address]

    async def after_failure(self, address: str, user: str, method: str, reason: str) -> None:
        """Logs the failure and waits. `reason` must not have secrets."""
        delay_s = self.note(address, user)
        _log.warning(
            "sign_in_failed address=%s user=%s delay_s=%.1f reason=%s", address, _shown(user), delay_s, _shown(reason)
        )
        self._trail.record(AUTHENTICATION, "failure", user, address, mechanism=method, reason=reason)
        await asyncio.sleep(delay_s)

    def note(self, address: str, user: str) -> float:
        """Counts a failure; the delay in seconds."""
        now = self._clock()
        counts = [self._count(("address", address), now)]
        if user:
            counts.append(self._count(("user", user), now))
        return float(min(self._first_s * 2 ** min(max(counts) - 1, 20), _LONGEST_SECONDS))

    def succeeded(self, address: str, user: str) -> None:
        """The user knows the password: so its earlier failures do not count. Those of the address stay, because an
        attacker with an account of its own could reset them."""
        self._failures.pop(("user", user), None)

    def _count(self, key: tuple[str, str], now: float) -> int:
        count, at = self._failures.pop(key, (0, now))
        count = 1 if now - at > _FORGOTTEN_AFTER_SECONDS else count + 1
        self._failures[key] = (count, now)
        while len(self._failures) > _KEPT:
            self._failures.popitem(last=False)
        return count


def _shown(text: str) -> str:
    """On one line, short, and without characters that could fake a log line."""
    return repr(text[:_LONGEST_NAME])
