"""Which available records may be handed out now: those released, those whose time has come, the first of each key.

Without delays and key order this is only the list of released offsets. With them every record that was read from the
log passes through here: it waits until it is due, and until the record of the same key before it is done with. A record
that is not due holds back the later ones of its key; that is what order means.
"""

from collections import deque
from heapq import heappop, heappush

from millstream.node.queues.core.record_runs import Run, RunList
from millstream.node.queues.core.record_state import RecordState


class DeliveryGate:
    __slots__ = ("_by_key", "_due", "_ready", "_runs", "ordered")

    def __init__(self, runs: RunList, ordered: bool) -> None:
        self.ordered = ordered
        self._runs = runs
        self._ready: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._by_key: dict[bytes, deque[int]] = {}

    def admit(self, run: Run, now_ms: int) -> None:
        """A record of its own run was read from the log; offsets come in ascending order."""
        if self.ordered and run.key is not None:
            queue = self._by_key.setdefault(run.key, deque())
            queue.append(run.first)
            if queue[0] != run.first:
                return
        self._first_of_its_key(run, now_ms)

    def _first_of_its_key(self, run: Run, now_ms: int) -> None:
        if run.due_ms > now_ms:
            heappush(self._due, (run.due_ms, run.first))
        else:
            heappush(self._ready, run.first)

    def release(self, run: Run) -> None:
        """It is available again."""
        heappush(self._ready, run.first)

    def finish(self, run: Run, now_ms: int) -> None:
        """It is done with: the next of its key may go."""
        if not self.ordered or run.key is None:
            return
        queue = self._by_key.get(run.key)
        if queue is None:
            return
        try:
            queue.remove(run.first)
        except ValueError:
            return
        while queue:
            following = self._runs.find(queue[0])
            if following is None or following.state is not RecordState.AVAILABLE:
                if following is not None and following.state is RecordState.ACQUIRED:
                    return
                queue.popleft()
                continue
            self._first_of_its_key(following, now_ms)
            return
        del self._by_key[run.key]

    @property
    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def first_ready(self, now_ms: int) -> int | None:
        """The lowest offset that may go; None if there is none now."""
        while self._due and self._due[0][0] <= now_ms:
            heappush(self._ready, heappop(self._due)[1])
        while self._ready:
            run = self._runs.find(self._ready[0])
            if run is not None and run.state is RecordState.AVAILABLE and run.transition is None:
                return self._ready[0]
            heappop(self._ready)  # acquired meanwhile, or gone
        return None

    def pop(self) -> None:
        """Takes out what `first_ready` returned."""
        heappop(self._ready)
