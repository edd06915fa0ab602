"""The time of day for those who wait by it: it follows the clock forward and never goes back.

Sessions and locks of groups end at times of day. If the clock were set back an hour, those who are gone would keep what
they had for an hour more, and others wait for them.
"""

from millstream.node.environment import Environment


class SteadyTime:
    __slots__ = ("_ahead_ms", "_clock", "_loop")

    def __init__(self, environment: Environment) -> None:
        self._clock = environment.clock
        self._loop = environment.loop
        self._ahead_ms = self._difference_ms()

    def now_ms(self) -> int:
        ahead_ms = self._difference_ms()
        if ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms
        return int(self._loop.time() * 1000) + self._ahead_ms

    def _difference_ms(self) -> int:
        """By how much the clock is ahead of the loop's time, which never jumps."""
        return self._clock.now_ms() - int(self._loop.time() * 1000)
