"""The disk that storage needs, as interfaces. `node/runtime/disk.py` joins it to the operating system; tests inject
faults.

A `File` closes when its last reference goes, so a reader in flight keeps an evicted or deleted file alive and nobody
counts. All paths are strings; every failure is an OSError.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from millstream.formats.records.batch import Bytes


class DirectoryEntry(NamedTuple):
    name: str
    is_directory: bool


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
        """Whether reading this range would not wait for the disk, judged by samples. True when the platform cannot
        tell."""
        ...

    def read_ahead(self, position: int, length: int) -> None:
        """Begin to fetch bytes that will be wanted soon; does not wait for them."""
        ...

    def modified_ns(self) -> int: ...


class DirectoryLock(Protocol):
    """Held until released or the process ends."""

    def release(self) -> None: ...


OnError = Callable[[OSError, str, bool], None]
"""Takes an error, the path of the file or directory, and whether it was being read."""


class Disk(Protocol):
    on_error: OnError
    """Called with every error before it is raised, in the thread that meets it."""

    def open(self, path: str) -> File:
        """An existing file, for reading and writing."""
        ...

    def create(self, path: str) -> File:
        """A new file; one that exists is emptied."""
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
        """Bring all that was written near `path` to stable storage, in one pass; cheaper than many files one by one."""
        ...

    def read_bytes(self, path: str) -> bytes: ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Make or overwrite a file, not as one step: for what can be made anew when it turns out damaged."""
        ...

    def write_atomically(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the file as one step. `durable` also waits until it is on stable storage."""
        ...

    def map(self, path: str) -> memoryview:
        """A read-only memory map of the whole file; unmapped when its last reference goes."""
        ...

    def lock(self, path: str) -> DirectoryLock | None:
        """Take the exclusive lock that this file stands for; None when another process holds it."""
        ...
