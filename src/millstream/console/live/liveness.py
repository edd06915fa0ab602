"""Whether brokers respond: up, slow or down, from pings alone. Pure: the caller sends the pings and passes the time.

A ping is an ApiVersions request, which costs a broker the same in a cluster of any size. Requests that read data may
take long in a large cluster; they say nothing about a broker.
"""

from dataclasses import dataclass

SLOW_SECONDS = 2.0
DOWN_SECONDS = 10.0
"""A broker that lets a ping wait for so long is down. One that refuses connections is down at once."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping that has ended."""

    took_s: float
    error: str | None = None
    """Why there was no response."""


@dataclass(frozen=True, slots=True)
class Health:
    """Of one broker: why it is down, or how slow it is. Neither: it is up."""

    error: str | None = None
    slow: str | None = None


UP = Health()


class Liveness:
    """Remembers since when a broker has not responded."""

    def __init__(self) -> None:
        self._waiting_since: dict[int, float] = {}
        self._health: dict[int, Health] = {}

    def sent(self, number: int, now: float) -> None:
        """A ping was sent, or an earlier one is still waiting."""
        self._waiting_since.setdefault(number, now)

    def judge(self, number: int, ping: Ping | None, now: float, *, fenced: bool = False) -> Health:
        """`ping`: the one that has ended since the last call; None if it is still waiting. `fenced`: the controller
        does not hear the broker either, so a shorter silence is enough."""
        health = self._judged(number, ping, now, fenced=fenced)
        self._health[number] = health
        return health

    def _judged(self, number: int, ping: Ping | None, now: float, *, fenced: bool) -> Health:
        if ping is not None and ping.error is None:
            self._waiting_since.pop(number, None)
            return UP if ping.took_s < SLOW_SECONDS else Health(slow=f"A ping took {ping.took_s:.1f} s")
        silent_s = now - self._waiting_since.get(number, now)
        if ping is not None and ping.took_s < SLOW_SECONDS:
            return Health(error=ping.error)
        if silent_s >= DOWN_SECONDS or (fenced and silent_s >= SLOW_SECONDS):
            return Health(error="It did not respond in time")
        was = self._health.get(number, UP)
        if was.error is not None:
            return was  # until a ping succeeds
        return Health(slow=f"It has not responded for {silent_s:.0f} s") if silent_s >= SLOW_SECONDS else was

    def forget(self, number: int) -> None:
        self._waiting_since.pop(number, None)
        self._health.pop(number, None)
