"""The simulated disk: the page cache that programs see, and the stable storage that survives a power cut.

A power cut keeps all synced data and any part of the rest: single pages, parts of a page at sector boundaries, garbage
in new pages that were never written, old or new file sizes, and a prefix of the latest changes of each directory
(renames are atomic, and changes of one directory keep their order, as in a journal). A killed process loses nothing.
Faults: no space, write errors, torn writes, read errors, fsyncs that fail and drop the pages, a kill at the nth
operation.
"""

import errno
import random
from collections.abc import Callable, Sequence

from millstream.formats.records.batch import Bytes
from millstream.node.storage.disk import DirectoryEntry, OnError, Space
from millstream.node.storage.file_formats import CLEANED_SUFFIX, LOG_SUFFIX

_DISK_BYTES = 1 << 40
SECTOR_BYTES = 512
PAGE_SECTORS = 8
_CLEANED = LOG_SUFFIX + CLEANED_SUFFIX


class Killed(BaseException):
    """The process was killed within a disk operation."""


class _Inode:
    __slots__ = ("content", "dirty", "is_cold", "is_shared", "modified_ns", "stable")

    def __init__(self) -> None:
        self.is_shared = False
        """Whether it ever had two names. Files of one name that count as shared are only copied more often."""
        self.content = bytearray()
        self.stable = bytearray()
        self.dirty: set[int] = set()
        self.modified_ns = 0
        self.is_cold = False

    def write(self, position: int, data: Bytes) -> None:
        if position > len(self.content):
            self._touch(len(self.content), position)
            self.content += bytes(position - len(self.content))
        self.content[position : position + len(data)] = data
        self._touch(position, position + len(data))

    def truncate(self, size: int) -> None:
        before = len(self.content)
        if size < before:
            del self.content[size:]
        else:
            self.content += bytes(size - before)
        self._touch(min(size, before), max(size, before, len(self.stable)))

    def _touch(self, start: int, end: int) -> None:
        if end > start:
            self.dirty.update(range(start // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1))

    def sync(self) -> None:
        size = len(self.content)
        if len(self.stable) > size:
            del self.stable[size:]
        else:
            self.stable += bytes(size - len(self.stable))
        for sector in self.dirty:
            start = sector * SECTOR_BYTES
            self.stable[start : start + SECTOR_BYTES] = self.content[start : start + SECTOR_BYTES]
        del self.stable[size:]
        self.dirty.clear()

    def forget_dirty(self) -> None:
        """Marks the pages clean although they were not written, as kernels do after a failed write-back."""
        self.dirty.clear()

    def lose_power(self, randomness: random.Random) -> None:
        old, new = len(self.stable), len(self.content)
        size = randomness.choice((old, new))
        if new > old and randomness.random() < 0.3:
            size = randomness.randint(old, new)
        result = bytearray(self.stable[:size])
        result += bytes(size - len(result))
        fate = ""
        for sector in sorted(self.dirty):
            if sector % PAGE_SECTORS == 0 or not fate:
                fate = randomness.choice(("kept", "kept", "lost", "torn", "garbage"))
            start = sector * SECTOR_BYTES
            end = min(start + SECTOR_BYTES, size)
            if start >= end:
                continue
            if fate == "kept" or (fate == "torn" and randomness.random() < 0.5):
                piece = self.content[start:end]
                result[start : start + len(piece)] = piece
            elif fate == "garbage" and start >= old:
                result[start:end] = randomness.randbytes(end - start)
        self.content = result
        self.stable = bytearray(result)
        self.dirty.clear()
        self.is_cold = True


class _Directory:
    __slots__ = ("entries", "pending", "stable")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        self.stable: dict[str, _Inode | _Directory] = {}
        self.pending: list[Callable[[dict[str, _Inode | _Directory]], None]] = []

    def change(self, operation: "Callable[[dict[str, _Inode | _Directory]], None]") -> None:
        operation(self.entries)
        self.pending.append(operation)

    def put(self, name: str, item: "_Inode | _Directory") -> None:
        self.change(lambda entries: entries.__setitem__(name, item))

    def drop(self, name: str) -> None:
        self.change(lambda entries: _forget(entries, name))

    def rename(self, old: str, new: str) -> None:
        item = self.entries[old]

        def move(entries: dict[str, _Inode | _Directory]) -> None:
            entries.pop(old, None)
            entries[new] = item

        self.change(move)

    def sync(self) -> None:
        self.stable = dict(self.entries)
        self.pending.clear()

    def lose_power(self, randomness: random.Random) -> None:
        for operation in self.pending[: randomness.randint(0, len(self.pending))]:
            operation(self.stable)
        self.entries = dict(self.stable)
        self.pending.clear()
        for item in self.entries.values():
            item.lose_power(randomness)

    def sync_all(self) -> None:
        for item in self.entries.values():
            if isinstance(item, _Directory):
                item.sync_all()
            else:
                item.sync()
        self.sync()


def _forget(entries: dict[str, _Inode | _Directory], name: str) -> None:
    entries.pop(name, None)


def _size(item: _Inode | _Directory) -> int:
    return sum(map(_size, item.entries.values())) if isinstance(item, _Directory) else len(item.content)


class SimulatedDisk:
    """The disk of one machine. It survives processes; each process uses it through a `DiskSession`."""

    def __init__(self, seed: str) -> None:
        self.randomness = random.Random(f"{seed}/disk")
        self.root = _Directory()
        self.room: int | None = None
        """Bytes by which files may still grow; None for no limit."""
        self.writes_fail = False
        self.writes_tear = False
        """Whether each write stores only a part and then fails."""
        self.reads_fail = False
        self.dead_roots: set[str] = set()
        """Directories on a disk of their own that has failed: every operation below them fails."""
        self.is_observed = False
        """Whether an invariant is reading now: its reads do not fail."""
        self.syncs_fail = False
        self.slowness = 1.0
        self.locks: dict[str, DiskSession] = {}
        self.operations = 0
        self._die_in: int | None = None
        self._die_within = ""
        self._may_die: Callable[[], bool] = lambda: True
        self._die: Callable[[], None] = lambda: None
        self.before_swap: Callable[[], None] = lambda: None
        """Called before the cleaner replaces a segment by its compacted copy."""

    def make_root(self, path: str) -> None:
        """Creates a directory on stable storage, as an administrator would."""
        self.attach(lambda: 0).make_directory(path)
        self.root.sync_all()

    def attach(self, now_ns: Callable[[], int]) -> "DiskSession":
        return DiskSession(self, now_ns)

    def lose_power(self) -> None:
        """Drops unsynced data at random. What remains is on stable storage."""
        self.locks.clear()
        self.root.lose_power(self.randomness)

    def heal(self) -> None:
        """Ends all faults."""
        self.room = None
        self.writes_fail = self.writes_tear = self.reads_fail = self.syncs_fail = False
        self.dead_roots.clear()
        self.slowness = 1.0
        self._die_in = None

    def kill_at(
        self,
        operations: int,
        die: Callable[[], None],
        *,
        within: str = "",
        may_die: Callable[[], bool] = lambda: True,
    ) -> None:
        """Kills the process within the nth change from now on, or from the first change of a file whose name ends with
        `within`. `may_die` is checked at that time."""
        self._die_in, self._die, self._die_within, self._may_die = operations, die, within, may_die

    def is_dead(self, path: str) -> bool:
        return bool(self.dead_roots) and any(path == each or path.startswith(f"{each}/") for each in self.dead_roots)

    def job_seconds(self) -> float:
        """Duration of a job in a thread."""
        return (0.0002 + self.randomness.expovariate(1 / 0.001)) * self.slowness

    def count_operation(self, path: str) -> bool:
        """Whether the process dies within this operation."""
        self.operations += 1
        if self._die_in is None:
            return False
        if self._die_within:
            if not path.endswith(self._die_within):
                return False
            self._die_within = ""
        self._die_in -= 1
        if self._die_in > 0:
            return False
        self._die_in = None
        return self._may_die()

    def die(self) -> None:
        self._die()
        raise Killed


class SimulatedLock:
    def __init__(self, session: "DiskSession", path: str) -> None:
        self._session = session
        self._path = path

    def release(self) -> None:
        locks = self._session.disk.locks
        if locks.get(self._path) is self._session:
            del locks[self._path]


class SimulatedFile:
    __slots__ = ("_inode", "_path", "_session")

    def __init__(self, session: "DiskSession", path: str, inode: _Inode) -> None:
        self._session = session
        self._path = path
        self._inode = inode

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor", self._path)

    def read_at(self, position: int, length: int) -> bytes:
        self._session.begin_read(self._path)
        return bytes(self._inode.content[position : position + length])

    def write_at(self, position: int, data: Bytes) -> None:
        session, inode = self._session, self._inode
        disk = session.disk
        fits = len(data)
        if session.begin_change(self._path):
            inode.write(position, memoryview(data)[: disk.randomness.randrange(fits + 1)])
            disk.die()
        if disk.writes_fail:
            raise session.failed(self._path)
        if disk.writes_tear:
            inode.write(position, memoryview(data)[: disk.randomness.randrange(fits + 1)])
            raise session.failed(self._path)
        growth = position + len(data) - len(inode.content)
        if disk.room is not None and growth > 0:
            short = max(0, growth - disk.room)
            disk.room -= growth - short
            fits = max(0, fits - short)
        inode.modified_ns = session.now_ns()
        inode.write(position, data if fits == len(data) else memoryview(data)[:fits])
        if fits < len(data):
            raise OSError(errno.ENOSPC, "no space left on device", self._path)

    def size(self) -> int:
        self._session.check()
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        if self._session.begin_change(self._path):
            self._session.disk.die()
        disk = self._session.disk
        if disk.writes_fail or disk.writes_tear:
            raise self._session.failed(self._path)
        if disk.room is not None:
            disk.room += max(0, len(self._inode.content) - size)
        self._inode.truncate(size)
        self._inode.modified_ns = self._session.now_ns()

    def sync(self) -> None:
        if self._session.begin_change(self._path):
            self._session.disk.die()
        if self._session.disk.syncs_fail:
            self._inode.forget_dirty()
            raise self._session.failed(self._path)
        self._inode.sync()

    def is_resident(self, position: int, length: int) -> bool:
        return not self._inode.is_cold

    def read_ahead(self, position: int, length: int) -> None:
        self._inode.is_cold = False

    def modified_ns(self) -> int:
        self._session.check()
        return self._inode.modified_ns


class DiskSession:
    """The `Disk` of storage for one process. After the process has ended, every operation fails."""

    def __init__(self, disk: SimulatedDisk, now_ns: Callable[[], int]) -> None:
        self.disk = disk
        self.now_ns = now_ns
        self.alive = True
        self.on_error: OnError = lambda error, path, reading: None

    def failed(self, path: str, *, reading: bool = False) -> OSError:
        """An I/O error, which is also reported to `on_error`."""
        error = OSError(errno.EIO, "input/output error", path)
        self.on_error(error, path, reading)
        return error

    def begin_read(self, path: str) -> None:
        self.check()
        if (self.disk.reads_fail or self.disk.is_dead(path)) and not self.disk.is_observed:
            raise self.failed(path, reading=True)

    def end(self) -> None:
        self.alive = False
        for path in [path for path, session in self.disk.locks.items() if session is self]:
            del self.disk.locks[path]

    def check(self) -> None:
        if not self.alive:
            raise OSError(errno.EIO, "this process has ended")

    def begin_change(self, path: str) -> bool:
        """Whether the process dies within this change."""
        self.check()
        if self.disk.is_dead(path):
            raise self.failed(path)
        return self.disk.count_operation(path)

    def _change(self, path: str) -> None:
        if self.begin_change(path):
            self.disk.die()

    # Finding

    def _find(self, path: str) -> "_Inode | _Directory | None":
        item: _Inode | _Directory | None = self.disk.root
        for name in path.strip("/").split("/"):
            if not isinstance(item, _Directory):
                return None
            item = item.entries.get(name)
        return item

    def _directory(self, path: str) -> _Directory:
        self.check()
        found = self._find(path) if path.strip("/") else self.disk.root
        if not isinstance(found, _Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return found

    def _inode(self, path: str) -> _Inode:
        self.check()
        found = self._find(path)
        if not isinstance(found, _Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return found

    # Disk

    def open(self, path: str) -> SimulatedFile:
        return SimulatedFile(self, path, self._inode(path))

    def create(self, path: str) -> SimulatedFile:
        parent, name = path.rsplit("/", 1)
        directory = self._directory(parent)
        self._change(path)
        found = directory.entries.get(name)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if found is not None and found.is_shared:
            directory.drop(name)
            found = None
        if found is None:
            if self.disk.room == 0:
                raise OSError(errno.ENOSPC, "no space left on device", path)
            found = _Inode()
            directory.put(name, found)
        else:
            found.truncate(0)
        found.modified_ns = self.now_ns()
        return SimulatedFile(self, path, found)

    def link(self, path: str, other: str) -> None:
        inode = self._inode(path)
        self._change(other)
        parent, name = other.rsplit("/", 1)
        directory = self._directory(parent)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, "file exists", other)
        inode.is_shared = True
        directory.put(name, inode)

    def is_shared(self, path: str) -> bool:
        self.check()
        found = self._find(path)
        return isinstance(found, _Inode) and found.is_shared

    def copy(self, path: str, other: str, size: int) -> None:
        content = self.open(path).read_at(0, size)
        if len(content) < size:
            raise OSError(errno.EIO, f"the file ends at {len(content)}, before {size}", path)
        target = self.create(other)
        target.write_at(0, content)
        target.sync()

    def exists(self, path: str) -> bool:
        self.check()
        return self._find(path) is not None

    def file_size(self, path: str) -> int:
        return len(self._inode(path).content)

    def modified_ns(self, path: str) -> int:
        return self._inode(path).modified_ns

    def list(self, path: str) -> Sequence[DirectoryEntry]:
        if self.disk.is_dead(path):
            raise self.failed(path, reading=True)
        entries = self._directory(path).entries
        return [DirectoryEntry(name, isinstance(item, _Directory)) for name, item in entries.items()]

    def make_directory(self, path: str) -> None:
        self._change(path)
        directory = self.disk.root
        for name in path.strip("/").split("/"):
            found = directory.entries.get(name)
            if found is None:
                if self.disk.room == 0:
                    raise OSError(errno.ENOSPC, "no space left on device", path)
                found = _Directory()
                directory.put(name, found)
            elif isinstance(found, _Inode):
                raise FileExistsError(errno.EEXIST, "a file is in the way", path)
            directory = found

    def rename(self, old: str, new: str) -> None:
        if old.endswith(_CLEANED):
            self.disk.before_swap()
        self._change(old)
        old_parent, old_name = old.rsplit("/", 1)
        new_parent, new_name = new.rsplit("/", 1)
        directory = self._directory(old_parent)
        if old_name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        if old_parent != new_parent:
            raise OSError(errno.EXDEV, "renaming across directories is not simulated", new)
        directory.rename(old_name, new_name)

    def remove(self, path: str) -> None:
        self._remove(path)

    def remove_directory(self, path: str) -> None:
        self._remove(path)

    def _remove(self, path: str) -> None:
        self._change(path)
        parent, name = path.rsplit("/", 1)
        directory = self._find(parent)
        if isinstance(directory, _Directory) and name in directory.entries:
            if self.disk.room is not None:
                self.disk.room += _size(directory.entries[name])
            directory.drop(name)

    def sync_directory(self, path: str) -> None:
        self._change(path)
        directory = self._directory(path)
        if self.disk.syncs_fail:
            raise self.failed(path)
        directory.sync()

    def sync_filesystem(self, path: str) -> None:
        self._change(path)
        if self.disk.syncs_fail:
            raise self.failed(path)
        self.disk.root.sync_all()

    def read_bytes(self, path: str) -> bytes:
        inode = self._inode(path)
        self.begin_read(path)
        return bytes(inode.content)

    def write_bytes(self, path: str, data: bytes) -> None:
        self.create(path).write_at(0, data)

    def write_atomically(self, path: str, data: bytes, *, durable: bool = True, modified_ns: int | None = None) -> None:
        temporary = path + ".tmp"
        file = self.create(temporary)
        file.write_at(0, data)
        if modified_ns is not None:
            self._inode(temporary).modified_ns = modified_ns
        if durable:
            file.sync()
        self.rename(temporary, path)
        if durable:
            self.sync_directory(path.rsplit("/", 1)[0])

    def space(self, path: str) -> Space:
        if self.disk.is_dead(path):
            raise self.failed(path, reading=True)
        return Space(_DISK_BYTES, _DISK_BYTES if self.disk.room is None else self.disk.room)

    def map(self, path: str) -> memoryview:
        return memoryview(self.read_bytes(path))

    def lock(self, path: str) -> SimulatedLock | None:
        self.check()
        if path in self.disk.locks:
            return None
        if self._find(path) is None:
            self.create(path)
        self.disk.locks[path] = self
        return SimulatedLock(self, path)
