"""How much time this process has really had: time in which it did not run is left out. Pure: the time is an argument.

A controller that did not run for a while (a machine with too much to do, a stopped process) finds heartbeats unread
when it goes on. Silence that is counted in this time is silence that the controller was there to notice.
"""

STEP_S = 0.1
"""How often to call `tick`."""
_MOST_S = 3 * STEP_S
"""How much of the time between two ticks counts at most."""
_MEMORY_S = 5.0
"""Lateness is an average over about this time: one pause says little, a machine with too much to do is late often."""
_MOST_LATENESS_S = 1.0
"""What one tick may add to it: a process that was stopped for long was late once."""


class Attention:
    def __init__(self, now_s: float) -> None:
        self._ticked_s = now_s
        self._counted_s = 0.0
        self._lateness_s = 0.0

    def now_s(self, now_s: float) -> float:
        """The time that counts, at this moment of the loop's time."""
        return self._counted_s + min(max(0.0, now_s - self._ticked_s), _MOST_S)

    @property
    def lateness_s(self) -> float:
        """By how much ticks were late lately, on average."""
        return self._lateness_s

    def tick(self, now_s: float) -> float:
        """The process runs; the time that counts."""
        elapsed_s = max(0.0, now_s - self._ticked_s)
        counted_s = self.now_s(now_s)
        late_s = min(max(0.0, elapsed_s - STEP_S), _MOST_LATENESS_S)
        self._lateness_s += (late_s - self._lateness_s) * STEP_S / _MEMORY_S
        self._ticked_s, self._counted_s = now_s, counted_s
        return counted_s
