"""The `.snapshot` files of one log: which exist, writing the next, removing those that describe what is gone."""

from collections.abc import Collection

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_names import SNAPSHOT_SUFFIX, offset_file
from millstream.node.storage.log.producer_snapshot import encode_snapshot
from millstream.node.storage.log.producer_state import ProducerState


class SnapshotFiles:
    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = offsets

    def write(self, offset: int, producers: ProducerState) -> None:
        # Neither atomic nor waited for: a damaged snapshot is known by its checksum, and made anew from the log.
        try:
            self._disk.write_bytes(self._path(offset), encode_snapshot(producers.entries.values()))
        except OSError:
            self._disk.remove(self._path(offset))
            raise
        if offset not in self.offsets:
            self.offsets.append(offset)

    def forget_before(self, offset: int) -> list[str]:
        """Stop counting on snapshots of deleted segments; returns their paths, to be removed with the segments."""
        old = [found for found in self.offsets if found < offset]
        self.offsets = [found for found in self.offsets if found >= offset]
        return [self._path(found) for found in old]

    def forget_at(self, offsets: Collection[int]) -> list[str]:
        """Stop counting on the snapshots of segments that are merged into others; returns their paths."""
        gone = [found for found in self.offsets if found in offsets]
        self.offsets = [found for found in self.offsets if found not in offsets]
        return [self._path(found) for found in gone]

    def remove_after(self, offset: int) -> None:
        self._remove([found for found in self.offsets if found > offset])

    def remove_before(self, offset: int) -> None:
        self._remove([found for found in self.offsets if found < offset])

    def remove_strays(self, wanted: Collection[int]) -> None:
        """Keep only snapshots at these offsets: the segments' bases and the end of the log."""
        self._remove([found for found in self.offsets if found not in wanted])

    def _remove(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._disk.remove(self._path(offset))
            self.offsets.remove(offset)

    def _path(self, offset: int) -> str:
        return offset_file(self._directory, offset, SNAPSHOT_SUFFIX)
