"""What lies in a log's directory: segments, indexes and snapshots by offset; everything else is somebody else's."""

import logging

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_file,
    parse_offset_file,
)
from millstream.node.storage.log.swapping import finish_swaps

logger = logging.getLogger("millstream.storage")


class LogFiles:
    __slots__ = ("_found", "bases", "directory", "snapshots")

    def __init__(self, directory: str, found: set[tuple[int, str]]) -> None:
        self.directory = directory
        self._found = found
        self.bases = sorted(offset for offset, suffix in found if suffix == LOG_SUFFIX)
        self.snapshots = sorted(offset for offset, suffix in found if suffix == SNAPSHOT_SUFFIX)

    def has(self, offset: int, suffix: str) -> bool:
        return (offset, suffix) in self._found

    def remove_segment(self, disk: Disk, base_offset: int) -> None:
        for suffix in SEGMENT_SUFFIXES:
            if self.has(base_offset, suffix):
                disk.remove(offset_file(self.directory, base_offset, suffix))
                self._found.discard((base_offset, suffix))
        self.bases.remove(base_offset)

    def discard_empty_segments(self, disk: Disk) -> None:
        """Empty segments mean something only at the end of the log."""
        for base in self.bases[:-1]:
            path = offset_file(self.directory, base, LOG_SUFFIX)
            if disk.file_size(path) == 0:
                logger.warning("segment_discarded file=%s reason=empty", path)
                self.remove_segment(disk, base)

    def remove_snapshots(self, disk: Disk) -> None:
        for offset in self.snapshots:
            disk.remove(offset_file(self.directory, offset, SNAPSHOT_SUFFIX))
        self.snapshots.clear()

    def sound_snapshots(self, disk: Disk, end_offset: int) -> list[int]:
        """Snapshots within the log; later ones describe what is gone, and are removed."""
        for offset in [offset for offset in self.snapshots if offset > end_offset]:
            disk.remove(offset_file(self.directory, offset, SNAPSHOT_SUFFIX))
            self.snapshots.remove(offset)
        return self.snapshots


def scan_files(disk: Disk, directory: str) -> LogFiles:
    """List the directory, and remove what an interrupted deletion or replacement left."""
    found: set[tuple[int, str]] = set()
    entries = disk.list(directory)
    if finish_swaps(disk, directory, [name for name, is_directory in entries if not is_directory]):
        entries = disk.list(directory)
    for name, is_directory in entries:
        if is_directory:
            continue
        if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)):
            disk.remove(f"{directory}/{name}")
            continue
        parsed = parse_offset_file(name)
        if parsed is not None:
            found.add(parsed)
    for offset, suffix in [entry for entry in found if entry[1] == TRANSACTION_INDEX_SUFFIX]:
        if (offset, LOG_SUFFIX) not in found:  # or else a later segment of that name would have it for its own
            disk.remove(offset_file(directory, offset, suffix))
            found.discard((offset, suffix))
    return LogFiles(directory, found)
