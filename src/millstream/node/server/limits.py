"""Limits on the resources that peers can use: memory for requests, connections, and lines in the log.

Request memory: a connection that is idle, or has small requests, holds none of it. A frame that does not fit into one
read reserves its whole size before its first byte is kept, so frames that have begun can always be finished. A
connection that finds no room waits, unread. A size is only a claim: memory is allocated as the bytes arrive.
"""

import ipaddress
import logging
from collections import deque
from collections.abc import Callable

_KEPT_PER_SIZE = 4
_MAX_KEPT_BYTES = 8 << 20
_SMALLEST = 16 << 10
_TAKEN_AT_ONCE = 1 << 20
_ALWAYS_GRANTED = 64 << 10
"""Granted without waiting: the size of one read, so that large claims cannot stop all other connections."""


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
        """Whether a connection waits for room."""
        return bool(self._waiting)

    def take(self, size: int) -> bytearray | None:
        """Reserves `size` bytes and returns a buffer to begin with; None if there is no room now."""
        # One frame larger than the limit may pass when it is alone; otherwise it never could.
        if self._used and self._used + size > self._limit and size > _ALWAYS_GRANTED:
            return None
        rounded = _rounded(size)
        self._used += rounded
        kept = self._free.get(rounded)
        return kept.pop() if kept else bytearray(min(rounded, _TAKEN_AT_ONCE))

    def extend(self, buffer: bytearray, size: int) -> None:
        """Extends a full buffer towards the reserved size."""
        buffer += bytes(min(len(buffer), _rounded(size) - len(buffer)))

    def give_back(self, buffer: bytearray, size: int) -> None:
        """Ends the reservation of `size` bytes."""
        rounded = _rounded(size)
        self._used -= rounded
        if len(buffer) == rounded <= _MAX_KEPT_BYTES:
            kept = self._free.setdefault(rounded, [])
            if len(kept) < _KEPT_PER_SIZE:
                kept.append(buffer)
        # Each waiter tries once, and waits again if there is still no room.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()

    def wait(self, retry: Callable[[], None]) -> None:
        self._waiting.append(retry)

    def trim(self) -> None:
        """Frees the buffers kept for reuse; called periodically, so that a burst does not hold memory."""
        self._free.clear()


def _rounded(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length()) if size <= _MAX_KEPT_BYTES else size


def address_key(host: str) -> str:
    """What limits count as one address. A client with IPv6 has a whole network of 64 bits, and may use any address of
    it."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class OpenConnections:
    """The open connections of all listeners that share `max.connections`."""

    __slots__ = ("count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0


PER_SECOND = 20


class LogThrottle(logging.Filter):
    """Passes a limited number of lines per second, and reports later how many it dropped."""

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
