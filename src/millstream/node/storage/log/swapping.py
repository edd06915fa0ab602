"""Finishing, at the start, what the cleaner was doing when the node went down, by Kafka's file names and rules.

`.cleaned` files are a copy that was not finished: they go, and with them `.swap` files of the same copy, of which a
crash renamed only some. A `.log.swap` without them is a copy that is whole: it takes the place of the segments whose
offsets it covers. Nothing is removed before all that takes its place has its name, so either can be done again.
"""

import logging
from collections.abc import Iterable

from millstream.node.storage.disk import Disk
from millstream.node.storage.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    offset_file,
    parse_offset_file,
)
from millstream.node.storage.log.batch_scan import walk_headers

logger = logging.getLogger("millstream.storage")

Named = tuple[int, str]
"""Offset and suffix, without `.cleaned` or `.swap`."""


def finish_swaps(disk: Disk, directory: str, names: Iterable[str]) -> bool:
    """Whether there was something to do."""
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
    logger.warning("swap_finished file=%s end_offset=%d", path, end)
    for offset, suffix in sorted(present):
        if base < offset < end and suffix in SEGMENT_SUFFIXES:
            disk.remove(offset_file(directory, offset, suffix))
    for suffix in (*(other for other in SEGMENT_SUFFIXES if other != LOG_SUFFIX), LOG_SUFFIX):
        if (base, suffix) in swaps:
            final = offset_file(directory, base, suffix)
            disk.rename(final + SWAP_SUFFIX, final)
