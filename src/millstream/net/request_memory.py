"""Memory for requests that do not arrive in one read: bounded in all, and reused.

A connection that is idle, or whose requests are small, holds none of it. A frame that does not fit reserves its whole
size before its first byte is kept, so frames that have begun can always be finished; who finds no room waits, unread.
"""

from collections import deque
from collections.abc import Callable

_KEPT_PER_SIZE = 4
_LARGEST_KEPT = 8 << 20
_SMALLEST = 16 << 10


class RequestMemory:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._free: dict[int, list[bytearray]] = {}
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used

    def take(self, size: int) -> bytearray | None:
        """A buffer of at least `size` bytes, or None when there is no room now."""
        # One frame larger than the limit may pass when it is alone; otherwise it never could.
        if self._used and self._used + size > self._limit:
            return None
        rounded = max(_SMALLEST, 1 << (size - 1).bit_length()) if size <= _LARGEST_KEPT else size
        self._used += rounded
        kept = self._free.get(rounded)
        return kept.pop() if kept else bytearray(rounded)

    def give_back(self, buffer: bytearray) -> None:
        size = len(buffer)
        self._used -= size
        if size <= _LARGEST_KEPT:
            kept = self._free.setdefault(size, [])
            if len(kept) < _KEPT_PER_SIZE:
                kept.append(buffer)
        # Each is tried once: who still finds no room waits again.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()

    def wait(self, retry: Callable[[], None]) -> None:
        self._waiting.append(retry)

    def trim(self) -> None:
        """Lets go of buffers kept for reuse; called now and then, so that a burst does not hold memory for ever."""
        self._free.clear()
