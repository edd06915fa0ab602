"""Deadlines by key. The state machine sets them, the shell asks when the next one is and runs what is due."""

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

from millstream.node.coordination.core.outcome import Outcome

Action = Callable[[int], Outcome[Any] | None]
"""Takes the time; returns what is to be written, if anything."""
_STALE_ENTRIES = 64


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []
        self._current: dict[Hashable, tuple[int, int, Action]] = {}
        self._order = count()
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when a deadline was set that is earlier than all others: the shell must look sooner."""

    def set(self, key: Hashable, deadline_ms: int, action: Action) -> None:
        """Sets or moves the deadline of `key`."""
        earliest = self.next_deadline_ms
        number = next(self._order)
        self._current[key] = (deadline_ms, number, action)
        heapq.heappush(self._heap, (deadline_ms, number, key))
        self._drop_stale()
        if earliest is None or deadline_ms < earliest:
            self.on_earlier()

    def cancel(self, key: Hashable) -> None:
        self._current.pop(key, None)
        self._drop_stale()

    def _drop_stale(self) -> None:
        """What was moved or cancelled stays in the heap; not for ever, if its time is far away."""
        if len(self._heap) > 2 * len(self._current) + _STALE_ENTRIES:
            self._heap = [(deadline_ms, number, key) for key, (deadline_ms, number, _) in self._current.items()]
            heapq.heapify(self._heap)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._current

    @property
    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline_ms, number, key = self._heap[0]
            current = self._current.get(key)
            if current is not None and current[1] == number:
                return deadline_ms
            heapq.heappop(self._heap)  # moved or cancelled
        return None

    def take_due(self, now_ms: int) -> Action | None:
        """One action whose time has come, earliest first; None when there is none."""
        deadline_ms = self.next_deadline_ms
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        return self._current.pop(key)[2]
