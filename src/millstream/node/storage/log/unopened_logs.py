"""Logs that nobody has opened get old too: a few at a time, all of them in turn, for retention to reach.

A log that could not be opened waits for the next round, so that it holds up nobody.
"""

from collections import deque
from collections.abc import Container, Iterable

from millstream.formats.model.identifiers import TopicPartition

OPENED_AT_ONCE = 10
"""Opening runs on the event loop."""
ROUND_INTERVAL_MS = 10 * 60 * 1000


class UnopenedLogs:
    __slots__ = ("_began_ms", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[TopicPartition] = deque()
        self._began_ms: int | None = None

    def take(
        self, present: Iterable[TopicPartition], opened: Container[TopicPartition], now_ms: int
    ) -> list[TopicPartition]:
        """The next few that are to be opened."""
        if not self._waiting and (self._began_ms is None or now_ms - self._began_ms >= ROUND_INTERVAL_MS):
            self._began_ms = now_ms
            self._waiting.extend(sorted(each for each in present if each not in opened))
        taken: list[TopicPartition] = []
        while self._waiting and len(taken) < OPENED_AT_ONCE:
            partition = self._waiting.popleft()
            if partition not in opened:
                taken.append(partition)
        return taken
