"""The real disk with faults: room for so many bytes, writes that come up short or are torn, fsyncs that fail."""

import errno

from millstream.formats.records.batch import Bytes
from millstream.node.runtime.disk import RealDisk, RealFile


class FaultyFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: "FaultyDisk", path: str, create: bool) -> None:
        self._disk = disk
        if create:
            RealDisk().create(path)
        super().__init__(path)

    def write_at(self, position: int, data: Bytes) -> None:
        disk = self._disk
        if disk.torn_at is not None:
            super().write_at(position, memoryview(data)[: disk.torn_at])
        if disk.broken or disk.torn_at is not None:
            raise OSError(errno.EIO, "input/output error", self.path)
        if disk.room is not None:
            fits = min(len(data), disk.room)
            disk.room -= fits
            if fits < len(data):
                super().write_at(position, memoryview(data)[:fits])
                disk.refused += 1
                raise OSError(errno.ENOSPC, "no space left on device", self.path)
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        if self._disk.torn_at is not None:
            raise OSError(errno.EIO, "input/output error", self.path)
        super().truncate(size)

    def sync(self) -> None:
        if self._disk.sync_fails:
            raise OSError(errno.EIO, "input/output error", self.path)
        self._disk.synced.append(self.path)
        super().sync()

    def is_resident(self, position: int, length: int) -> bool:
        return not self._disk.cold and super().is_resident(position, length)


class FaultyDisk(RealDisk):
    __slots__ = ("broken", "cold", "opened", "refused", "room", "sync_fails", "synced", "torn_at")

    def __init__(self) -> None:
        super().__init__()
        self.room: int | None = None
        self.refused = 0
        """Writes for which there was no room."""
        self.broken = False
        self.torn_at: int | None = None
        """So many bytes of a write are written, then it fails, and files cannot be truncated."""
        self.sync_fails = False
        self.cold = False
        self.synced: list[str] = []
        self.opened: list[str] = []

    def open(self, path: str) -> RealFile:
        self.opened.append(path)
        return FaultyFile(self, path, create=False)

    def sync_filesystem(self, path: str) -> None:
        """Not in tests: it would wait for what everyone else on the machine writes."""
        if self.sync_fails:
            raise OSError(errno.EIO, "input/output error", path)
        self.synced.append(path)

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)

    def create(self, path: str) -> RealFile:
        if self.room == 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return FaultyFile(self, path, create=True)
