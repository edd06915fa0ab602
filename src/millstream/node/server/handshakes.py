"""Limits on the TLS handshakes of one listener: under way, per second, and per second of one address.

A handshake costs the node a signature, and its client almost nothing. Above a rate, a connection waits for its turn; if
the wait would be longer than the time limit of a handshake, or too many are under way, it is refused.
"""

from collections import Counter
from collections.abc import Callable

from millstream.common.lazy_dataclass import dataclass

_BURST_SECONDS = 2.0
_SHARE_OF_ADDRESS = 0.25
"""The largest part of the handshakes under way that one address may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeLimits:
    timeout_s: float = 10.0
    max_under_way: int = 1000
    per_second: int = 500
    per_second_of_address: int = 200


class HandshakeGate:
    def __init__(self, limits: HandshakeLimits, now: Callable[[], float]) -> None:
        self.limits = limits
        self._now = now
        self._under_way: Counter[str] = Counter()
        self._count = 0
        self._all = _Pace(limits.per_second)
        self._paces: dict[str, _Pace] = {}

    @property
    def under_way(self) -> int:
        return self._count

    def enter(self, host: str) -> float | None:
        """Seconds to wait before the handshake begins; None if the connection is refused. Ends with `leave`."""
        limits = self.limits
        if self._count >= limits.max_under_way:
            return None
        if self._under_way[host] >= max(1, int(limits.max_under_way * _SHARE_OF_ADDRESS)):
            return None
        now = self._now()
        pace = self._paces.get(host)
        if pace is None:
            pace = self._paces[host] = _Pace(limits.per_second_of_address)
        wait = max(self._all.wait(now), pace.wait(now))
        if wait > limits.timeout_s:
            return None
        self._all.count(now)
        pace.count(now)
        self._count += 1
        self._under_way[host] += 1
        return wait

    def leave(self, host: str) -> None:
        self._count -= 1
        self._under_way[host] -= 1
        if not self._under_way[host]:
            del self._under_way[host]

    def forget_idle(self) -> None:
        """Forgets addresses whose rate is unused; called periodically."""
        now = self._now()
        self._paces = {host: pace for host, pace in self._paces.items() if not pace.is_idle(now)}


class _Pace:
    """A rate with short bursts: `_full_at` is the time by which all counted events fit the rate."""

    __slots__ = ("_full_at", "_seconds")

    def __init__(self, per_second: int) -> None:
        self._seconds = 1.0 / per_second
        self._full_at = 0.0

    def wait(self, now: float) -> float:
        return max(0.0, self._full_at - _BURST_SECONDS - now)

    def count(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self._seconds

    def is_idle(self, now: float) -> bool:
        return self._full_at <= now
