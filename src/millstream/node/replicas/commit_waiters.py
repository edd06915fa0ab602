"""Who waits for a partition's high watermark to reach an offset; nothing polls.

A caller that no longer waits cancels, and is then not called.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from millstream.formats.model.errors import KafkaError

OnCommitted = Callable[[KafkaError | None], None]


class CommitWaiter:
    __slots__ = ("_callback", "offset")

    def __init__(self, offset: int, callback: OnCommitted) -> None:
        self.offset = offset
        self._callback: OnCommitted | None = callback

    def __lt__(self, other: "CommitWaiter") -> bool:
        return self.offset < other.offset

    @property
    def is_waiting(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def tell(self, error: KafkaError | None) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(error)


_SWEEP_SIZE = 64


class CommitWaiters:
    __slots__ = ("_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[CommitWaiter] = []
        self._sweep_at = _SWEEP_SIZE

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, offset: int, callback: OnCommitted) -> CommitWaiter:
        if len(self._heap) >= self._sweep_at:
            # While nothing is committed, those who gave up would pile up.
            self._heap = [waiter for waiter in self._heap if waiter.is_waiting]
            heapify(self._heap)
            self._sweep_at = max(_SWEEP_SIZE, 2 * len(self._heap))
        waiter = CommitWaiter(offset, callback)
        heappush(self._heap, waiter)
        return waiter

    def reached(self, offset: int) -> None:
        """Everything before `offset` is committed."""
        heap = self._heap
        while heap and heap[0].offset <= offset:
            heappop(heap).tell(None)

    def fail(self, error: KafkaError) -> None:
        waiting, self._heap = self._heap, []
        for waiter in sorted(waiting):
            waiter.tell(error)
