"""A bound on open files and index maps, by second chance.

An access sets one bit and nothing else, so that the hot path pays no bookkeeping. When too many are open, the oldest
that was not used since the last sweep is let go; whoever still holds the file (a read in flight) keeps it alive by
reference.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

from millstream.node.storage.disk import Disk, File

Opened = TypeVar("Opened")


class OnDemand(Generic[Opened]):
    """Something opened when first asked for and closed when the cache needs its place."""

    __slots__ = ("_cache", "_open", "opened", "path", "used")

    def __init__(self, cache: "FileCache", path: str, opener: Callable[[str], Opened]) -> None:
        self._cache = cache
        self._open = opener
        self.path = path
        self.opened: Opened | None = None
        self.used = False

    def get(self) -> Opened:
        self.used = True
        opened = self.opened
        if opened is None:
            opened = self._open(self.path)
            self.adopt(opened)
        return opened

    def adopt(self, opened: Opened) -> None:
        """Keep what was just opened elsewhere (a file on its creation)."""
        self.used = True
        self.opened = opened
        self._cache.admit(self)

    def close(self) -> None:
        """Forget it now; the cache drops the empty place on its next sweep."""
        self.opened = None


class FileCache:
    """Opens files for one log directory and keeps at most `max_open` of them."""

    __slots__ = ("_disk", "_lock", "_max_open", "_ring")

    def __init__(self, disk: Disk, max_open: int) -> None:
        self._disk = disk
        self._max_open = max(2, max_open)
        self._ring: deque[OnDemand[Any]] = deque()
        self._lock = Lock()  # reads prepared in threads open files too

    @property
    def open_count(self) -> int:
        return sum(1 for resource in self._ring if resource.opened is not None)

    def file(self, path: str) -> OnDemand[File]:
        return OnDemand(self, path, self._disk.open)

    def map(self, path: str) -> OnDemand[memoryview]:
        return OnDemand(self, path, self._disk.map)

    def admit(self, resource: OnDemand[Any]) -> None:
        with self._lock:
            ring = self._ring
            while len(ring) >= self._max_open:
                oldest = ring.popleft()
                if oldest.opened is None:
                    continue
                if oldest.used:
                    oldest.used = False
                    ring.append(oldest)
                else:
                    oldest.opened = None
            ring.append(resource)
