"""The real disk: the `Disk` interface of storage on the files of the operating system.

A write is complete or raises. A descriptor closes with its last reference. An atomic replacement survives a power
failure if it is durable. Errors are reported to `on_error`.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar

from millstream.common.prometheus import PAUSE_SECONDS, Histogram
from millstream.formats.records.batch import Bytes
from millstream.node.storage.disk import DirectoryEntry, OnError, Space

_PAGE_BYTES = 4096
RESIDENCY_STEP_BYTES = 128 * 1024
"""Read-ahead loads pages in blocks of about this size, so one probe per step finds a block that is not in memory."""

_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC
_CREATE_FLAGS = _OPEN_FLAGS | os.O_CREAT | os.O_TRUNC
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_COPY_BYTES = 1 << 20
_NO_COPY_RANGE = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP)
"""File systems that cannot copy within the kernel."""

_close = os.close
_fstat = os.fstat
_pread = os.pread
_pwrite = os.pwrite
_preadv = getattr(os, "preadv", None)


class SyncDurations:
    """The durations of fsync calls. Several threads use it."""

    def __init__(self) -> None:
        self.seconds = Histogram(PAUSE_SECONDS)
        self._lock = Lock()

    def observe(self, begun: float) -> None:
        with self._lock:
            self.seconds.observe(time.perf_counter() - begun)


SYNC_DURATIONS = SyncDurations()
"""One for the process: files have no reference to their disk."""


def _ignore_error(error: OSError, path: str, reading: bool) -> None:
    """The error handler of a file or disk that belongs to no node."""


class RealFile:
    """One file descriptor, closed with the object."""

    __slots__ = ("_can_probe", "_fd", "_on_error", "_path")

    def __init__(self, path: str, flags: int = _OPEN_FLAGS, on_error: OnError = _ignore_error) -> None:
        self._fd = -1  # so that __del__ is safe when open raises
        self._path = path
        self._on_error = on_error
        self._can_probe = bool(_NOWAIT) and _preadv is not None
        self._fd = os.open(path, flags, 0o644)

    def __del__(self) -> None:
        if self._fd >= 0:
            _close(self._fd)

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def read_at(self, position: int, length: int) -> bytes:
        try:
            data = _pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            done = len(data)
            while done < length:
                data = _pread(self._fd, length - done, position + done)
                if not data:
                    break
                parts.append(data)
                done += len(data)
            return b"".join(parts)
        except OSError as error:
            self._on_error(error, self._path, True)
            raise

    def write_at(self, position: int, data: Bytes) -> None:
        try:
            length = len(data)
            done = _pwrite(self._fd, data, position)
            if done == length:
                return
            # A short write: the disk is nearly full, or the data is more than one call can write.
            view = memoryview(data)
            while done < length:
                written = _pwrite(self._fd, view[done:], position + done)
                if written == 0:
                    raise OSError(errno.EIO, "the disk accepted no more bytes", self._path)
                done += written
        except OSError as error:
            self._on_error(error, self._path, False)
            raise

    def size(self) -> int:
        return _fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            self._on_error(error, self._path, False)
            raise

    def sync(self) -> None:
        begun = time.perf_counter()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._on_error(error, self._path, False)
            raise
        SYNC_DURATIONS.observe(begun)

    def is_resident(self, position: int, length: int) -> bool:
        if not self._can_probe or length <= 0:
            return True
        probe = bytearray(1)
        end = position + length
        last = end - 1
        try:
            while position < end:
                _preadv(self._fd, (probe,), position, _NOWAIT)  # type: ignore[misc]
                position += RESIDENCY_STEP_BYTES
            if (position - RESIDENCY_STEP_BYTES) // _PAGE_BYTES != last // _PAGE_BYTES:
                _preadv(self._fd, (probe,), last, _NOWAIT)  # type: ignore[misc]
        except BlockingIOError:
            return False
        except OSError:
            self._can_probe = False  # the file system does not support RWF_NOWAIT
        return True

    def read_ahead(self, position: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_WILLNEED)

    def modified_ns(self) -> int:
        return _fstat(self._fd).st_mtime_ns


def _copy_range(source: int, target: int, length: int, position: int) -> int:
    """Copy bytes within the kernel, which on some file systems shares the blocks; returns how many were copied."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, length, position, position)
        except OSError as error:
            if error.errno not in _NO_COPY_RANGE:
                raise
    return _pwrite(target, _pread(source, min(length, _COPY_BYTES), position), position)


class RealLock:
    """An advisory lock. The kernel releases it when the process ends, so a stale lock file never blocks a start."""

    __slots__ = ("_file", "_held")

    def __init__(self, file: RealFile, held: tuple[int, int]) -> None:
        self._file: RealFile | None = file
        self._held = held

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        if self._file is not None:
            self._file = None
            _HELD.discard(self._held)


_HELD: set[tuple[int, int]] = set()
"""The files that this process has locked, by device and inode."""
_LOCKS = Lock()


P = ParamSpec("P")
R = TypeVar("R")


def _reports_errors(
    reading: bool,
) -> "Callable[[Callable[Concatenate[RealDisk, str, P], R]], Callable[Concatenate[RealDisk, str, P], R]]":
    """A decorator: the method reports the errors it raises to `on_error`."""

    def decorate(method: "Callable[Concatenate[RealDisk, str, P], R]") -> "Callable[Concatenate[RealDisk, str, P], R]":
        def watched(self: "RealDisk", path: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(self, path, *args, **kwargs)
            except OSError as error:
                self.on_error(error, path, reading)
                raise

        return watched

    return decorate


class RealDisk:
    """Storage's `Disk` on the operating system."""

    __slots__ = ("on_error",)

    def __init__(self) -> None:
        self.on_error: OnError = _ignore_error

    @_reports_errors(reading=True)
    def open(self, path: str) -> RealFile:
        return RealFile(path, on_error=self.on_error)

    @_reports_errors(reading=False)
    def create(self, path: str) -> RealFile:
        if self.is_shared(path):
            os.unlink(path)
        return RealFile(path, _CREATE_FLAGS, self.on_error)

    @_reports_errors(reading=False)
    def link(self, path: str, other: str) -> None:
        os.link(path, other)

    def is_shared(self, path: str) -> bool:
        try:
            return os.stat(path).st_nlink > 1
        except FileNotFoundError:
            return False

    @_reports_errors(reading=False)
    def copy(self, path: str, other: str, size: int) -> None:
        source, target = RealFile(path), self.create(other)
        position = 0
        while position < size:
            done = _copy_range(source.fileno(), target.fileno(), size - position, position)
            if done == 0:
                raise OSError(errno.EIO, f"the file ends at {position}, before {size}", path)
            position += done
        target.sync()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    @_reports_errors(reading=True)
    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    @_reports_errors(reading=True)
    def modified_ns(self, path: str) -> int:
        return os.stat(path).st_mtime_ns

    @_reports_errors(reading=True)
    def list(self, path: str) -> Sequence[DirectoryEntry]:
        with os.scandir(path) as entries:
            return [DirectoryEntry(entry.name, entry.is_dir()) for entry in entries]

    @_reports_errors(reading=False)
    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    @_reports_errors(reading=False)
    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    @_reports_errors(reading=False)
    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    @_reports_errors(reading=False)
    def remove_directory(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass

    @_reports_errors(reading=False)
    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        begun = time.perf_counter()
        try:
            os.fsync(fd)
        finally:
            _close(fd)
        SYNC_DURATIONS.observe(begun)

    @_reports_errors(reading=False)
    def sync_filesystem(self, path: str) -> None:
        # The standard library has only sync(), which waits for every other file system too.
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), "the file system could not be synced", path)
        finally:
            _close(fd)

    @_reports_errors(reading=True)
    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        self.create(path).write_at(0, data)

    @_reports_errors(reading=False)
    def write_atomically(self, path: str, data: bytes, *, durable: bool = True, modified_ns: int | None = None) -> None:
        temporary = path + ".tmp"
        file = self.create(temporary)
        file.write_at(0, data)
        if modified_ns is not None:
            os.utime(file.fileno(), ns=(modified_ns, modified_ns))
        if durable:
            file.sync()
        del file
        os.rename(temporary, path)
        if durable:
            self.sync_directory(os.path.dirname(path))

    @_reports_errors(reading=True)
    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    @_reports_errors(reading=True)
    def map(self, path: str) -> memoryview:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _fstat(fd).st_size == 0:
                return memoryview(b"")  # an empty file cannot be mapped
            return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        finally:
            _close(fd)

    def lock(self, path: str) -> RealLock | None:
        """Takes a flock and a POSIX lock, because they do not exclude each other: Java brokers use POSIX locks."""
        with _LOCKS:
            # A process loses its POSIX lock when it closes any descriptor of the file: do not open a locked file again.
            if _is_held(path):
                return None
            file = RealFile(path, _OPEN_FLAGS | os.O_CREAT)
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return None
                raise
            about = _fstat(file.fileno())
            held = about.st_dev, about.st_ino
            _HELD.add(held)
            return RealLock(file, held)


def _is_held(path: str) -> bool:
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return False
    return (about.st_dev, about.st_ino) in _HELD
