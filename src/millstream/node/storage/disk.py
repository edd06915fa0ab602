"""The disk as storage uses it: interfaces, jobs that may block, and a bounded cache of open files.

`node/runtime/disk.py` implements the interfaces with the operating system; tests inject faults. A `File` closes when
its last reference goes, so a read in flight keeps an evicted or deleted file alive without a count. All paths are
strings; every failure is an OSError.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from millstream.formats.records.batch import Bytes


class DirectoryEntry(NamedTuple):
    name: str
    is_directory: bool


class Space(NamedTuple):
    """The size of a file system, and how much of it this process may still use."""

    total_bytes: int
    usable_bytes: int


class File(Protocol):
    """An open file, read and written at positions. Safe to use from several threads."""

    @property
    def path(self) -> str: ...

    def fileno(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, position: int, data: Bytes) -> None:
        """All of `data`, or an OSError; after an error any part of it may have been written."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when data and size are on stable storage."""
        ...

    def is_resident(self, position: int, length: int) -> bool:
        """Whether reading this range would not wait for the disk, judged by samples. True if the platform does not
        support this."""
        ...

    def read_ahead(self, position: int, length: int) -> None:
        """Begin to read bytes that will be needed soon; does not wait for them."""
        ...

    def modified_ns(self) -> int: ...


class DirectoryLock(Protocol):
    """Held until released or the process ends."""

    def release(self) -> None: ...


OnError = Callable[[OSError, str, bool], None]
"""Takes an error, the path of the file or directory, and whether it was being read."""


class Disk(Protocol):
    on_error: OnError
    """Called with every error before it is raised, in the thread where it occurs."""

    def open(self, path: str) -> File:
        """An existing file, for reading and writing."""
        ...

    def create(self, path: str) -> File:
        """A new file; one that exists is emptied, and one that has other names (`link`) is left to them."""
        ...

    def link(self, path: str, other: str) -> None:
        """Give a file another name, in the same file system. Both names have the same bytes."""
        ...

    def is_shared(self, path: str) -> bool:
        """Whether the file has other names: then it must not be changed. False if there is no such file."""
        ...

    def copy(self, path: str, other: str, size: int) -> None:
        """Copy the first `size` bytes of a file to a new file, and bring them to stable storage. May block."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ns(self, path: str) -> int: ...

    def list(self, path: str) -> Sequence[DirectoryEntry]:
        """The directory's entries in no particular order."""
        ...

    def make_directory(self, path: str) -> None:
        """Create with parents; no error if it is there."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone already."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove a directory and all it holds; no error if it is gone already."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def sync_filesystem(self, path: str) -> None:
        """Bring all writes to the file system of `path` to stable storage; cheaper than many single files."""
        ...

    def read_bytes(self, path: str) -> bytes: ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Make or overwrite a file, not atomically: for files that can be rebuilt when they are damaged."""
        ...

    def write_atomically(self, path: str, data: bytes, *, durable: bool = True, modified_ns: int | None = None) -> None:
        """Replace the file atomically. `durable` also waits until it is on stable storage. `modified_ns`: the time of
        modification that the file gets; None for the present time."""
        ...

    def space(self, path: str) -> Space:
        """The space of the file system of `path`."""
        ...

    def map(self, path: str) -> memoryview:
        """A read-only memory map of the whole file; unmapped when its last reference goes."""
        ...

    def lock(self, path: str) -> DirectoryLock | None:
        """Take the exclusive lock of this file; None when another process holds it."""
        ...


_log = logging.getLogger("millstream.storage")


class Job:
    """Work that may block. Storage prepares it on the event loop; a thread calls `run`, then the loop calls `done`.

    `run` touches no state of the log, and returns an OSError instead of raising it. `done` gets that result.
    """

    __slots__ = ("_done", "_run", "name")

    def __init__(
        self, name: str, run: Callable[[], OSError | None], done: Callable[[OSError | None], None] | None = None
    ) -> None:
        self.name = name
        self._run = run
        self._done = done

    def run(self) -> OSError | None:
        try:
            return self._run()
        except OSError as error:
            return error

    def done(self, result: OSError | None) -> None:
        if self._done is not None:
            self._done(result)
        elif result is not None:
            _log.warning("job_failed job=%s error=%s", self.name, result)

    def __repr__(self) -> str:
        return f"Job({self.name})"


def removal(disk: Disk, name: str, paths: Sequence[str]) -> Job:
    """Remove files that were renamed before. If a crash leaves some of them, the next start removes them."""

    def remove() -> None:
        for path in paths:
            disk.remove(path)

    return Job(name, remove)


Opened = TypeVar("Opened")


class OnDemand(Generic[Opened]):
    """A file or map that is opened at its first use, and closed when the cache needs its slot."""

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
        """Keep a file that the caller has opened (on its creation)."""
        self.used = True
        self.opened = opened
        self._cache.admit(self)

    def close(self) -> None:
        """Close it now; the cache drops the empty slot on its next sweep."""
        self.opened = None


class FileCache:
    """Opens files for one log directory and keeps at most `max_open` of them, by second chance.

    An access sets one bit, so that the hot path pays no bookkeeping. When too many are open, the oldest one that was
    not used since the last sweep is closed.
    """

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
