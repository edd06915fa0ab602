"""Virtual time: a heap of things to come, run one after another in one thread.

Nothing here waits. Time stands still while something runs and then jumps to the next entry, so a minute of a quiet
cluster costs nothing, and the same entries give the same run.
"""

import heapq
from collections.abc import Callable
from typing import Any

_Entry = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Scheduler:
    """Entries due at the same moment run in the order in which they were made."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self.steps = 0
        """How many entries were run."""
        self._entries: list[_Entry] = []
        self._made = 0
        self._is_interrupted = False

    def after(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, function, *arguments)

    def at(self, moment: float, function: Callable[..., None], *arguments: Any) -> None:
        """Runs the function at that moment, or now if it has passed. It cannot be taken back: who may change its mind
        looks when it is called."""
        self._made += 1
        now = self.now
        heapq.heappush(self._entries, (moment if moment > now else now, self._made, function, arguments))

    def run(self, *, until: float, stop: Callable[[], bool] | None = None) -> bool:
        """Runs what is due up to that moment, and says whether `stop`, asked after each entry, or `interrupt` ended it
        before."""
        entries = self._entries
        pop = heapq.heappop
        while entries and entries[0][0] <= until:
            self.now, _, function, arguments = pop(entries)
            self.steps += 1
            function(*arguments)
            if self._is_interrupted or (stop is not None and stop()):
                return True
        self.now = max(self.now, until)
        return False

    def interrupt(self) -> None:
        """Nothing is run after the entry that runs now: something was found."""
        self._is_interrupted = True

    def clear(self) -> None:
        """Forgets everything: the simulation is over."""
        self._entries.clear()
