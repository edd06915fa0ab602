"""The files in a log's directory: segments, indexes and snapshots by offset; cleanup at the start.

A crash of the cleaner is finished by Kafka's file names and rules. `.cleaned` files are an unfinished copy: they are
removed, with the `.swap` files of the same copy, of which a crash renamed only some. A `.log.swap` without them is a
complete copy: it replaces the segments whose offsets it covers. Nothing is removed before all files of the copy have
their names, so both can be repeated.
"""

import logging
from collections.abc import Iterable

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_formats import (
    BRANCH,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    BranchFile,
    DamagedFileError,
    decode_branch,
    offset_file,
    parse_offset_file,
)
from millstream.node.storage.log.batch_scan import walk_headers

_log = logging.getLogger("millstream.storage")

Named = tuple[int, str]
"""Offset and suffix, without `.cleaned` or `.swap`."""


def finish_swaps(disk: Disk, directory: str, names: Iterable[str]) -> bool:
    """Finish or remove copies of the cleaner; whether there were any."""
    cleaned, swaps, present = _sort(names)
    if not cleaned and not swaps:
        return False
    unfinished = min((offset for offset, _ in cleaned), default=None)
    for offset, suffix in sorted(swaps):
        if (unfinished is not None and offset >= unfinished) or (offset, LOG_SUFFIX) not in swaps:
            disk.remove(offset_file(directory, offset, suffix) + SWAP_SUFFIX)
            swaps.discard((offset, suffix))
    for offset, suffix in sorted(cleaned):
        disk.remove(offset_file(directory, offset, suffix) + CLEANED_SUFFIX)
    for base in sorted(offset for offset, suffix in swaps if suffix == LOG_SUFFIX):
        _finish(disk, directory, base, swaps, present)
    disk.sync_directory(directory)
    return True


def _sort(names: Iterable[str]) -> tuple[set[Named], set[Named], set[Named]]:
    cleaned: set[Named] = set()
    swaps: set[Named] = set()
    present: set[Named] = set()
    for name in names:
        found, into = name, present
        for suffix, kind in ((CLEANED_SUFFIX, cleaned), (SWAP_SUFFIX, swaps)):
            if name.endswith(suffix):
                found, into = name.removesuffix(suffix), kind
        parsed = parse_offset_file(found)
        if parsed is not None:
            into.add(parsed)
    return cleaned, swaps, present


def _finish(disk: Disk, directory: str, base: int, swaps: set[Named], present: set[Named]) -> None:
    path = offset_file(directory, base, LOG_SUFFIX) + SWAP_SUFFIX
    file = disk.open(path)
    end = base
    for _, header in walk_headers(file, 0, file.size()):
        end = header.last_offset + 1
    _log.warning("swap_finished file=%s end_offset=%d", path, end)
    for offset, suffix in sorted(present):
        if base < offset < end and suffix in SEGMENT_SUFFIXES:
            disk.remove(offset_file(directory, offset, suffix))
    for suffix in (*(other for other in SEGMENT_SUFFIXES if other != LOG_SUFFIX), LOG_SUFFIX):
        if (base, suffix) in swaps:
            final = offset_file(directory, base, suffix)
            disk.rename(final + SWAP_SUFFIX, final)


def own(disk: Disk, path: str, size: int) -> None:
    """Make a file that has other names too (of a branch) a file of its own, with its first `size` bytes. It must be
    called before a change in place."""
    if disk.is_shared(path):
        disk.copy(path, path + TEMPORARY_SUFFIX, size)
        disk.rename(path + TEMPORARY_SUFFIX, path)


def read_branch(disk: Disk, directory: str) -> BranchFile | None:
    """The file of a branch in a log; None if the log is not of a branch."""
    path = f"{directory}/{BRANCH}"
    if not disk.exists(path):
        return None
    try:
        return decode_branch(disk.read_bytes(path))
    except DamagedFileError as error:
        _log.error("branch_file_damaged file=%s error=%s", path, error)
        return None


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
        """Remove empty segments that are not the last one."""
        for base in self.bases[:-1]:
            path = offset_file(self.directory, base, LOG_SUFFIX)
            if disk.file_size(path) == 0:
                _log.warning("segment_discarded file=%s reason=empty", path)
                self.remove_segment(disk, base)

    def remove_snapshots(self, disk: Disk) -> None:
        for offset in self.snapshots:
            disk.remove(offset_file(self.directory, offset, SNAPSHOT_SUFFIX))
        self.snapshots.clear()

    def sound_snapshots(self, disk: Disk, end_offset: int) -> list[int]:
        """Snapshots within the log; later ones are removed, because their records are gone."""
        for offset in [offset for offset in self.snapshots if offset > end_offset]:
            disk.remove(offset_file(self.directory, offset, SNAPSHOT_SUFFIX))
            self.snapshots.remove(offset)
        return self.snapshots


def scan_files(disk: Disk, directory: str) -> LogFiles:
    """List the directory, and remove the files of an interrupted deletion or replacement."""
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
    for offset, suffix in [entry for entry in sorted(found) if entry[1] == TRANSACTION_INDEX_SUFFIX]:
        if (offset, LOG_SUFFIX) not in found:  # else a later segment of that name would use it
            disk.remove(offset_file(directory, offset, suffix))
            found.discard((offset, suffix))
    return LogFiles(directory, found)
