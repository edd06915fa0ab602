"""Memory for requests that do not arrive in one read: bounded in all, and reused.

A connection that is idle, or whose requests are small, holds none of it. A frame that does not fit reserves its whole
size before its first byte is kept, so frames that have begun can always be finished; who finds no room waits, unread.
A size is only a claim: the memory itself is taken as the bytes arrive.

A limit on what strangers make us write: a flood of bad requests must not fill the disk with warnings about it.
"""

import logging
from collections import deque
from collections.abc import Callable

_KEPT_PER_SIZE = 4
_LARGEST_KEPT = 8 << 20
_SMALLEST = 16 << 10
_TAKEN_AT_ONCE = 1 << 20
_ALWAYS_GRANTED = 64 << 10
"""What nobody has to wait for: as much as one read brings, so that large claims of some cannot stop all others."""


class RequestMemory:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._free: dict[int, list[bytearray]] = {}
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiting)

    def take(self, size: int) -> bytearray | None:
        """Reserves `size` bytes and gives a buffer to begin with, or None when there is no room now."""
        # One frame larger than the limit may pass when it is alone; otherwise it never could.
        if self._used and self._used + size > self._limit and size > _ALWAYS_GRANTED:
            return None
        rounded = _rounded(size)
        self._used += rounded
        kept = self._free.get(rounded)
        return kept.pop() if kept else bytearray(min(rounded, _TAKEN_AT_ONCE))

    def extend(self, buffer: bytearray, size: int) -> None:
        """Makes a full buffer longer, towards the size that was reserved."""
        buffer += bytes(min(len(buffer), _rounded(size) - len(buffer)))

    def give_back(self, buffer: bytearray, size: int) -> None:
        """Ends the reservation of `size` bytes."""
        rounded = _rounded(size)
        self._used -= rounded
        if len(buffer) == rounded <= _LARGEST_KEPT:
            kept = self._free.setdefault(rounded, [])
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


def _rounded(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length()) if size <= _LARGEST_KEPT else size


PER_SECOND = 20


class LogThrottle(logging.Filter):
    """Lets so many lines of a logger pass each second, and says later how many it held back."""

    def __init__(self, per_second: int = PER_SECOND) -> None:
        super().__init__()
        self._per_second = per_second
        self._second = 0
        self._passed = 0
        self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(record.created)
        if second != self._second:
            if self._held_back:
                record.msg = f"{record.msg} (and {self._held_back} more lines like these before)"
            self._second, self._passed, self._held_back = second, 0, 0
        self._passed += 1
        if self._passed > self._per_second:
            self._held_back += 1
            return False
        return True
