"""Whether a log directory can be used: errors of its disk are noted here, whichever file they are of.

A full disk has not failed: it can be read, and retention makes room. Other errors say nothing about the disk either:
too many open files, a missing file, an argument that is wrong.
"""

import errno
import logging
from collections.abc import Callable
from typing import NamedTuple

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import TEMPORARY_SUFFIX

_log = logging.getLogger("millstream.storage")

NOT_THE_DISK = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EBADF,
        errno.EINVAL,
    }
)
"""Errors after which the directory stays in use. Kafka takes it offline after any of them."""
_TRIAL_FILE = f".disk-check{TEMPORARY_SUFFIX}"
_TRIAL_BYTES = 4096
_READ_BYTES = 1 << 20


class DirectoryFailure(NamedTuple):
    """The first error since the directory was last usable."""

    path: str
    reason: str
    reading: bool


class DirectoryHealth:
    """May be called from any thread."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.failure: DirectoryFailure | None = None
        self.on_failure: Callable[[], None] = lambda: None
        """Called once for each failure, in the thread where it occurs."""

    def note(self, error: OSError, path: str, reading: bool) -> None:
        """One operation on a file or directory below the root has failed."""
        if self.failure is not None or error.errno in NOT_THE_DISK:
            return
        self.fail(DirectoryFailure(path, f"{error.strerror or error} (errno {error.errno}) at {path}", reading))

    def fail(self, failure: DirectoryFailure) -> None:
        if self.failure is None:
            self.failure = failure
            _log.error("log_directory_failed directory=%s error=%s", self.root, failure.reason)
            self.on_failure()

    def recovered(self) -> None:
        if self.failure is not None:
            _log.info("log_directory_usable_again directory=%s", self.root)
            self.failure = None


def try_directory(disk: Disk, root: str, failure: DirectoryFailure) -> OSError | None:
    """Why the directory still cannot be used; None if it can. May block.

    A file that could not be read is read whole, because one bad sector does not prevent writes to other files.
    """
    path = f"{root}/{_TRIAL_FILE}"
    try:
        file = disk.create(path)
        file.write_at(0, bytes(_TRIAL_BYTES))
        file.sync()
        disk.remove(path)
        if failure.reading and failure.path != root and disk.exists(failure.path):
            _read_whole(disk, failure.path)
    except (IsADirectoryError, FileNotFoundError):
        return None
    except OSError as error:
        return error
    return None


def _read_whole(disk: Disk, path: str) -> None:
    file = disk.open(path)
    position = 0
    while piece := file.read_at(position, _READ_BYTES):
        position += len(piece)
